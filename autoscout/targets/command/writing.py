"""Export formats of a user's own command in addition to shell scripts: YAML, a Slurm script, a Kubernetes Job or
JobSet."""

import shlex

import msgspec

from autoscout.job import yaml_text
from autoscout.line.launch_line import Line
from autoscout.line.line_devices import tasks_of_a_node
from autoscout.targets import spread
from autoscout.targets.launch import (
    Launch,
    batch_head,
    comments,
    exports,
    first_node,
    heading,
    placed_by_shell,
    program_lines,
    srun,
)
from kb.records import AutoscoutError

_EVERYWHERE = ("0.0.0.0", "::")


def yaml(launch: Launch) -> str:
    """Returns the launch as YAML. Strings are written as in JSON, because JSON scalars are valid YAML."""
    lines = [*heading(launch), f"folder: {yaml_text.emitted(launch.folder)}", "environment:"]
    lines += [f"  {name}: {yaml_text.emitted(value)}" for name, value in launch.environment.items()] or ["  {}"]
    lines += ["command:", *(f"  - {yaml_text.emitted(word)}" for word in launch.program)]
    if launch.files:
        lines += [
            "files:",
            *(f"  {yaml_text.emitted(n)}: {yaml_text.emitted(content)}" for n, content in launch.files.items()),
        ]
    return "\n".join(lines) + "\n"


def slurm(launch: Launch) -> str:
    """Returns the launch as a Slurm script. On several nodes, the script runs the command once on each node, unless the
    command calls `srun` itself."""
    own = launch.program[0] == "srun" or launch.nodes == 1
    if launch.placed and launch.program[0] != "srun":
        alike, start = placed_by_shell(launch)
        ranks = f"$(echo {' '.join(map(str, launch.devices))} | cut -d ' ' -f $((SLURM_PROCID + 1)))"
        start = f"export NODE=$SLURM_PROCID RANKS={ranks}\n{start}"
        lines = [*batch_head(alike), f"export HEAD={first_node(launch)}"]
        return "\n".join([*lines, f"{srun(launch)} bash -c {shlex.quote(start)}"]) + "\n"
    head = batch_head(launch)
    if launch.program[0] == "srun" and (
        tasks := tasks_of_a_node(Line(tuple(launch.program)))
    ):  # the options of the command's own srun set the number of tasks per node
        head = [line.replace("--ntasks-per-node=1", f"--ntasks-per-node={tasks}") for line in head]
    return "\n".join([*head, f"{'' if own else f'{srun(launch)} '}{program_lines(launch)}"]) + "\n"


def k8s(launch: Launch) -> str:
    """Returns a Kubernetes Job with the user's image. Errors: AutoscoutError (exit 2) for several nodes, since a Job
    has one pod."""
    if launch.nodes > 1:
        raise AutoscoutError(
            f"--format k8s exports one pod, but the launch has {launch.nodes} nodes; use --format jobset, "
            "which exports one pod per node",
            2,
        )
    launch = _heard(launch)
    script = "\n".join([*exports(launch), f"exec {shlex.join(launch.program)}"])
    lines = [
        *heading(launch),
        *comments("replace the image with your own"),
        "apiVersion: batch/v1",
        "kind: Job",
        f"metadata: {{ name: {spread.dns_name(launch.job)} }}",
        "spec:",
        "  backoffLimit: 0",
        "  template:",
        "    spec:",
        *(" " * 6 + line for line in spread.pod(launch, script, sum(launch.devices))),
    ]
    return "\n".join(lines) + "\n"


def jobset(launch: Launch) -> str:
    return spread.jobset(_heard(launch))


def _heard(launch: Launch) -> Launch:
    """Returns the launch of a server that listens on all network interfaces, because clients are outside of its pod."""
    line = Line(tuple(launch.program))
    if not launch.port or line.value("--host") in _EVERYWHERE:
        return launch
    if launch.program[:2] == ["bash", "-c"]:
        advice = "--host 0.0.0.0, so that the server listens on all addresses"
        return msgspec.structs.replace(launch, missing=[*launch.missing, advice])
    return msgspec.structs.replace(launch, program=[*line.with_("--host", _EVERYWHERE[0]).words])
