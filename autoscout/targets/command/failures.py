"""Classifies the failure of a user's own command and finds the root cause. Only logs of failed runs are classified,
since a script may print "out of memory" and continue."""

import itertools
import re
import signal
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

from autoscout.running import causes, symptoms
from autoscout.running.supervised import Ended
from autoscout.targets.command.preset import FailureText
from kb.records import Status

# Stricter than running/symptoms.py, since a script may mention or catch such an error and fail for another reason.
_OUT_OF_MEMORY = re.compile(
    r"(?i:(?:cuda|hip)(?: error:)? out of memory)|(?:cuda|hip)Error(?:OutOfMemory|MemoryAllocation)"
    r"|RESOURCE_EXHAUSTED|torch\.(?:cuda\.)?OutOfMemoryError|CUBLAS_STATUS_ALLOC_FAILED"
    r"|CUDNN_STATUS_ALLOC_FAILED|Failed to CUDA calloc|Cuda failure (?:2 )?'out of memory'|CUDA_ERROR_OUT_OF_MEMORY"
    r"|std::bad_alloc|can't allocate memory|Cannot allocate memory|^MemoryError|\bMemoryError:",
    re.MULTILINE,
)
# Messages of launchers and of surviving ranks after a rank died. These are not the cause.
_SECONDARY = re.compile(
    r"gloo/transport|Connection (reset|closed)|Broken pipe|ChildFailedError|recvValue failed|ncclRemoteError|"
    r"communicator was aborted|SignalException|Received Signals\.SIGTERM"
)
_OUR_SIGNAL = re.compile(r"closing signal SIGTERM|Received (?:Signals\.SIGTERM|\d+ death signal)")
_ERROR = re.compile(
    r"(?:^|[\]:]\s*)((?:[\w.]+\.)?[A-Z]\w*(?:Error|Exception|Interrupt|Exit)(?::.*|$)|(?:[\w.]+: )?(?:error|fatal): .*)"
    r"|(can't open file '.*': \[Errno \d+\] .*)"  # a Python interpreter that does not find the script
)
_LAUNCHERS = re.compile(r"torch/distributed/elastic|ChildFailedError")  # torchrun's report on failed processes
# Messages of torchrun and DeepSpeed about a process ended by a signal.
_CHILD_SIGNAL = re.compile(
    r"Signal (\d+) \(SIG\w+\) received by PID|exited on signal (\d+)|(?i:exit ?code|return code) ?[:=] -(\d+)\b"
)
# Messages of C++ (std::terminate) and of CPython about threads that were still running when the process exited.
_AT_EXIT = re.compile(r"terminate called without an active exception|Python runtime state: finalizing")
_WORDS = re.compile(r"[A-Za-z]{2,}")
_END = 2**18  # number of bytes that are searched at the beginning of the log, and at its end


