"""Classifies a rank's exception when the text of its log matches no known symptom (symptoms.py). The exception rows of
failures.toml are tried from the top, and the first match gives the failure class and the reason."""

import re
from functools import cache

import msgspec

from autoscout.running.results import RankError
from autoscout.running.symptoms import SYMPTOM, TABLES, Found

MESSAGE = "Message"  # stands for the exception type of an error line that names no exception


class Raised(msgspec.Struct, frozen=True, kw_only=True):
    """An exception from a log. `file`: source file of the last traceback frame, "" if unknown; `stepped`: whether the
    run had completed a training step before it."""

    type: str
    message: str
    file: str = ""
    stepped: bool = False


class ExceptionRow(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A row of failures.toml: regular expressions for an exception's type, message and source file (an empty list
    matches everything). `before`: the row applies only before the first training step."""

    symptom: str
    types: tuple[str, ...] = ()
    says: tuple[str, ...] = ()
    files: tuple[str, ...] = ()
    before: bool = False


ROWS = msgspec.convert(TABLES["exception"], list[ExceptionRow])
_ECHO = re.compile(
    r"^(?:Actor\w*|RayTask|WorkerCrashed|ChildFailed|EngineDead|Process(?:Raised|Exited))(?:Error|Exception)$"
)


def judge(raised: Raised) -> Found | None:
    """The finding of the first row that matches; None if none does."""
    name = raised.type.rsplit(".", 1)[-1]
    if _ECHO.search(name):
        return None
    for row, types, says, files in _compiled():
        if row.before and raised.stepped:
            continue
        if types.search(name) and says.search(raised.message) and files.search(raised.file):
            return Found(SYMPTOM[row.symptom], f"{name}: {' '.join(raised.message.split())}")
    return None


@cache
def _compiled() -> list[tuple[ExceptionRow, re.Pattern[str], re.Pattern[str], re.Pattern[str]]]:
    def either(patterns: tuple[str, ...], flags: re.RegexFlag = re.NOFLAG) -> re.Pattern[str]:
        return re.compile("|".join(patterns), flags)

    return [(row, either(row.types), either(row.says, re.DOTALL), either(row.files)) for row in ROWS]


def below(file: str) -> bool:
    """Whether a source file belongs to a layer below the training framework: driver, loader, file system, network."""
    return _compiled()[-1][3].search(file) is not None  # the last row of failures.toml lists these files


_PREFIX = re.compile(r"^(?:\s*(?:\[[^\]]*\]:?|\([^)]*\)|(?:ERROR|INFO|WARNING|CRITICAL)\s+[\d\-]+\s+[\d:.]+|\|)\s?)*")
# The host's name that pdsh and mpirun print before each line.
_HOST = re.compile(r"^(?!\S*(?:Error|Exception|Exit|Interrupt|Expired):)[a-z][\w.-]*: +(?=[A-Z])")
_COMPLAINT = re.compile(r"(?i:\b(?:error|failed|fatal|critical)\b)")
_FRAME = re.compile(r'^\s*File "([^"]+)", line \d+', re.MULTILINE)
_EXCEPTION = re.compile(
    r"^((?:[A-Za-z_][\w]*\.)*(?:[A-Z]\w*)?(?:Error|Exception|Interrupt|Exit|Expired|Resources|NotFound|Conflict))(?::\s*(.*)|\((.+)\))?$"
)
# pydantic's errors continue on two more lines: the name of the field, then its problem.
_FIELD = re.compile(r"\d+ validation errors? for \S+(?:: \S+)?")
_VALUE = re.compile(r" \[type=\w+, input_value=(.*), input_type=\w+\]$")
_USAGE = re.compile(r"^[\w./ -]+\.?(?:py)?: error: ((?:argument|unrecognized|the following|ambiguous|invalid).*)$")


def exceptions(text: str, stepped: bool) -> list[Raised]:
    """The exceptions in a log, in order, each with the file that raised it."""
    found: list[Raised] = []
    lines: list[Raised] = []  # error lines without an exception
    file = ""
    for line in text.splitlines():
        bare = _HOST.sub("", _PREFIX.sub("", line)).strip()
        if frame := _FRAME.match(bare):
            file = frame[1]
        elif usage := _USAGE.match(bare):
            found.append(Raised(type="UsageError", message=usage[1]))
        elif matched := _EXCEPTION.match(bare):
            found.append(Raised(type=matched[1], message=matched[2] or matched[3] or "", file=file, stepped=stepped))
            file = ""
        elif found and bare and _FIELD.fullmatch(found[-1].message):
            wrong = _VALUE.sub(r", not \1", bare)
            found[-1] = msgspec.structs.replace(found[-1], message=f"{found[-1].message}: {wrong}")
        elif found and not found[-1].message and bare:
            found[-1] = msgspec.structs.replace(found[-1], message=bare)
        elif _COMPLAINT.search(bare):
            lines.append(Raised(type=MESSAGE, message=bare, stepped=stepped))
    return [*found, *lines]


def first(text: str, stepped: bool) -> Found | None:
    """The finding for the first exception in a log that matches a row."""
    return next(filter(None, map(judge, exceptions(text, stepped))), None)


def raised(error: RankError, stepped: bool) -> Raised:
    frames = _FRAME.findall(error.traceback)
    return Raised(type=error.type, message=error.message, file=frames[-1] if frames else "", stepped=stepped)
