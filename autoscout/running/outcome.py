"""Explains why an experiment failed: the failure class, and the root cause in one sentence."""

import contextlib
import re
import signal
from pathlib import Path

import msgspec

from autoscout.running import causes, results, symptoms
from autoscout.running.results import RankError
from kb.records import Status

HOST_LOST = "host_lost"  # measurement condition: a host failed during the run


class RunOutcome(msgspec.Struct, frozen=True, kw_only=True):
    """The launcher's record of how the processes of an experiment ended."""

    codes: dict[int, int] = {}  # rank → exit code (-n: signal n), for ranks that ended by themselves
    timed_out: bool = False
    stopped: bool = False  # whether interrupt() ended it
    launcher_code: int | None = None  # exit code of the launcher, if it ended by itself
    output: str = ""  # the end of the launcher's output
    lost: str = ""  # why a host was lost or could not be used
    hosts: dict[int, str] = {}  # rank → host; empty if all ranks ran on one host
    oom_kills: int = 0  # processes that the kernels of other hosts killed for lack of memory


# Messages of errors that a rank raises only because another rank has died, so they are never the root cause.
_SECONDARY = (
    "gloo/transport",  # connections closed, reset or refused
    "connectFullMesh failed",
    "Connection reset by peer",
    "Connection closed by",
    "Broken pipe",
    "Socket Timeout",
    "recvValue failed",
    "ncclRemoteError",
    "NCCL communicator was aborted",
)
# Exceptions of torch's store on a lost connection: if a rank was killed, its death is the cause, otherwise the network.
_STORE = ("DistNetworkError", "DistStoreError")
# Messages of a collective that timed out. If another rank has failed, its failure is the cause; otherwise the ranks
# hang.
_WAITED = ("Timed out waiting", "Watchdog caught collective operation timeout", "wait timeout")
_REFUSING_PHASES = ("groups", "config", "build")
_REFUSING_TYPES = (
    *("AssertionError", "ValueError", "RuntimeError", "NotImplementedError", "TypeError"),
    *("IndexError", "KeyError", "NameError", "AttributeError"),
)
# Messages of errors in a device or its libraries. The log may contain a more specific cause.
_BROKEN_DEVICE = ("CUDA error", "CUDNN_STATUS", "CUBLAS_STATUS", "NCCL error")
_NOT_A_NUMBER = ("found NaN in", "found Inf in", "loss is NaN")  # messages of Megatron's own checks
_FROM_INSIDE = {signal.SIGSEGV, signal.SIGABRT, signal.SIGBUS, signal.SIGFPE, signal.SIGILL}
_RANK = re.compile(r"\brank (\d+)\b")
_COLLECTIVE = re.compile(
    r"in (all_reduce|all_gather\w*|reduce_scatter\w*|all_to_all\w*|broadcast|barrier|batch_isend_irecv|recv|send"
    r"|_communicate\w*)\b"
)


def classify(outcome: RunOutcome, folder: Path, timeout_s: float, oom_kills: int) -> tuple[Status, str]:
    """(status, evidence) of an experiment without a complete result. `oom_kills`: number of processes that this
    machine's kernel killed during the run for lack of memory.

    The cause is the first of these that is found: an exception in a rank that does not follow from another rank's
    failure, a machine fault or lack of memory in any log, a rank that died, a collective that timed out.
    """
    if outcome.stopped:
        return "killed", "AutoScout stopped the run before it ended"
    if outcome.lost:
        return "infrastructure", f"a host failed: {outcome.lost}"
    status, evidence = _of_ranks(outcome, folder, timeout_s, oom_kills + outcome.oom_kills)
    return status, _RANK.sub(lambda rank: _with_host(rank, outcome.hosts), evidence, count=1)


def _with_host(rank: re.Match[str], hosts: dict[int, str]) -> str:
    host = hosts.get(int(rank[1]))
    return f"{rank[0]} (on {host})" if host else rank[0]