def classify(
    ended: Ended,
    log: Path,
    known: Iterable[FailureText],
    timeout_s: float,
    oom_kills: int,
    missing: str,
    stepped: bool,
) -> tuple[Status, str]:
    """Returns (status, evidence) of a run without a complete result. `missing`: what the result lacks, with similar log
    lines. `oom_kills`: number of the kernel's out-of-memory kills during the run. `stepped`: whether the run reported
    an iteration."""
    where = f"(log: {log})"
    if ended.stopped:
        return "killed", "AutoScout stopped the run before it ended"
    if ended.problem:
        return "error", f"the command could not be started: {ended.problem}"
    lines = _lines(log)
    cause = _cause(lines)
    text = "\n".join(lines)
    if ended.timed_out and (broken := symptoms.find(text, symptoms.MACHINE)):
        return "infrastructure", f"{symptoms.sentence(broken.symptom, _trim(broken.line))} {where}"
    if ended.timed_out and (collective := symptoms.hung(text)):
        return "timeout", f"{collective} hung {where}"
    if ended.timed_out:
        before = list(itertools.takewhile(lambda line: not _OUR_SIGNAL.search(line), lines))
        last = next((line for line in reversed(before) if line.strip()), "")
        hint = f"; its last line: {_trim(last)}" if last else ""
        return "timeout", f"no result after {timeout_s:g} s{hint} {where}; launch.timeout_s is the limit"
    how = f"ended with exit code {ended.code}" if (ended.code or 0) >= 0 else f"was ended by {_signal(ended.code)}"
    if 128 < (ended.code or 0) < 160:
        how += f" ({_signal(128 - (ended.code or 0))})"
    failed = ended.code != 0
    if (failed or cause) and (found := _Log(text, how, where, stepped).cause(known)):
        return found
    died = _signal_of(ended.code, text)
    if died == signal.SIGBUS:  # the kernel could not provide a page of shared memory
        return "infrastructure", f"{symptoms.sentence(symptoms.SHARED_MEMORY, how)} {where}"
    if died == signal.SIGKILL:
        if oom_kills:
            return "oom", f"{how}: the kernel ran out of memory {where}"
        return "killed", f"{how}, from outside {where}"
    if failed:
        aborted = next(filter(_AT_EXIT.search, lines), "")
        by_signal = f"one of its processes was ended by {_signal(-died)}" if died else ""
        own = itertools.takewhile(lambda line: not _LAUNCHERS.search(line), lines)
        reason = cause or aborted or by_signal or next(filter(_WORDS.search, reversed([*own])), "")
        return "error", f"{how}{': ' + _trim(reason) if reason else ''} {where}"
    return "error", f"{how}, but {missing}{'; its cause: ' + _trim(cause) if cause else ''} {where}"


class _Log(NamedTuple):
    """The log of a failed run. Each method searches for one kind of cause and returns None if there is no such
    cause."""

    text: str
    how: str
    where: str
    stepped: bool

    def cause(self, known: Iterable[FailureText]) -> tuple[Status, str] | None:
        return (
            self._of_memory()
            or self._of_the_machine()
            or self._of_the_preset(known)
            or self._of_collectives()
            or self._of_exceptions()
        )

    def _of_memory(self) -> tuple[Status, str] | None:
        match = _OUT_OF_MEMORY.search(self.text)
        if match is None:
            return None
        line = self._line(match)
        if symptoms.find(line, symptoms.MACHINE):  # an error about a NIC's memory, or about the limit on locked memory
            return None
        if others := symptoms.taken_by_others(self.text, {}):
            cause = f"other processes use {others:.1f} GiB, and without them the run would fit; {self.how}: {line}"
            return "infrastructure", f"{symptoms.sentence(symptoms.BY_OTHERS, cause)} {self.where}"
        return "oom", f"{self.how}: {line} {self.where}"

    def _of_the_machine(self) -> tuple[Status, str] | None:
        found = symptoms.find(self.text, (*symptoms.SCHEDULER, *symptoms.MACHINE))
        return self._with_cause(found) if found else None

    def _of_exceptions(self) -> tuple[Status, str] | None:
        found = causes.first(self.text, self.stepped)
        return self._with_cause(found) if found else None

    def _with_cause(self, found: symptoms.Found) -> tuple[Status, str]:
        cause = f"{self.how}: {_trim(found.line)}"
        if found.symptom.status != "infrastructure":
            return found.symptom.status, f"{cause}: {found.symptom.about} {self.where}"
        return "infrastructure", f"{symptoms.sentence(found.symptom, cause)} {self.where}"

    def _of_the_preset(self, known: Iterable[FailureText]) -> tuple[Status, str] | None:
        for text in known:
            if (match := re.search(text.says, self.text)) is not None:
                return text.status, f"{self.how}: {self._line(match)} {self.where}"
        return None

    def _of_collectives(self) -> tuple[Status, str] | None:
        collective = symptoms.hung(self.text)
        return ("timeout", f"{self.how}: {collective} hung {self.where}") if collective else None

    def _line(self, match: re.Match[str]) -> str:
        end = self.text.find("\n", match.end())
        return _trim(self.text[self.text.rfind("\n", 0, match.start()) + 1 : end if end >= 0 else None])


