"""A user's decisions about warm starts: which past jobs may contribute knowledge to which job.

They are stored as lines of a file next to the knowledge base; the last decision about a pair of jobs counts.
"""

import os
from pathlib import Path

import msgspec

from kb import dates
from kb.records import AutoscoutError


class AcceptedChoice(msgspec.Struct, frozen=True, kw_only=True):
    job: str  # id of the job being started
    there: str  # id of the past job that was offered as a source of knowledge
    accepted: bool
    by: str = ""
    at: float = 0.0


def file_of(kb: Path) -> Path:
    return kb.with_name("warm-choices.jsonl")


def choose(kb: Path, job: str, there: str, accepted: bool, by: str = "") -> None:
    """Appends a decision to the file. Errors: AutoscoutError when it cannot be written."""
    line = msgspec.json.encode(AcceptedChoice(job=job, there=there, accepted=accepted, by=by, at=dates.now())) + b"\n"
    try:
        file = os.open(file_of(kb), os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o666)
        try:
            os.write(file, line)
        finally:
            os.close(file)
    except OSError as error:
        raise AutoscoutError(f"{file_of(kb)}: cannot save the decision on this past job ({error.strerror})") from error


def choices(kb: Path, job: str) -> dict[str, bool]:
    """Id of a past job → whether it was accepted for `job`; past jobs without a decision are absent."""
    try:
        lines = file_of(kb).read_bytes().splitlines()
    except OSError:
        return {}
    found = {}
    for line in lines:
        try:
            choice = msgspec.json.decode(line, type=AcceptedChoice)
        except (msgspec.DecodeError, msgspec.ValidationError):
            continue  # an incomplete line, whose writer was killed
        if choice.job == job:
            found[choice.there] = choice.accepted
    return found
