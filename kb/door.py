"""Checks data from outside (journals, imports, command lines; for shared folders, see kb/sharing/arrivals.py).

Names become parts of paths, and text reaches terminals and scripts, so names are restricted and control characters are
refused. Data that a later version of AutoScout wrote cannot be checked, so it is refused until this version is
upgraded.
"""

import json
import math
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec

from kb import secrets
from kb.records import RECORDS, AutoscoutError, Configuration, Job, Measurement

_NAME = re.compile(r"[A-Za-z0-9][\w.-]{0,199}", re.ASCII)
_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029]")
_CONTROL_IN_TEXT = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")  # evidence may contain line ends and tabs
_ESCAPED = re.compile(  # control characters, as JSON escapes or as bytes; also escaped backslashes, which are kept
    rb"\\\\|\\u00(?:0[0-8b-fB-F]|1[0-9a-fA-F]|7[fF]|[89][0-9a-fA-F])|\\[bfr]|[\x00-\x08\x0b-\x1f\x7f]|\xc2[\x80-\x9f]"
)
_NAMED = re.compile(rb'"(?:name|preset|session|host)":"(?:[^"\\]|\\.)*"')  # JSON fields whose values must be one line
_BREAK = re.compile(rb"\\\\|\\[nt]")
_ADDRESS = re.compile(r"[\w.+-]+@[\w-]+\.[\w.]+|\w+://[^\s\"']+|\b\d{1,3}(?:\.\d{1,3}){3}:\d+\b")
_PATH = re.compile(r"(?<![\w./…])((?:~|/[^\s/'\":,;]+)(?:/[^\s/'\":,;]+)*?)((?:/[^\s/'\":,;]+){1,2})(?![^\s'\":,;)])")
_SHOWN = 60  # number of characters of a rejected value in an error


LATEST = 4.0e9  # the latest accepted unix time of a measurement (in 2096)


class Refused(AutoscoutError):
    """The data is refused; the sentence gives the reason."""


class Newer(Refused):
    """The data is refused because a later AutoScout wrote it."""


def name(text: str, what: str) -> str:
    """Returns `text` if it can name a session, a job or an import. Errors: Refused (exit 2)."""
    if not _NAME.fullmatch(text):
        raise Refused(
            f"{shown(text)} cannot be the name of a{'n' * (what[0] in 'aeiou')} {what}: it may have at most 200 ASCII "
            f"letters, digits, '_', '.' and '-', and must begin with a letter or a digit",
            2,
        )
    return text


def shown(text: str) -> str:
    """Untrusted text for use in a sentence: quoted, shortened, with control characters escaped."""
    return repr(text if len(text) <= _SHOWN else text[: _SHOWN - 1] + "…")


def utf8(path: Path) -> Path:
    """Returns `path` if its name is valid UTF-8, which DuckDB requires. Errors: Refused (exit 2)."""
    try:
        str(path).encode()
    except UnicodeEncodeError:
        raise Refused(
            f"{path}: the file name is not UTF-8, which DuckDB requires; rename the file, or pass a different one", 2
        ) from None
    return path


def one_line(text: str) -> bool:
    """Whether `text` is safe in scripts and terminals, that is, contains no control characters."""
    return not _CONTROL.search(text)


def plain(text: str) -> str:
    """`text` as one line without control characters, for comments in scripts and for terminals."""
    return _CONTROL.sub(" ", text)


def plain_json(text: bytes) -> bytes:
    """Replaces control characters in a JSON document's strings by spaces. Line ends and tabs are only replaced in
    names."""

    def spaced(found: re.Match[bytes]) -> bytes:
        return found[0] if found[0] == b"\\\\" else b" "

    return _ESCAPED.sub(spaced, _NAMED.sub(lambda found: _BREAK.sub(spaced, found[0]), text))


def parsed_json(text: str | bytes, pairs: Callable[[list[tuple[str, Any]]], Any] | None = None) -> Any:
    """Parses JSON that a user wrote; `pairs`: converts the (key, value) pairs of an object. Errors: ValueError, also if
    it is nested too deeply."""
    try:
        return json.loads(text, object_pairs_hook=pairs)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None


def private(text: str) -> str:
    """What kind of private text `text` looks like (a path, an address, a key); "" if none."""
    if text.startswith(("/", "~", "\\\\", "file:")) or text[1:3] == ":\\":
        return "paths"
    if secrets.redacted(text) != text:
        return "keys"
    return "addresses" if _ADDRESS.search(text) else ""


def without_places(text: str) -> str:
    """The evidence of a failure without private text: paths are shortened to their last two parts; keys and addresses
    are removed."""
    text = _ADDRESS.sub("…", secrets.redacted(text))
    return _PATH.sub(lambda found: f"…{found[2]}", text)


def job(stored: str | bytes) -> Job:
    """Parses a job from the knowledge base. Errors: Newer if a later AutoScout wrote it, Refused if it is not a job."""
    try:
        fields = msgspec.json.decode(stored)
        version = fields.pop("records", 0)
    except (msgspec.DecodeError, AttributeError, TypeError, RecursionError) as error:  # not JSON, or not an object
        raise Refused(f"a job cannot be read ({error})") from error
    try:
        return msgspec.convert(fields, Job)
    except msgspec.ValidationError as error:
        if isinstance(version, int) and version > RECORDS:
            raise Newer(
                f"a newer AutoScout wrote the job (record format {version}, this one reads {RECORDS}); "
                "upgrade AutoScout"
            ) from error
        raise Refused(f"a job cannot be read ({error})") from error


def check_job(job: Job) -> None:
    """Errors: Refused (exit 2) if the name of the job or of its target is invalid."""
    name(job.name, "job")
    name(job.target, "target")


def cleaned(measurement: Measurement) -> Measurement:
    """Our own measurement (from an experiment or an import), with control characters, private paths and keys
    removed."""
    environment = {plain(key): plain(value) for key, value in secrets.without(measurement.environment).items()}
    evidence = without_places(_CONTROL_IN_TEXT.sub(" ", measurement.evidence))
    return msgspec.structs.replace(measurement, evidence=evidence, environment=environment)


def check_configuration(configuration: Configuration) -> None:
    """Errors: Refused if a knob or a value contains control characters, which could break a script or a terminal."""
    for knob, value in configuration.knobs.items():
        for part in (knob, value):
            if isinstance(part, str) and _CONTROL.search(part):
                raise Refused(f"the knob {shown(knob)} contains a control character")


def check_measurement(measurement: Measurement) -> None:
    """Errors: Refused for a control character in a text, a number that is not finite, an impossible cost or time."""
    check_configuration(measurement.configuration)
    m = measurement
    environment = (part for pair in m.environment.items() for part in pair)
    names = (*m.metrics, *m.conditions, *m.per_rank, *m.rank_devices)
    for part in (m.name, m.context, m.period, *environment, *names):
        if _CONTROL.search(part):
            raise Refused(f"the text {shown(part)} of a measurement contains a control character")
    numbers = (*m.metrics.values(), *m.conditions.values(), m.cost_s, m.device_s, m.at)
    if not all(map(math.isfinite, numbers)) or min(m.cost_s, m.device_s, m.at) < 0 or m.at > LATEST:
        raise Refused(f"the measurement {shown(m.name)} has a number that is not finite, or an impossible cost or time")
    if _CONTROL_IN_TEXT.search(measurement.evidence):
        raise Refused(f"the evidence of {shown(measurement.name)} contains a control character")
