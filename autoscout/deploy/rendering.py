"""Writes a launch as a shell command, JSON, YAML or a Slurm script. A target may add formats."""

import json
import shlex
from collections.abc import Callable, Mapping

import msgspec

from autoscout.job import yaml_text
from autoscout.job.words import nearest_name
from autoscout.targets.launch import Launch, batch_head, comments, exports, first_node, heading, program_lines, srun
from autoscout.targets.spread import meeting, torchrun
from autoscout.targets.target import Target
from kb.records import AutoscoutError


def render(target: Target, launch: Launch, form: str) -> str:
    """The launch as text in a format. Errors: AutoscoutError (exit 2) if the target does not have this format."""
    known = formats(target)
    if form not in known:
        raise AutoscoutError(f"--format '{form}'{nearest_name(form, known)}", 2)
    return known[form](launch)


def formats(target: Target) -> Mapping[str, Callable[[Launch], str]]:
    return {"command": command, "json": as_json, "yaml": yaml, "slurm": slurm, **target.formats()}


def as_json(launch: Launch) -> str:
    return json.dumps(msgspec.to_builtins(launch), indent=2)


def yaml(launch: Launch) -> str:
    """A launch as YAML. Scalars are written as JSON, which is valid YAML."""
    lines = [*heading(launch), "environment:"]
    lines += [f"  {name}: {yaml_text.emitted(value)}" for name, value in launch.environment.items()] or ["  {}"]
    lines.append("arguments:")
    lines += [f"  {flag.removeprefix('--')}: {yaml_text.emitted(value)}" for flag, value in launch.arguments.items()]
    if launch.files:
        lines += [
            "files:",
            *(f"  {yaml_text.emitted(name)}: {yaml_text.emitted(text)}" for name, text in launch.files.items()),
        ]
    return "\n".join(lines) + "\n"


def command(launch: Launch) -> str:
    """A shell command; for several nodes, it has to be run once on each, with HEAD and NODE set."""
    lines = [*heading(launch), *exports(launch)]
    if not launch.ranks:
        return "\n".join([*lines, program_lines(launch)]) + "\n"
    if launch.nodes == 1:
        return "\n".join([*lines, torchrun(launch, str(launch.ranks[0]), [])]) + "\n"
    lines.append(
        f"# on each of the {launch.nodes} nodes: set HEAD to the first node's address, and NODE to the node's "
        "number (0, 1, …)"
    )
    lines += comments(f"measured on hosts {', '.join(launch.hosts)}, in this order" if launch.hosts else "")
    counts = str(launch.ranks[0])
    if launch.per_node is None:
        lines.append(f"RANKS=({' '.join(map(str, launch.ranks))})  # ranks of each node")
        counts = '"${RANKS[$NODE]}"'
    return "\n".join([*lines, torchrun(launch, counts, ["--node-rank", '"$NODE"', *meeting('"$HEAD"')])]) + "\n"


def slurm(launch: Launch) -> str:
    """A Slurm script with one task per node, which starts the node's ranks."""
    lines = batch_head(launch)
    if not launch.ranks:
        return "\n".join([*lines, f"{srun(launch)} {program_lines(launch)}"]) + "\n"
    lines.append(f"export HEAD={first_node(launch)}")
    counts = str(launch.ranks[0])
    if launch.per_node is None:
        lines.append(
            f"export RANKS={shlex.quote(' '.join(map(str, launch.ranks)))}  # ranks of each node, in Slurm's order"
        )
        counts = "$(echo $RANKS | cut -d ' ' -f $((SLURM_PROCID + 1)))"
    run = torchrun(launch, counts, ["--node-rank", "$SLURM_PROCID", *meeting("$HEAD")])
    return "\n".join([*lines, f"{srun(launch)} bash -c {shlex.quote(run)}"]) + "\n"