def _of_ranks(outcome: RunOutcome, folder: Path, timeout_s: float, oom_kills: int) -> tuple[Status, str]:
    errors = results.errors(folder)
    signals = {rank: -code for rank, code in outcome.codes.items() if code < 0}
    killed = any(number not in _FROM_INSIDE for number in signals.values())
    primary = [
        error
        for error in errors
        if not _contains(error, _SECONDARY + _WAITED) and not (killed and error.type in _STORE)
    ]
    if primary:
        return _of_exception(primary[0], folder)
    logs = results.logs(folder)
    for rank, text in sorted(logs.items(), key=lambda log: log[0] not in signals):
        who = f"rank {rank}" if rank >= 0 else "the launcher"
        if (found := symptoms.find(text)) is not None:
            return _of_symptom(found, who, text, {}, folder)
    waited = _waited(errors, logs)
    first = {rank: number for rank, number in signals.items() if rank not in waited}
    if waited and not first and not outcome.timed_out:
        return "timeout", _hung(waited, logs, folder)
    if first or signals:
        rank, number = min((first or signals).items())
        last = results.log_tail(folder, rank)
        return _of_signal(f"rank {rank}", number, oom_kills, last, f"{folder}/rank-{rank}.log")
    if outcome.timed_out:
        last = results.log_tail(folder, 0)
        hint = f"; rank 0's last line: {_trim(last)}" if last else ""
        return "timeout", _hung(
            waited, logs, folder
        ) or f"no result after {timeout_s:g} s{hint} (logs: {folder}/rank-*.log)"
    if errors:
        return "error", _sentence(errors[0], folder)
    codes = {rank: code for rank, code in outcome.codes.items() if code > 0}
    if codes:
        rank, code = min(codes.items())
        if (found := causes.first(logs.get(rank, ""), stepped=True)) is not None:
            return _of_symptom(found, f"rank {rank}", "", {}, folder)
        last = results.log_tail(folder, rank)
        return "error", f"rank {rank} ended with exit code {code}: {_trim(last)} (log: {folder}/rank-{rank}.log)"
    if outcome.launcher_code is not None and outcome.launcher_code < 0:
        return _of_signal("the launcher", -outcome.launcher_code, oom_kills, outcome.output, str(folder))
    if found := symptoms.find(outcome.output) or causes.first(outcome.output, stepped=False):
        return _of_symptom(found, "the launcher", outcome.output, {}, folder)
    shown = f"; its output ends: {_trim(outcome.output)}" if outcome.output else ""
    code = outcome.launcher_code or 0
    return "error", f"the launcher ended with exit code {code}, but the ranks left no result{shown} (logs: {folder})"


def oom_kills() -> int:
    """Number of processes killed for lack of memory so far, on this machine and in our control group."""
    count = 0
    for path in (Path("/proc/vmstat"), Path("/sys/fs/cgroup/memory.events")):
        with contextlib.suppress(OSError):
            for line in path.read_text().splitlines():
                if line.startswith("oom_kill "):
                    count += int(line.split()[1])
    return count


def _of_exception(error: RankError, folder: Path) -> tuple[Status, str]:
    who = f"rank {error.rank} failed in phase {error.phase}"
    found = symptoms.find(error.message)
    if found is None and (_contains(error, _BROKEN_DEVICE) or error.type == "DistBackendError"):
        found = symptoms.find(results.logs(folder).get(error.rank, ""))
    if found is None and error.type in ("OutOfMemoryError", "MemoryError"):
        found = symptoms.Found(symptoms.OUT_OF_MEMORY, error.message)
    raised = causes.raised(error, error.steps > 0)
    spoken = causes.judge(raised)
    if spoken is not None and spoken.symptom is symptoms.SEAM:
        found = spoken
    if found is None and error.phase == "import":  # the configuration has not been read yet
        found = symptoms.Found(symptoms.IMPORTS, f"{error.type}: {error.message}")
    if found is None and error.phase == "groups" and not error.in_megatron:  # the error is from torch's rendezvous
        found = symptoms.Found(symptoms.STARTING, f"{error.type}: {error.message}")
    if found is not None:
        if found.symptom.status == "oom" and not symptoms.taken_by_others(error.message, error.memory):
            return "oom", _sentence(error, folder)
        return _of_symptom(found, who, error.message, error.memory, folder)
    if _contains(error, _NOT_A_NUMBER):
        return "wrong", _sentence(error, folder)
    if spoken is not None:
        if spoken.symptom.status == "infrastructure":
            return _of_symptom(spoken, who, error.message, {}, folder)
        return spoken.symptom.status, _sentence(error, folder)
    if error.type not in _REFUSING_TYPES or _contains(error, _BROKEN_DEVICE):
        return "error", _sentence(error, folder)
    # A configuration that Megatron does not support may pass its checks and only fail in the first training step.
    first_step = error.phase == "train" and error.steps == 0 and error.in_megatron
    raised_there = error.type != "RuntimeError" or "/megatron/" in raised.file
    refused = raised_there and not causes.below(raised.file) and (error.phase in _REFUSING_PHASES or first_step)
    return "invalid" if refused else "error", _sentence(error, folder)


