"""The parts of a line that DeepSpeed's script runs by: what it runs in (a container, a binding of processors), its
launcher, which ours replaces, and the script with its arguments."""

import re
import shlex
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

from autoscout.line.containers import CONTAINERS, ENVIRONMENTS, RUN, repeatable
from kb.records import AutoscoutError

_LAUNCHERS = ("deepspeed", "torchrun", "accelerate", "python", "python3")
_RUNS_IN = (*ENVIRONMENTS, "numactl", "nsys", "env")
_STARTS_RANKS = ("srun", "mpirun", "mpiexec")
_MODULE = re.compile(r"[A-Za-z_]\w*(\.\w+)*")
_OF_A_LAUNCHER = ("torch.distributed.", "accelerate.commands.", "deepspeed.launcher.")
_GIVEN = re.compile(r"[A-Za-z_]\w*=.*", re.DOTALL)


class LineParts(NamedTuple):
    """`before`: the words before the launcher. `ranks_by_launcher`: the launcher starts a node's ranks, not srun."""

    before: list[str]
    ranks_by_launcher: bool
    script: list[str]

    @property
    def ranks_by_slurm(self) -> bool:
        """Whether its script takes its place from Slurm's variables, which torchrun would not give it."""
        return not self.ranks_by_launcher and [Path(word).name for word in self.before[:1]] == ["srun"]


def parts(line: list[str]) -> LineParts:
    """`line`: a launch line, or the script and its arguments alone. Errors: AutoscoutError (exit 2) for a launcher
    without a script."""
    names = [Path(word).name for word in line]
    script = next((i for i in range(len(line)) if _begins(line, i, {*names[:i]})), None)
    if script is None:
        if names[0] in (*_LAUNCHERS, *_STARTS_RANKS, *_RUNS_IN):
            raise AutoscoutError(f"--script '{shlex.join(line)}' names no Python script", 2)
        return LineParts([], True, line)
    launcher = max((i for i in range(script) if names[i] in _LAUNCHERS), default=script)
    starter = line[launcher:script]
    by_launcher = any(w.startswith(_OF_A_LAUNCHER) or Path(w).name in _LAUNCHERS[:3] for w in starter)
    words = line[script:]
    return LineParts(line[:launcher], by_launcher, ["-m", *words[1:]] if words[0] == "--module" else words)


def runs_in(found: LineParts, nodes: int) -> tuple[list[str], list[str]]:
    """(what goes before the command of experiments, notes)"""
    before = found.before
    start = 0
    if before and Path(before[0]).name in _STARTS_RANKS:
        start = next((i for i, word in enumerate(before) if Path(word).name in _RUNS_IN), len(before))
    outer, inner = before[:start], before[start:]
    said = " ".join(_of_container(outer))
    if said and nodes > 1:
        return inner, [
            f"launch.command_prefix: experiments do not run in srun's container ({said}); name here what enters it on "
            f"a node, such as ['apptainer', 'exec', '--nv', 'IMAGE']"
        ]
    if inner and Path(inner[0]).name in RUN:
        inner = repeatable(inner)
    given = _variables_of(outer)
    prefix = [*(outer if said else ["env", *given] if given else []), *inner]
    if not (said or {Path(word).name for word in inner[:1]} & {*CONTAINERS}):
        return prefix, []
    handed = ", and variables handed on by -e" if Path(prefix[0]).name in RUN else ""
    return prefix, [
        f"launch.command_prefix: inside, this folder and the experiments' have to be mounted under the same names "
        f"(they lie beside the knowledge base, --kb){handed}"
    ]


def _begins(line: list[str], i: int, before: set[str]) -> bool:
    """Whether the script, or a launcher's -m and its module, begins with this word."""
    if line[i] in ("-m", "--module") and before & {*_LAUNCHERS} and i + 1 < len(line):
        return bool(_MODULE.fullmatch(line[i + 1])) and not line[i + 1].startswith(_OF_A_LAUNCHER)
    return line[i].endswith(".py")


def _variables_of(words: list[str]) -> list[str]:
    """NAME=VALUE of srun's --export and mpirun's -x."""
    told = [word.removeprefix("--export=") for word in words if word.startswith("--export=")]
    told += [after for word, after in pairwise(words) if word in ("--export", "-x")]
    return [part for text in told for part in text.split(",") if _GIVEN.fullmatch(part)]


def _of_container(words: list[str]) -> list[str]:
    """srun's flags of a container, with their values."""
    found: list[str] = []
    for i, word in enumerate(words):
        follows = found and found[-1] is words[i - 1] and "=" not in found[-1] and not word.startswith("-")
        if word.startswith("--container-") or (follows and found[-1].startswith("--container-")):
            found.append(word)
    return found
