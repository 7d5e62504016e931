"""Reads the Slurm allocation that we run in from its environment alone, since a container may lack `scontrol`."""

import re
from collections.abc import Mapping

from kb.records import AutoscoutError

_GROUP = re.compile(r"\[([^\]]*)\]")
_COUNT = re.compile(r"(\d+)(?:\(x(\d+)\))?")
_MOST = 100_000  # largest number of hosts; a longer list is treated as a mistake


def nodes(words: str) -> list[str]:
    """Host names from Slurm's notation: "n[01-03,7]-ib,gpu1" → n01-ib, n02-ib, n03-ib, n7-ib, gpu1. Errors:
    AutoscoutError (exit 2)."""
    found: list[str] = []
    for word in re.split(r",(?![^\[]*\])", words.strip()):
        found += _expanded(word, words)
    if not all(re.fullmatch(r"[\w.-]+", name) for name in found) or len(set(found)) != len(found):
        raise AutoscoutError(f"SLURM_JOB_NODELIST = '{words[:80]}' is not a list of different hosts", 2)
    return found


def allocation(environ: Mapping[str, str]) -> dict[str, list[str]]:
    """Host → names for CUDA_VISIBLE_DEVICES, or indices of CPU ranks. Errors: AutoscoutError (exit 2) outside an
    allocation, or if its variables contradict each other."""
    words = environ.get("SLURM_JOB_NODELIST") or environ.get("SLURM_NODELIST", "")
    if not words:
        raise AutoscoutError(
            'cluster.hosts = "slurm": not a Slurm allocation; start it with `salloc -N NODES autoscout tune …`, '
            "or submit what `autoscout tune JOB.toml --as slurm` prints",
            2,
        )
    hosts = nodes(words)
    of_gpus = environ.get("SLURM_GPUS_ON_NODE") or str(len(_listed(environ.get("SLURM_JOB_GPUS", ""))) or "")
    listed = of_gpus or environ.get("SLURM_JOB_CPUS_PER_NODE") or environ.get("SLURM_TASKS_PER_NODE", "1")
    counts = [int(of_gpus)] * len(hosts) if of_gpus.isdecimal() else _counts(listed)
    if len(counts) != len(hosts):
        raise AutoscoutError(f"the Slurm allocation names {len(hosts)} hosts, but '{listed}' counts {len(counts)}", 2)
    given = _listed(environ.get("SLURM_JOB_GPUS", "")) if len(hosts) == 1 else []
    found = {host: [str(i) for i in range(count)] for host, count in zip(hosts, counts, strict=True)}
    return {hosts[0]: given} if given else found


def _expanded(word: str, words: str) -> list[str]:
    group = _GROUP.search(word)
    if group is None:
        return [word]
    found: list[str] = []
    for piece in group[1].split(","):
        first, dash, last = piece.partition("-")
        if not (first.isdecimal() and (last.isdecimal() or not dash)):
            raise AutoscoutError(f"SLURM_JOB_NODELIST = '{words[:80]}': '{piece}' is neither a number nor a range", 2)
        numbers = range(int(first), int(last or first) + 1)
        if len(numbers) > _MOST:
            raise AutoscoutError(f"SLURM_JOB_NODELIST = '{words[:80]}' names {len(numbers)} hosts", 2)
        for number in numbers:
            tail = _expanded(word[group.end() :], words)
            found += [f"{word[: group.start()]}{number:0{len(first)}d}{rest}" for rest in tail]
    return found


def _counts(text: str) -> list[int]:
    """Parses numbers with repetitions: "2(x2),4" → [2, 2, 4]"""
    found: list[int] = []
    for piece in text.split(","):
        parts = _COUNT.fullmatch(piece.strip())
        if parts is None:
            raise AutoscoutError(f"the Slurm allocation's '{text[:80]}' is not a list of counts, such as 4(x2),2", 2)
        found += [int(parts[1])] * int(parts[2] or 1)
    return found


def _listed(words: str) -> list[str]:
    """Parses numbers with ranges: "0,2-3" → 0, 2, 3"""
    found: list[str] = []
    for piece in filter(None, words.split(",")):
        first, dash, last = piece.partition("-")
        if dash and first.isdecimal() and last.isdecimal():
            found += [str(i) for i in range(int(first), int(last) + 1)]
        else:
            found.append(piece)
    return found
