"""Splits the launch line of a DeepSpeed script into its environment (a container, or processor binding), its launcher
(which AutoScout replaces), and the script with its arguments."""

import re
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

from autoscout.line.containers import CONTAINERS, ENVIRONMENTS, RUN, repeatable
from autoscout.line.launch_line import Line
from autoscout.line.shell_commands import passed_on
from kb.records import AutoscoutError

_LAUNCHERS = ("deepspeed", "torchrun", "accelerate", "python", "python3")
_RUNS_IN = (*ENVIRONMENTS, "numactl", "nsys", "env")
_STARTS_RANKS = ("srun", "mpirun", "mpiexec")
_MODULE = re.compile(r"[A-Za-z_]\w*(\.\w+)*")
_OF_A_LAUNCHER = ("torch.distributed.", "accelerate.commands.", "deepspeed.launcher.")
_GIVEN = re.compile(r"[A-Za-z_]\w*=.*", re.DOTALL)


class LineParts(NamedTuple):
    """The parts of a launch line. `before`: the words before the launcher. `ranks_by_launcher`: whether the launcher,
    not srun, starts the ranks."""

    before: Line
    ranks_by_launcher: bool
    script: Line

    @property
    def ranks_by_slurm(self) -> bool:
        """Whether the script gets its rank from Slurm's variables. (torchrun does not set these.)"""
        return not self.ranks_by_launcher and self.before.first == "srun"


def parts(line: Line) -> LineParts:
    """Splits a launch line, or a script with arguments. Errors: AutoscoutError (exit 2) for a launcher without a
    script."""
    names = line.names
    script = next((i for i in range(len(names)) if _begins(line, i)), None)
    if script is None:
        if line.first in (*_LAUNCHERS, *_STARTS_RANKS, *_RUNS_IN):
            raise AutoscoutError(f"--script '{line}' names no Python script", 2)
        return LineParts(line.of(()), True, line)
    launcher = max((i for i in range(script) if names[i] in _LAUNCHERS), default=script)
    starter = line.words[launcher:script]
    by_launcher = any(w.startswith(_OF_A_LAUNCHER) or Path(w).name in _LAUNCHERS[:3] for w in starter)
    first, *others = line.words[script:]
    own = line.of(["-m" if first == "--module" else first, *others])
    return LineParts(line.of(map(passed_on, line.words[:launcher])), by_launcher, own)


def runs_in(found: LineParts, nodes: int) -> tuple[list[str], list[str]]:
    """Returns (words that experiments put before the command, such as those that enter a container; notes)."""
    before = found.before
    start = 0
    if before.first in _STARTS_RANKS:
        start = next((i for i, name in enumerate(before.names) if name in _RUNS_IN), len(before.words))
    outer, inner = before.of(before.words[:start]), before.of(before.words[start:])
    container = " ".join(_of_container(outer))
    if container and nodes > 1:
        return [*inner.words], [
            f"launch.command_prefix: experiments do not run in srun's container ({container}); write the command "
            "that enters the container on a node, such as ['apptainer', 'exec', '--nv', 'IMAGE']"
        ]
    if inner.first in RUN:
        inner = repeatable(inner)
    given = _variables_of(outer)
    prefix = [*(outer.words if container else ["env", *given] if given else []), *inner.words]
    if not (container or inner.first in CONTAINERS):
        return prefix, []
    handed = ", and environment variables passed with -e" if Path(prefix[0]).name in RUN else ""
    return prefix, [
        "launch.command_prefix: inside the container, this folder and the experiments' folders (they are under --kb) "
        f"must be mounted at the same paths{handed}"
    ]


def _begins(line: Line, i: int) -> bool:
    """Whether the script, or a launcher's -m with its module, starts at this index."""
    word, after = line.words[i], "".join(line.words[i + 1 : i + 2])
    if word in ("-m", "--module") and {*line.names[:i]} & {*_LAUNCHERS} and after:
        return bool(_MODULE.fullmatch(after)) and not after.startswith(_OF_A_LAUNCHER)
    return word.endswith(".py")


def _variables_of(line: Line) -> list[str]:
    """Returns NAME=VALUE for each variable in srun's --export or mpirun's -x."""
    exports = [word.removeprefix("--export=") for word in line.words if word.startswith("--export=")]
    exports += [after for word, after in pairwise(line.words) if word in ("--export", "-x")]
    return [part for text in exports for part in text.split(",") if _GIVEN.fullmatch(part)]


def _of_container(line: Line) -> list[str]:
    """Returns srun's flags for a container, with their values."""
    found: list[str] = []
    for i, word in enumerate(line.words):
        follows = found and found[-1] is line.words[i - 1] and "=" not in found[-1] and not word.startswith("-")
        if word.startswith("--container-") or (follows and found[-1].startswith("--container-")):
            found.append(word)
    return found
