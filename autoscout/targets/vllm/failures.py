"""Classifies the failure of a serving experiment by vLLM's messages and finds the root cause."""

import re
import signal
from pathlib import Path

from autoscout.running import causes, results, symptoms
from autoscout.running.outcome import RunOutcome
from autoscout.running.results import RankError
from kb.records import Status

# Messages about insufficient memory. Those about the KV cache occur at the engine's start.
_KV_TOO_SMALL = (
    "No available memory for the cache blocks",
    "larger than the available KV cache memory",
    "be stored in KV cache",
)
_OUT_OF_MEMORY = (
    *("out of memory", "OutOfMemoryError", "can't allocate memory", "Cannot allocate memory", "std::bad_alloc"),
    *("is less than requested memory for kv", "is less than desired", "No available shared memory"),
)
_REFUSING_TYPES = ("ValueError", "AssertionError", "NotImplementedError", "ValidationError", "TypeError", "UsageError")
_BROKEN = ("CUDA error", "NCCL error", "CUBLAS_STATUS", "EngineDeadError", "No space left on device")
# Messages of a process that failed only because a different process failed.
_SECONDARY = (
    *("Engine core initialization failed", "EngineCore encountered an issue", "EngineCore failed to start"),
    *("WorkerProc initialization failed", "cancelled", "Failed core proc", "EngineCore_DP"),
)
_PREFIX = re.compile(r"^(?:\([^)]*\)\s*)?(?:(?:ERROR|WARNING|INFO|CRITICAL)\s+[\d\-]+\s+[\d:.]+\s+\[[^\]]*\]\s*)?")
_ERROR = re.compile(r"^(?:[\w.]+\.)?(\w*(?:Error|Exception|NotSupported))(?::\s*(.*))?$")
_CRASH = re.compile(r"^Fatal Python error: (.*)$", re.MULTILINE)
_FRAME = re.compile(r'^Current thread .*\n(?:  File ".*/torch/.*\n)*  File "(.*)", line \d+ in (\w+)', re.MULTILINE)
_USAGE = re.compile(r"^(?:vllm|cli\.py|main\.py)[\w. \[\]-]*: error: (.*)$")
_PYDANTIC = re.compile(r"^\s*(?:Value error, )?(.*?)\s*\[type=\w+, input_")
_TIDY = re.compile(r"\s*For further information visit \S+")
_PHASES = {
    "import": "while it was imported",
    "config": "when the configuration was made",
    "build": "when the engine started",
    "load": "under load",
}


def classify(outcome: RunOutcome, folder: Path, timeout_s: float, oom_kills: int) -> tuple[Status, str]:
    """Returns (status, evidence) of an experiment without a complete result. `oom_kills`: number of processes that the
    kernel killed for lack of memory."""
    if outcome.stopped:
        return "killed", "AutoScout stopped the run before it ended"
    errors = results.errors(folder)
    if errors:
        return _of_error(errors[0], folder)
    for text in results.logs(folder).values():
        if (found := symptoms.find(text)) and found.symptom.status == "infrastructure":
            return "infrastructure", f"{symptoms.sentence(found.symptom, found.line[:200])} (logs: {folder})"
        if collective := symptoms.hung(text):
            return "timeout", f"{collective} hung (logs: {folder})"
    died = _signal(outcome)
    if died:
        name = signal.Signals(died).name
        if died == signal.SIGKILL and oom_kills:
            return "oom", f"vLLM was killed by the kernel, which ran out of memory ({name}; logs: {folder})"
        outside = died in (signal.SIGKILL, signal.SIGTERM, signal.SIGINT)
        verb = "was killed from outside with" if outside else "crashed with"
        return "killed" if outside else "error", f"vLLM {verb} {name}{_last(folder)} (logs: {folder})"
    if outcome.timed_out:
        logs = {path.name for path in folder.glob("*.log")}
        what = "the server was not ready" if logs == {"launcher.log"} else "no result"
        return "timeout", f"{what} after {timeout_s:g} s{_last(folder)} (logs: {folder})"
    code = outcome.launcher_code if outcome.launcher_code is not None else outcome.codes.get(0, 0)
    return "error", f"vLLM ended with exit code {code} but left no result{_last(folder)} (logs: {folder})"