def died_of(
    log: Path, iterations: Iterable[str], known: Iterable[FailureText], after: str
) -> tuple[Status, str] | None:
    """Returns (status, evidence) of a run with exit code 0 that printed an exception after its last iteration; None
    without an exception. `iterations`: patterns of iteration lines. `after`: text about the progress before the
    exception."""
    lines = _lines(log)
    patterns = [re.compile(pattern) for pattern in iterations]
    last = max((i for i, line in enumerate(lines) if any(p.search(line) for p in patterns)), default=-1)
    rest = lines[last + 1 :]
    if not (cause := _cause(rest)):
        return None
    how, where = f"ended with exit code 0, {after}".rstrip(": "), f"(log: {log})"
    return _Log("\n".join(rest), how, where, last >= 0).cause(known) or ("error", f"{how}: {_trim(cause)} {where}")


def aborted_at_exit(ended: Ended, log: Path, known: Iterable[FailureText]) -> str:
    """Returns the message of a process that aborted during the interpreter's exit, if the log has no other error; else
    "". DeepSpeed's autotuning exits during training, while threads of data loaders and collectives still run."""
    if not ended.code:
        return ""
    lines = _lines(log)
    message = next(filter(_AT_EXIT.search, lines), "")
    if not message or _cause(lines) or _Log("\n".join(lines), "", "", True).cause(known):
        return ""
    return _trim(message)


def despite(log: Path, known: Iterable[FailureText]) -> tuple[Status, str] | None:
    """Returns (status, evidence) of a run that exited normally with all metrics but printed a preset's failure text;
    None if it printed none."""
    text = "\n".join(_lines(log))
    for found in known:
        if found.always and (match := re.search(found.says, text)):
            return found.status, f"the run ended with exit code 0, but printed: {_trim(match[0])} (log: {log})"
    return None


def nearest_lines(log: Path, pattern: str) -> str:
    """Returns the two log lines most similar to a pattern that matches no line; "" if there are none."""
    words = {word.lower() for word in _WORDS.findall(re.sub(r"\\[a-zA-Z]|\[[^\]]*\]", " ", pattern))}
    scored: dict[str, float] = {}
    for i, line in enumerate(_lines(log)):
        shared = words & {word.lower() for word in _WORDS.findall(line)}
        if shared or re.search(r"\d", line):  # without a common word, prefer the last line with a number
            scored[" ".join(line.split())] = len(shared) + (0.5 if re.search(r"\d", line) else 0.0) + i * 1e-9
    best = sorted(scored, key=lambda line: -scored[line])[:2]
    return "; nearest: " + " | ".join(_trim(line, 120) for line in best) if best else ""


def _lines(log: Path) -> list[str]:
    try:
        with open(log, "rb") as file:
            text = file.read(_END)
            size = log.stat().st_size
            if size > 2 * _END:
                file.seek(-_END, 2)
                text += b"\n"
            text += file.read(_END)
    except OSError:
        return []
    return re.split(r"[\r\n]+", text.decode(errors="replace"))


def _cause(lines: list[str]) -> str:
    """Returns the first exception that is not a consequence of a failure on another rank."""
    for line in lines:
        found = _ERROR.search(line)
        if found and not _SECONDARY.search(line):
            return found[1] or found[2]
    return ""


def _signal_of(code: int | None, text: str) -> int:
    """Returns the signal that ended the command (from exit code 128 + n), or that ended a process according to the
    launcher's output; 0 if there was none."""
    if code is not None and (code < 0 or 128 < code < 160):
        return -code if code < 0 else code - 128
    found = _CHILD_SIGNAL.search(text)
    return int(next(filter(None, found.groups()))) if found else 0


def _signal(code: int | None) -> str:
    try:
        return signal.Signals(-(code or 0)).name
    except ValueError:
        return f"signal {-(code or 0)}"


def _trim(text: str, length: int = 300) -> str:
    line = " ".join(text.split())
    return line if len(line) <= length else line[: length - 1] + "…"
