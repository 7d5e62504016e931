"""Export formats of a user's own command besides shell: YAML, a Slurm script, a Kubernetes Job."""

import json
import shlex

from autoscout.targets.launch import (
    Launch,
    batch_head,
    comments,
    exports,
    first_node,
    heading,
    nothing_to_place,
    placed,
    program_lines,
    srun,
    to_place,
)
from autoscout.targets.spread import dns_name, pod


def yaml(launch: Launch) -> str:
    """JSON scalars are YAML scalars."""
    lines = [*heading(launch), f"folder: {json.dumps(launch.folder)}", "environment:"]
    lines += [f"  {name}: {json.dumps(value)}" for name, value in launch.environment.items()] or ["  {}"]
    lines += ["command:", *(f"  - {json.dumps(word)}" for word in launch.program)]
    if launch.files:
        lines += ["files:", *(f"  {json.dumps(n)}: {json.dumps(content)}" for n, content in launch.files.items())]
    return "\n".join(lines) + "\n"


def slurm(launch: Launch) -> str:
    """On one node the command itself; on several nodes once on each, unless it calls `srun` itself."""
    own = launch.program[0] == "srun" or launch.nodes == 1
    if own or not to_place(launch):
        return "\n".join([*batch_head(launch), f"{'' if own else f'{srun(launch)} '}{program_lines(launch)}"]) + "\n"
    counts = " ".join(map(str, launch.devices))
    lines = [*batch_head(nothing_to_place(launch)), f"export HEAD={first_node(launch)}"]
    lines.append(f"export RANKS={shlex.quote(counts)}  # of each node, in Slurm's order")
    ranks = "$(echo $RANKS | cut -d ' ' -f $((SLURM_PROCID + 1)))"
    lines.append(f"{srun(launch)} bash -c {shlex.quote('exec ' + placed(launch, '$SLURM_PROCID', '$HEAD', ranks))}")
    return "\n".join(lines) + "\n"


def k8s(launch: Launch) -> str:
    """A Job; the image is the user's own."""
    script = "\n".join([*exports(launch), f"exec {shlex.join(launch.program)}"])
    lines = [
        *heading(launch),
        *comments("the image is yours"),
        "apiVersion: batch/v1",
        "kind: Job",
        f"metadata: {{ name: {dns_name(launch.job)} }}",
        "spec:",
        "  backoffLimit: 0",
        "  template:",
        "    spec:",
        *(" " * 6 + line for line in pod(launch, script, sum(launch.devices))),
    ]
    return "\n".join(lines) + "\n"
