"""Interprets the words and error messages by which tables and tools state how a run ended."""

import re

from kb.records import Status

NOT_ENDED = ("running", "pending", "queued", "scheduled", "waiting", "paused", "pruned", "preempted")
ENDED = ("complete", "completed", "finished", "done")
WORDS: dict[str, Status] = {
    **dict.fromkeys(("ok", "success", "successful", "succeeded", "pass", "passed", *ENDED), "ok"),
    **dict.fromkeys(("true", "0", "no error"), "ok"),
    **dict.fromkeys(("oom", "out of memory", "out_of_memory", "outofmemory"), "oom"),
    **dict.fromkeys(("fail", "failed", "failure", "error", "crash", "crashed", "exception", "false", "1"), "error"),
    **dict.fromkeys(("timeout", "timed out", "timed_out", "hang"), "timeout"),
    **dict.fromkeys(("invalid", "infeasible", "refused"), "invalid"),
    "wrong": "wrong",
    **dict.fromkeys(("killed", "aborted", "canceled", "cancelled"), "killed"),
    "infrastructure": "infrastructure",
}
_OUT_OF_MEMORY = re.compile(
    r"(?<![a-z])oom(?![a-z])|oom[\s_-]?kill|out[\s_-]*of[\s_-]*(\w+[\s_-]+)?memory|bad_alloc", re.IGNORECASE
)
_TIMED_OUT = re.compile(r"\btime(d|s)?[\s_-]*out", re.IGNORECASE)
_FAILED = re.compile(
    r"(?<!no )(?<!0 )(?<!without )(error|exception|fail|crash)|\bexit(ed)?\W+((with|code|status)\W+)*-?[1-9]"
    r"|\b(abort|traceback|core dumped|sig(kill|term|segv|abrt|bus))",
    re.IGNORECASE,
)
_CAUSES: dict[Status, re.Pattern[str]] = {"oom": _OUT_OF_MEMORY, "timeout": _TIMED_OUT, "error": _FAILED}


def outcome(text: str) -> Status | None:
    """Returns the status that a word or message states; None if it states none. A message that names a cause, such as
    "FAIL (OOM)", has the status of the cause."""
    word = text.strip().lower().removesuffix(".0")
    if word in WORDS:
        return WORDS[word]
    return next((status for status, pattern in _CAUSES.items() if pattern.search(text)), None)
