"""Kills a session of 60 real experiments on vLLM with SIGKILL, resumes it, and reports leaked resources.

    python tests/tools/serving_leaks.py FOLDER [PROFILES [LAUNCHER]]      needs .venv-vllm; 60, mode (b) "warm"

Counted before and after: processes of ours or of vLLM, files in /dev/shm, temporary folders and sockets.
"""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

from autoscout.running import processes
from kb import journal as journals

JOB = Path("fixtures/jobs/tiny-llama-serve-cpu.toml")
# A session that does not stop for lack of improvement.
OWNER = """
import sys
from pathlib import Path
from autoscout.tuning import session
from autoscout.job.load import with_budget
from autoscout.targets.jobs import load_job
from autoscout.search.hyper import Hyper
options = session.SessionOptions(strategy="random", warm_start="off", hyper=Hyper(patience=1000))
job = with_budget(load_job(sys.argv[1]), int(sys.argv[3]), None)
session.tune(job, Path(sys.argv[2]), options, lambda event: None, print, session.Stop())
"""


def main() -> None:
    root = Path(sys.argv[1])
    profiles = int(sys.argv[2]) if len(sys.argv) > 2 else 60
    launcher = sys.argv[3] if len(sys.argv) > 3 else "warm"
    root.mkdir(parents=True, exist_ok=True)
    job = root / "job.toml"
    said = JOB.read_text().replace(
        'python = ".venv-vllm/', f'launcher = "{launcher}"\npython = "{Path.cwd()}/.venv-vllm/'
    )
    said = said.replace('wall = "20m"', 'wall = "3h"')  # and without configurations that take ten times as long
    job.write_text(
        said.replace("eager = true }", 'eager = true, spec = "none" }\nlimit = { max_num_seqs = [8, 16, 32] }')
    )
    before = _things()
    kb = root / "kb.duckdb"
    began = time.monotonic()
    start = [sys.executable, "-c", OWNER, str(job), str(kb), str(profiles)]
    killed = _run(start, root / "first.log", kb, profiles // 2)
    left = _left(before)
    session = next((root / "sessions").iterdir()).name
    print(f"killed with SIGKILL after {killed} experiments; left after 20 s: {_told(left)}")
    resume = [sys.executable, "-m", "tui.cli", "tune", "--resume", session, "--no-tui", "--kb", str(kb)]
    _run(resume, root / "second.log", kb, None)
    left = _left(before)
    seconds = time.monotonic() - began
    print(f"resumed to {_ended(kb)} experiments (re-measurements included) in {seconds:.0f} s; left: {_told(left)}")
    sys.exit(1 if any(left.values()) else 0)


def _run(command: list[str], log: Path, kb: Path, kill_after: int | None) -> int:
    """Runs until the end, or kills the session during the experiment after the first `kill_after`."""
    with open(log, "wb") as output:
        process = subprocess.Popen(command, stdout=output, stderr=output, start_new_session=True)
    while process.poll() is None:
        time.sleep(0.1)
        if kill_after is not None and _ended(kb) >= kill_after:
            time.sleep(1.5)  # the next experiment is running by now
            os.kill(process.pid, signal.SIGKILL)
            process.wait()
            return _ended(kb)
    if process.returncode:
        sys.exit(f"{' '.join(command)}: exit code {process.returncode}; {log} says why")
    return _ended(kb)


def _ended(kb: Path) -> int:
    paths = list(kb.parent.glob("sessions/*/journal.jsonl"))
    return sum(isinstance(e, journals.ExperimentEnded) for e in journals.events(paths[0])) if paths else 0


def _things() -> dict[str, set[str]]:
    """Processes of our workers and of vLLM (by words in their command lines), files and sockets. The tuner has
    ended."""
    running = set()
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        try:
            words = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
            folder = os.readlink(entry / "cwd")
        except OSError:
            continue
        ours = any(word in words for word in ("zygote.py", "serving_keeper", "VLLM::", "vllm.entrypoints"))
        if ours and folder == str(Path.cwd()):
            running.add(f"{entry.name} {words.strip()[:80]}")
    temporary = {str(p) for p in Path("/tmp").glob("autoscout-*")}
    sockets = set()
    for line in Path("/proc/net/unix").read_text().splitlines()[1:]:
        path = line.split()[7] if len(line.split()) > 7 else ""
        if "autoscout" in path:
            sockets.add(path)
    return {
        "processes": running,
        "files in /dev/shm": {str(p) for p in Path("/dev/shm").iterdir()},
        "temporary folders": temporary,
        "sockets": sockets,
    }


def _left(before: dict[str, set[str]]) -> dict[str, set[str]]:
    """Resources that are new and remain for 20 s; of shared memory, only files that no process uses, because other
    programs have some."""
    deadline = time.monotonic() + 20
    while True:
        left = {what: found - before[what] for what, found in _things().items()}
        used = processes.shared_memory({int(p.name): "" for p in Path("/proc").iterdir() if p.name.isdigit()})
        left["files in /dev/shm"] -= {str(path) for path in used}
        if not any(left.values()) or time.monotonic() > deadline:
            return left
        time.sleep(0.5)


def _told(left: dict[str, set[str]]) -> str:
    return ", ".join(f"{len(found)} {what}" for what, found in left.items()) + (
        f" {sorted(set().union(*left.values()))[:4]}" if any(left.values()) else ""
    )


if __name__ == "__main__":
    main()
