"""The devices that a launch line asks for: by its launcher's flags, the configuration file of `accelerate launch`, the
host file of `deepspeed`. Files are looked for in the working folder, where the line would be run."""

import re
from pathlib import Path
from typing import NamedTuple

from autoscout.cluster import hostfile
from autoscout.targets.command.flags import said
from kb.records import AutoscoutError

_PER_NODE = ("--nproc-per-node", "--nproc_per_node", "--ntasks-per-node", "--gpus-per-node", "--num_gpus")
_NODES = ("--nnodes", "--nodes", "-N", "--num_nodes", "--num_machines")
_TOTAL = ("--num_processes", "--num-processes", "-np")
_DEFAULT_HOSTS = "/job/hostfile"  # DeepSpeed's, where no other is named


class Devices(NamedTuple):
    """`counts`: the devices of each node, 0 where the line does not say. `hosts`: the host file of a line that
    DeepSpeed starts on several, with the `include` or `exclude` of its flags. `notes`: what could not be read."""

    counts: list[int]
    hosts: str = ""
    include: str = ""
    exclude: str = ""
    notes: tuple[str, ...] = ()


def devices(words: list[str]) -> Devices:
    before = words[: next((i for i, word in enumerate(words) if word.endswith(".py")), len(words))]
    launchers = {Path(word).name for word in before}
    if "deepspeed" in launchers:
        return _of_deepspeed(before)
    of_file, notes = _of_accelerate(before) if "accelerate" in launchers else ({}, ())
    nodes = _first(words, _NODES) or of_file.get("num_machines", 1)
    total = _first(words, _TOTAL) or of_file.get("num_processes", 0)
    return Devices([_first(words, _PER_NODE) or total // nodes] * nodes, notes=notes)


def _of_deepspeed(words: list[str]) -> Devices:
    """As its runner counts: the first hosts of its file, and the first devices of each."""
    nodes, each = _first(words, _NODES), _first(words, _PER_NODE)
    named = said(words, "--hostfile") or said(words, "-H")
    include, exclude = (str(said(words, flag) or "") for flag in ("--include", "--exclude"))
    if not named and nodes < 2:  # this machine, of which localhost:0,1 may be a part
        return Devices([each or include.count(",") + (":" in include)])
    path = Path(str(named or _DEFAULT_HOSTS)).absolute()
    try:
        slots = hostfile.part(hostfile.read(path), include, exclude).values()
        counts, notes = [min(len(left), each or len(left)) for left in slots][: nodes or None], ()
    except AutoscoutError as error:
        counts = [each] * max(nodes, 1)
        notes = (f"cluster: correct its nodes, since the line's hosts cannot be read ({error})",)
    return Devices(counts, str(path), include, exclude, notes)


def _of_accelerate(words: list[str]) -> tuple[dict[str, int], tuple[str, ...]]:
    """(the numbers of its configuration file, YAML or JSON, notes)"""
    name = said(words, "--config_file") or said(words, "--config-file")
    if not name:
        return {}, ()
    try:
        text = Path(str(name)).read_text()
    except (OSError, UnicodeDecodeError):
        return {}, (f"cluster: correct its nodes; {name}, which says how many processes run, cannot be read here",)
    numbers = re.findall(
        r"""(?:^|[{,])\s*["']?(num_processes|num_machines)["']?\s*:\s*["']?(\d+)""", text, re.MULTILINE
    )
    return {key: int(number) for key, number in numbers if int(number)}, ()


def _first(words: list[str], flags: tuple[str, ...]) -> int:
    """The positive number that the first of these flags says; 0 if none does."""
    numbers = (said(words, flag) for flag in flags)
    return next((n for n in numbers if isinstance(n, int) and not isinstance(n, bool) and n > 0), 0)