def _of_symptom(
    found: symptoms.Found, who: str, text: str, memory: dict[str, float], folder: Path
) -> tuple[Status, str]:
    """(status, evidence) by a symptom. `who`: the process that has the symptom; `text`: the log that contains it."""
    symptom, cause = found.symptom, f"{who}: {_trim(found.line)}"
    if others := symptoms.taken_by_others(text, memory):
        symptom, cause = (
            symptoms.BY_OTHERS,
            f"other processes use {others:.1f} GiB, and without them the run would fit; {cause}",
        )
    elif symptom is symptoms.BY_OTHERS:
        return "oom", f"{cause} (logs: {folder})"  # no other process used the device, so its memory is too small
    if symptom.status == "infrastructure":
        return "infrastructure", f"{symptoms.sentence(symptom, cause)} (logs: {folder})"
    if not symptom.signs:
        cause = f"{symptom.about}: {cause}"
    return symptom.status, f"{cause} (logs: {folder})"


def _waited(errors: list[RankError], logs: dict[int, str]) -> dict[int, str]:
    """Rank that timed out in a collective → the collective's name."""
    waited = {rank: name for rank, text in logs.items() if rank >= 0 and (name := symptoms.hung(text))}
    for error in errors:
        if error.rank not in waited and _contains(error, _WAITED):
            names = [*_COLLECTIVE.findall(error.traceback), symptoms.hung(error.message)]
            waited[error.rank] = next((name for name in reversed(names) if name), "a collective")
    return waited


def _hung(waited: dict[int, str], logs: dict[int, str], folder: Path) -> str:
    """A sentence on the collective that hung, with the ranks that waited in it and those that did not join; "" if none
    hung."""
    if not waited:
        return ""
    first = waited[min(waited)]
    absent = sorted(rank for rank in logs if rank >= 0 and rank not in waited)
    others = f"; {_ranks(absent)} did not join" if absent else ""
    return f"{first} hung: {_ranks(sorted(waited))} waited in it{others} (logs: {folder}/rank-*.log)"


def _ranks(numbers: list[int]) -> str:
    shown = ", ".join(str(number) for number in numbers[:8]) + (", …" if len(numbers) > 8 else "")
    return f"rank{'s' if len(numbers) > 1 else ''} {shown}"


def _of_signal(who: str, number: int, oom_kills: int, output: str, log: str) -> tuple[Status, str]:
    name = signal.Signals(number).name
    if number == signal.SIGKILL and oom_kills:
        return "oom", f"{who} was killed by the kernel, which ran out of memory ({name}; log: {log})"
    if number == signal.SIGBUS:  # the kernel had no page for mapped memory, typically because /dev/shm is full
        return "infrastructure", symptoms.sentence(symptoms.SHARED_MEMORY, f"{who} crashed with {name}; log: {log}")
    if number in _FROM_INSIDE:
        return "error", f"{who} crashed with {name}{': ' + _trim(output) if output else ''} (log: {log})"
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
