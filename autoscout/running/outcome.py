"""Why an experiment failed: its class and the root cause in one sentence."""

import contextlib
import signal
from pathlib import Path

import msgspec

from autoscout.running import results
from autoscout.running.results import RankError
from kb.records import Status


class Outcome(msgspec.Struct, frozen=True, kw_only=True):
    """How the processes of an experiment ended, as its launcher saw it."""

    codes: dict[int, int] = {}  # exit codes (-n: signal n) of ranks that ended by themselves
    timed_out: bool = False
    stopped: bool = False  # by interrupt()
    launcher_code: int | None = None  # exit code of the launcher, when it ended by itself
    said: str = ""  # the end of what the launcher printed


# What a rank reports because another one has died: never the root cause.
_SECONDARY = (
    "gloo/transport",  # connections closed, reset or refused
    "connectFullMesh failed",
    "Connection reset by peer",
    "Broken pipe",
    "Socket Timeout",
    "recvValue failed",
    "ncclRemoteError",
    "NCCL communicator was aborted",
)
# A collective that waited in vain: secondary too, and alone it means that the ranks hang.
_WAITED = ("Timed out waiting", "Watchdog caught collective operation timeout", "wait timeout")
_OUT_OF_MEMORY = ("out of memory", "can't allocate memory", "Cannot allocate memory", "std::bad_alloc")
_REFUSING_PHASES = ("groups", "config", "build")
_REFUSING_TYPES = (
    *("AssertionError", "ValueError", "RuntimeError", "NotImplementedError", "TypeError"),
    *("IndexError", "KeyError", "NameError", "AttributeError"),
)
_BROKEN_DEVICE = ("CUDA error", "CUDNN_STATUS", "CUBLAS_STATUS", "NCCL error")
_FROM_INSIDE = {signal.SIGSEGV, signal.SIGABRT, signal.SIGBUS, signal.SIGFPE, signal.SIGILL}


def classify(outcome: Outcome, folder: Path, timeout_s: float, oom_kills: int) -> tuple[Status, str]:
    """(status, evidence) of an experiment without a complete result; `oom_kills`: the kernel's, meanwhile."""
    errors = results.errors(folder)
    primary = [error for error in errors if not _contains(error, _SECONDARY + _WAITED)]
    signals = {rank: -code for rank, code in outcome.codes.items() if code < 0}
    if outcome.stopped:
        return "killed", "stopped by AutoScout before it ended"
    if primary:
        return _of_exception(primary[0]), _sentence(primary[0], folder)
    if signals:
        rank, number = min(signals.items())
        said = results.log_tail(folder, rank)
        return _of_signal(f"rank {rank}", number, oom_kills, said, f"{folder}/rank-{rank}.log")
    if outcome.timed_out:
        last = results.log_tail(folder, 0)
        hint = f"; rank 0 last said: {_trim(last)}" if last else ""
        return "timeout", f"no result after {timeout_s:g} s{hint} (logs: {folder}/rank-*.log)"
    if errors:
        hang = _contains(errors[0], _WAITED)
        return "timeout" if hang else "error", _sentence(errors[0], folder)
    codes = {rank: code for rank, code in outcome.codes.items() if code > 0}
    if codes:
        rank, code = min(codes.items())
        last = results.log_tail(folder, rank)
        return "error", f"rank {rank} ended with exit code {code}: {_trim(last)} (log: {folder}/rank-{rank}.log)"
    if outcome.launcher_code is not None and outcome.launcher_code < 0:
        return _of_signal("the launcher", -outcome.launcher_code, oom_kills, outcome.said, str(folder))
    said = f"; it said: {_trim(outcome.said)}" if outcome.said else ""
    code = outcome.launcher_code or 0
    return "error", f"ended with exit code {code} but left no result{said} (logs: {folder})"


def oom_kills() -> int:
    """How often the kernel has killed for memory so far, here or in our control group."""
    count = 0
    for path in (Path("/proc/vmstat"), Path("/sys/fs/cgroup/memory.events")):
        with contextlib.suppress(OSError):
            for line in path.read_text().splitlines():
                if line.startswith("oom_kill "):
                    count += int(line.split()[1])
    return count


def _of_exception(error: RankError) -> Status:
    if error.type in ("OutOfMemoryError", "MemoryError") or _contains(error, _OUT_OF_MEMORY):
        return "oom"
    if error.type not in _REFUSING_TYPES or _contains(error, _BROKEN_DEVICE):
        return "error"
    # Many of Megatron's checks, and what it does not check but cannot do, come up in the first step.
    first_step = error.phase == "train" and error.steps == 0 and error.in_megatron
    return "invalid" if error.phase in _REFUSING_PHASES or first_step else "error"


def _of_signal(who: str, number: int, oom_kills: int, said: str, log: str) -> tuple[Status, str]:
    name = signal.Signals(number).name
    if number == signal.SIGKILL and oom_kills:
        return "oom", f"{who} was killed by the kernel, which ran out of memory ({name}; log: {log})"
    if number in _FROM_INSIDE:
        status = "oom" if any(text in said for text in _OUT_OF_MEMORY) else "error"
        return status, f"{who} crashed with {name}{': ' + _trim(said) if said else ''} (log: {log})"
    return "killed", f"{who} was killed from outside with {name} (log: {log})"


def _sentence(error: RankError, folder: Path) -> str:
    text = _trim(error.message.strip())
    return (
        f"rank {error.rank} failed in phase {error.phase}: {error.type}{': ' + text if text else ''} "
        f"(log: {folder}/rank-{error.rank}.log)"
    )


def _contains(error: RankError, texts: tuple[str, ...]) -> bool:
    return any(text in error.message for text in texts)


def _trim(text: str, length: int = 300) -> str:
    line = " ".join(text.split())
    return line if len(line) <= length else line[: length - 1] + "…"