def cause_in_log(text: str) -> tuple[str, str] | None:
    """Returns (type, message) of the first error in a server's log that is not a consequence of an earlier error."""
    if crash := _CRASH.search(text):  # after a crash, all other errors are consequences
        frame = _FRAME.search(text, crash.end())
        return "a crash", f"{crash[1]}{f' in {frame[2]} of {Path(frame[1]).name}' if frame else ''}"
    lines = [_PREFIX.sub("", line).strip() for line in text.splitlines()]
    found: list[tuple[str, str]] = []
    for i, line in enumerate(lines):
        if usage := _USAGE.match(line):
            return "UsageError", usage[1]
        if error := _ERROR.match(line):
            message = error[2] or ""
            if "validation error" in message:
                message = "\n".join([message, *lines[i + 1 : i + 4]])
            found.append((error[1], message))
    primary = [
        (kind, message) for kind, message in found if not any(text in f"{kind}: {message}" for text in _SECONDARY)
    ]
    return (primary or found or [None])[0]


def _of_error(error: RankError, folder: Path) -> tuple[Status, str]:
    text = f"{error.type}: {error.message}"
    cause = _cause(error)
    where = f"{_PHASES[error.phase]}{f' after {error.steps} passes' if error.steps else ''}"
    log = f"(log: {folder}/rank-0.log)" if (folder / "rank-0.log").is_file() else f"(log: {folder}/launcher.log)"
    if any(part in text for part in _KV_TOO_SMALL):
        return "oom", f"the KV cache is too small for one request: {cause} {log}"
    found = symptoms.find(text)
    if symptoms.taken_by_others(text, error.memory):
        return "infrastructure", f"{symptoms.sentence(symptoms.BY_OTHERS, f'{where}: {cause}')} {log}"
    if found is not None and found.symptom.status == "infrastructure" and found.symptom is not symptoms.BY_OTHERS:
        return "infrastructure", f"{symptoms.sentence(found.symptom, f'{where}: {cause}')} {log}"
    spoken = causes.judge(causes.raised(error, stepped=error.phase == "load"))
    if spoken is not None and spoken.symptom is symptoms.SEAM:
        return "infrastructure", f"{symptoms.sentence(spoken.symptom, f'{where}: {cause}')} {log}"
    if error.phase == "import" and error.type in ("ImportError", "ModuleNotFoundError", "OSError"):
        return "infrastructure", f"{symptoms.sentence(symptoms.IMPORTS, cause)} {log}"
    if error.type == "MemoryError" or any(part in text for part in _OUT_OF_MEMORY):
        return "oom", f"out of memory {where}: {cause} {log}"
    if spoken is not None and spoken.symptom.status == "infrastructure":
        return "infrastructure", f"{symptoms.sentence(spoken.symptom, f'{where}: {cause}')} {log}"
    if spoken is not None and spoken.symptom.status != "invalid":
        return spoken.symptom.status, f"vLLM failed {where}: {error.type}: {cause}: {spoken.symptom.about} {log}"
    refused = spoken is not None or error.type in _REFUSING_TYPES
    if (
        refused
        and error.phase in ("config", "build")
        and not any(part in text for part in _BROKEN)
        and error.type != "OSError"
    ):
        return "invalid", f"vLLM refused the configuration {where}: {cause} {log}"
    return "error", f"vLLM failed {where}: {error.type}{': ' + cause if cause else ''} {log}"


def _cause(error: RankError) -> str:
    """Returns the message without the text that pydantic adds."""
    lines = [match[1] for line in error.message.splitlines() if (match := _PYDANTIC.match(line))]
    text = "; ".join(lines) if "validation error" in error.message and lines else error.message
    line = " ".join(_TIDY.sub("", text).split())
    return line if len(line) <= 300 else line[:299] + "…"


def _signal(outcome: RunOutcome) -> int:
    """Returns the signal n that ended the engine or the server (the server's supervisor exits with 128 + n); 0 if there
    was none."""
    codes = [code for code in (outcome.launcher_code, outcome.codes.get(0)) if code]
    return next((-c if c < 0 else c - 128 for c in codes if c < 0 or 128 < c < 160), 0)


def _last(folder: Path) -> str:
    """Returns the last line of the output, as the end of a sentence."""
    for name in ("rank-0.log", "launcher.log"):
        path = folder / name
        lines = path.read_text(errors="replace").strip().splitlines() if path.is_file() else []
        if lines:
            return f"; its last line: {lines[-1].strip()[:200]}"
    return ""
