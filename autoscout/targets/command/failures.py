"""Why a person's own command failed: its class and the root cause in one sentence.

Asked only of runs that failed: a script that prints "out of memory" and trains on is fine.
"""

import re
import signal
from collections.abc import Iterable
from pathlib import Path

from autoscout.running.supervised import Ended
from autoscout.targets.command.preset import FailureText
from kb.records import Status

_OF_ALL: tuple[tuple[Status, str], ...] = (
    ("oom", r"(?i)cuda out of memory|torch\.(cuda\.)?OutOfMemoryError|hip out of memory"),
    (
        "oom",
        r"CUBLAS_STATUS_ALLOC_FAILED|CUDNN_STATUS_ALLOC_FAILED|Failed to CUDA calloc|Cuda failure 2 'out of memory'",
    ),
    ("oom", r"std::bad_alloc|can't allocate memory|Cannot allocate memory|^MemoryError|\bMemoryError:"),
    ("infrastructure", r"No CUDA GPUs are available|CUDA driver initialization failed|Error 802: system not yet"),
    (
        "infrastructure",
        r"Address already in use|EADDRINUSE|No space left on device|fallen off the bus|uncorrectable ECC",
    ),
    ("infrastructure", r"ProcessGroupNCCL is only supported with GPUs|nvidia-smi has failed"),
    ("timeout", r"Watchdog caught collective operation timeout"),
)
# What other ranks and launchers say because one rank has died.
_SECONDARY = re.compile(
    r"gloo/transport|Connection (reset|closed)|Broken pipe|ChildFailedError|recvValue failed|ncclRemoteError|"
    r"communicator was aborted|SignalException|Received Signals\.SIGTERM"
)
_ERROR = re.compile(
    r"(?:^|[\]:]\s*)((?:[\w.]+\.)?[A-Z]\w*(?:Error|Exception|Interrupt|Exit)(?::.*|$)|(?:[\w.]+: )?(?:error|fatal): .*)"
)
_WORDS = re.compile(r"[A-Za-z]{2,}")
_END = 2**18  # bytes of the log that are looked at, at each end


def classify(
    ended: Ended, log: Path, known: Iterable[FailureText], timeout_s: float, oom_kills: int, missing: str
) -> tuple[Status, str]:
    """(status, evidence) of a run without a complete result. `missing`: what of it is not there, and which lines came
    nearest; `oom_kills`: the kernel's, meanwhile."""
    where = f"(log: {log})"
    if ended.stopped:
        return "killed", "stopped by AutoScout before it ended"
    if ended.problem:
        return "error", f"it could not be started: {ended.problem}"
    lines = _lines(log)
    cause = _cause(lines)
    if ended.timed_out:
        last = next((line for line in reversed(lines) if line.strip()), "")
        hint = f"; it last said: {_trim(last)}" if last else ""
        return "timeout", f"no result after {timeout_s:g} s{hint} {where}; launch.timeout_s is the limit"
    how = f"ended with exit code {ended.code}" if (ended.code or 0) >= 0 else f"was ended by {_signal(ended.code)}"
    failed = ended.code != 0
    if (failed or cause) and (found := _known(lines, known)):
        return found[0], f"{how}: {_trim(found[1])} {where}"
    if ended.code == -signal.SIGKILL:
        if oom_kills:
            return "oom", f"{how}: the kernel ran out of memory {where}"
        return "killed", f"{how}, from outside {where}"
    if failed:
        said = cause or next((line for line in reversed(lines) if line.strip()), "")
        return "error", f"{how}{': ' + _trim(said) if said else ''} {where}"
    return "error", f"{how}, but {missing}{'; it said: ' + _trim(cause) if cause else ''} {where}"


def died_of(
    log: Path, iterations: Iterable[str], known: Iterable[FailureText], after: str
) -> tuple[Status, str] | None:
    """As `classify`, of a run that ended with 0: the exception that it said after the last line of an iteration; None
    where it said none. `iterations`: the patterns of such lines; `after`: what it had done by then, in words."""
    lines = _lines(log)
    patterns = [re.compile(pattern) for pattern in iterations]
    last = max((i for i, line in enumerate(lines) if any(p.search(line) for p in patterns)), default=-1)
    rest = lines[last + 1 :]
    if not (cause := _cause(rest)):
        return None
    status, line = _known(rest, known) or ("error", cause)
    return status, f"ended with exit code 0, {after}{_trim(line)} (log: {log})"


def _known(lines: list[str], known: Iterable[FailureText]) -> tuple[Status, str] | None:
    """The first line of a failure that is known of the script, or of all."""
    for status, pattern in [*((k.status, k.says) for k in known), *_OF_ALL]:
        found = next((line for line in lines if re.search(pattern, line)), None)
        if found is not None:
            return status, found
    return None


def nearest_lines(log: Path, pattern: str, most: int = 2) -> str:
    """ "" or the lines of a log that come nearest to a pattern that matches none."""
    words = {word.lower() for word in _WORDS.findall(re.sub(r"\\[a-zA-Z]|\[[^\]]*\]", " ", pattern))}
    scored: dict[str, float] = {}
    for i, line in enumerate(_lines(log)):
        shared = words & {word.lower() for word in _WORDS.findall(line)}
        if shared or re.search(r"\d", line):  # without a word in common the last line with a number
            scored[" ".join(line.split())] = len(shared) + (0.5 if re.search(r"\d", line) else 0.0) + i * 1e-9
    best = sorted(scored, key=lambda line: -scored[line])[:most]
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
    """The first exception that is not the echo of another rank's."""
    for line in lines:
        found = _ERROR.search(line)
        if found and not _SECONDARY.search(line):
            return found[1]
    return ""


def _signal(code: int | None) -> str:
    try:
        return signal.Signals(-(code or 0)).name
    except ValueError:
        return f"signal {-(code or 0)}"


def _trim(text: str, length: int = 300) -> str:
    line = " ".join(text.split())
    return line if len(line) <= length else line[: length - 1] + "…"
