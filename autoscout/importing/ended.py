"""Decides how the run of a row ended: by its status, its error message, columns such as `failed`, and words in place of
a metric, such as OOM."""

import re
from collections.abc import Iterable
from typing import NamedTuple

from autoscout.job.outcome_words import ENDED, NOT_ENDED, WORDS, outcome
from autoscout.running.symptoms import find
from autoscout.targets.found import Cell
from kb.records import Status

_YES, _NO = ("true", "yes"), ("false", "no")
_NUMBER = re.compile(r"[-+\d.,\s]*")
# A column with one of these names may contain 1 and 0. In others, such as `timeout`, a number may be a setting.
_SWITCHES = ("ok", "oom", "error")

End = tuple[Status, str]  # (status, evidence)


class Flag(NamedTuple):
    """A cell of a column such as `failed`. `status`: what yes states; `counts`: whether its numbers are counts."""

    column: str
    status: Status
    counts: bool
    cell: Cell


def flagged(name: str) -> Status | None:
    """Returns the status that a column with this (normalized) name states if it contains yes or no; None if none. (A
    column such as `done` tells which report is the last, as those of Ray Tune do, and no failure.)"""
    return WORDS.get(name) if name.isidentifier() and name not in ENDED else None


def end_of(status: str, evidence: str, flags: Iterable[Flag], texts: Iterable[str]) -> End:
    """Returns how a run ended. `texts`: those in columns of metrics. Errors: ValueError for a run that has not ended,
    and for an unknown status."""
    known = _status(status)
    word = evidence.strip().lower()
    if known == "ok" and not status and word not in _NO and not _NUMBER.fullmatch(evidence):
        known = "error" if word in _YES else outcome(evidence) or "ok"
    if known == "ok":
        known, evidence = _by_flags(flags) or _by_texts(texts) or (known, evidence)
    text = evidence or (status if known != "ok" and status.strip().lower() not in WORDS else "")
    if known == "error":  # the message may state the cause
        found = find(text)
        known = found.symptom.status if found else outcome(text) or known
        known = "error" if known == "ok" else known
    return known, text


def _status(text: str) -> Status:
    word = text.strip().lower()
    if word in NOT_ENDED:
        raise ValueError(f"the run is {word}, so its result is not complete")
    if not word:
        return "ok"
    known = outcome(text)
    if known is None:
        raise ValueError(
            f"the row's status '{text}' is unknown; write ok, oom, timeout, killed, invalid or error, or ignore the "
            "column with --map COLUMN=-"
        )
    return known


def _by_flags(flags: Iterable[Flag]) -> End | None:
    for column, status, counts, cell in flags:
        word = str(cell).strip().lower().removesuffix(".0")
        numbers = status in _SWITCHES and not counts
        yes, no = word in _YES or (numbers and word == "1"), word in _NO or (numbers and word == "0")
        if status == "ok" and no:
            return "error", f"{column} is {cell}"
        if status != "ok" and yes:
            return status, f"{column} is {cell}"
    return None


def _by_texts(texts: Iterable[str]) -> End | None:
    for text in texts:
        known = outcome(text)
        if known and known != "ok":
            return known, text
    return None
