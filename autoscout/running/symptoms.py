"""Recognizes failures by the text of a log: out of memory, a broken machine, or a hung collective.

The patterns are in failures.toml, with remedies for faults of the machine.
"""

import re
import tomllib
from collections.abc import Iterable, Sequence
from functools import cache
from importlib.resources import files
from typing import Literal

import msgspec

from kb.records import Status


class Symptom(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A kind of failure. `about`: a short description for people; `of`: where the failure comes from; `mend`: the
    remedy; `signs`: regular expressions for lines in a log that show this failure, if there are any."""

    status: Status
    about: str
    of: Literal["", "scheduler", "machine"] = ""
    mend: str = ""
    signs: tuple[str, ...] = ()


TABLES = tomllib.loads(files("autoscout.running").joinpath("failures.toml").read_text(encoding="utf-8"))
SYMPTOM = msgspec.convert(TABLES["symptom"], dict[str, Symptom])
SYMPTOMS = tuple(symptom for symptom in SYMPTOM.values() if symptom.signs)
MACHINE = tuple(symptom for symptom in SYMPTOMS if symptom.of == "machine")
SCHEDULER = tuple(symptom for symptom in SYMPTOMS if symptom.of == "scheduler")
SEAM, IMPORTS, STARTING, OUT_OF_MEMORY, SHARED_MEMORY, BROKEN_GPU, BY_OTHERS = (
    SYMPTOM[name]
    for name in ("seam", "imports", "starting", "out_of_memory", "shared_memory", "broken_gpu", "by_others")
)
_HUNG = re.compile(r"Watchdog caught collective operation timeout[^\n]*?OpType=(\w+)")
_WAITED = re.compile(
    r"Heartbeat monitor timed out|watchdog got stuck|NCCL operations have failed or timed out|Timeout at NCCL work"
    r"|[mM]onitoredBarrier[^\n]*timed? ?out"
)
_WARNS = re.compile(r"\bWARNING\b")
_SIZE = r"([\d.]+) ([KMG]i)B"
_FULL = re.compile(
    rf"Tried to allocate {_SIZE}.*?total capacity of {_SIZE} of which {_SIZE} is free"
    rf".*?this process has {_SIZE} memory in use",
    re.DOTALL,
)
_STARTED = re.compile(r"Free memory on device \(([\d.]+)/([\d.]+) GiB\)")
_GIB = {"Ki": 2.0**-20, "Mi": 2.0**-10, "Gi": 1.0}
_SPARE_GIB = 1.5  # memory for the CUDA context, NCCL and fragmentation of the allocator


class Found(msgspec.Struct, frozen=True):
    symptom: Symptom
    line: str  # the line that matched


def find(text: str, among: Sequence[Symptom] = SYMPTOMS) -> Found | None:
    """The symptom that appears first in the text; of several at the same position, the first in SYMPTOMS. Lines of a
    logger with the level WARNING are ignored, since the program continued."""
    first: tuple[int, Symptom, re.Match[str]] | None = None
    for symptom, sign in zip(SYMPTOMS, _signs(), strict=True):
        matches = sign.finditer(text) if symptom in among else ()
        match = next((m for m in matches if not _WARNS.search(_line(text, m))), None)
        if match and (first is None or match.start() < first[0]):
            first = match.start(), symptom, match
    return Found(first[1], _line(text, first[2])) if first else None


@cache
def _signs() -> list[re.Pattern[str]]:
    return [re.compile("|".join(symptom.signs)) for symptom in SYMPTOMS]


def _line(text: str, match: re.Match[str]) -> str:
    begin, end = text.rfind("\n", 0, match.start()) + 1, text.find("\n", match.end())
    return text[begin : end if end >= 0 else None].strip()


def hung(text: str) -> str:
    """The collective that a watchdog aborted, such as ALLREDUCE; "" if there is none."""
    match = _HUNG.search(text)
    if match:
        return match[1]
    return "a collective" if _WAITED.search(text) else ""


def taken_by_others(text: str, memory: dict[str, float]) -> float:
    """GiB of the device that other processes used, if the run would have had enough memory without them; otherwise 0.

    Computed from PyTorch's message (memory in use in total and by this process, which is right even in a container), or
    from `memory`: free_gib before the rank's first allocation, total_gib and peak reserved_gib.
    """
    if started := _STARTED.search(text):  # vLLM's message at start-up, when it finds memory in use on the device
        free, total = float(started[1]), float(started[2])
        return total - free if free < 0.9 * total else 0.0
    if match := _FULL.search(text):
        tried, total, free, own = (float(match[i]) * _GIB[match[i + 1]] for i in (1, 3, 5, 7))
        others = total - free - own
        return others if others > _SPARE_GIB and own + tried + _SPARE_GIB < total else 0.0
    if not {"free_gib", "total_gib", "reserved_gib"} <= memory.keys():
        return 0.0
    free, total, needed = memory["free_gib"], memory["total_gib"], memory["reserved_gib"] + _SPARE_GIB
    return total - free if total - free > _SPARE_GIB and free <= needed < total else 0.0


def sentence(symptom: Symptom, cause: str) -> str:
    whose = "AutoScout" if symptom is SEAM else "the machine"
    return f"{whose}, not the configuration: {symptom.about} ({cause}); {symptom.mend}"


def named(evidence: str) -> Symptom | None:
    """The infrastructure symptom that an experiment's evidence mentions."""
    return next((s for s in SYMPTOM.values() if s.status == "infrastructure" and s.about in evidence), None)


def stop(evidences: Iterable[tuple[str, str]]) -> str:
    """The reason to stop a session (two different configurations failed because of the same fault of the machine); ""
    to continue. `evidences`: (configuration id, evidence) of failures since the last experiment that ran."""
    met: dict[str, set[str]] = {}
    for configuration, evidence in evidences:
        symptom = named(evidence)
        about = symptom.about if symptom else "the machine failed"
        met.setdefault(about, set()).add(configuration)
        if len(met[about]) > 1:
            mend = f": {symptom.mend}" if symptom else ""
            return (
                f"two configurations failed because of the same problem ({about}), so the session "
                f"stops{mend}. The last failure: {evidence}"
            )
    return ""
