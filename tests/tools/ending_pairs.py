"""How much early stopping saves in whole sessions, and whether they agree: a table of docs/your-own-script.md.

    PYTHONPATH=. python tests/tools/ending_pairs.py [JOB.toml …] [--pairs 1] [--profiles 8] [--python PYTHON]
        [--iterations 10]

Runs pairs of real sessions of each job, one with `launch.end_early` and one without, with separate knowledge bases.
Both run concurrently and alternate on the devices, one experiment each, so that the machine's state is the same. The
search and the final rounds are counted separately. Device seconds: wall time of the runs × devices; CPU seconds: of the
session and its subprocesses."""

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import msgspec

from kb import journal as journals
from kb.journal import Confirmed, ExperimentEnded

ROOT = Path(__file__).parents[2]
JOBS = ["fixtures/own/ddp.toml", "fixtures/own/sft.toml", "fixtures/jobs/tiny-gpt-cpu.toml"]


class Spent(msgspec.Struct, frozen=True, kw_only=True):
    """One session: device seconds by phase, CPU seconds, runs, runs that were stopped early, and its result."""

    search_s: float
    rounds_s: float
    cpu_s: float
    runs: int
    rounds: int
    short: int
    sentence: str

    @property
    def device_s(self) -> float:
        return self.search_s + self.rounds_s


class Running:
    """One running session of a pair, in its own folder."""

    def __init__(self, path: Path, end_early: bool, given: argparse.Namespace, seed: int) -> None:
        self._name = tempfile.TemporaryDirectory()
        self._home = Path(self._name.name)
        folder = self._home / "job"
        shutil.copytree(path.parent, folder, ignore=shutil.ignore_patterns("logs", "build"))
        job = folder / path.name
        extra = f"end_early = {str(end_early).lower()}\n"
        before = job.read_text()
        if given.iterations:
            before = re.sub(r"^iterations = .*\n", "", before, flags=re.MULTILINE)
            extra += f"iterations = {given.iterations}\n"
        if before.count("[launch]\n") != 1:
            raise SystemExit(f"{path} has no line [launch]")
        job.write_text(before.replace("[launch]\n", f"[launch]\n{extra}"))
        words = [
            "--no-tui",
            "--kb",
            str(self._home / "kb.duckdb"),
            "--profiles",
            str(given.profiles),
            "--seed",
            str(seed),
        ]
        found = f"{Path(given.python).parent}:{os.environ['PATH']}" if given.python else os.environ["PATH"]
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tui.cli", "tune", str(job), *words],
            cwd=folder,
            env={**os.environ, "PYTHONPATH": f"{ROOT}:{os.environ.get('PYTHONPATH', '')}", "PATH": found},
            stdout=sys.stderr,
        )

    def spent(self) -> Spent:
        """Waits for the session's end. Errors: SystemExit if it failed."""
        _, status, usage = os.wait4(self._process.pid, 0)
        if status:
            raise SystemExit(f"a session failed with {os.waitstatus_to_exitcode(status)}")
        (journal,) = self._home.glob("sessions/*/journal.jsonl")
        events = list(journals.events(journal))
        self._name.cleanup()
        ended = [(e.purpose == "confirm", e.measurement) for e in events if isinstance(e, ExperimentEnded)]
        return Spent(
            search_s=sum(m.device_s for last, m in ended if not last),
            rounds_s=sum(m.device_s for last, m in ended if last),
            cpu_s=usage.ru_utime + usage.ru_stime,
            runs=sum(not last for last, _ in ended),
            rounds=sum(last for last, _ in ended),
            short=sum(m.fidelity == "short" for _, m in ended),
            sentence=next(e.sentence for e in events if isinstance(e, Confirmed)),
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("jobs", nargs="*", default=JOBS)
    parser.add_argument("--pairs", type=int, default=1)
    parser.add_argument("--profiles", type=int, default=8)
    parser.add_argument("--iterations", type=int, default=0, help="of a run, in place of the job's own")
    parser.add_argument("--python", default="", help="interpreter of the command, where it is not ours")
    given = parser.parse_args()
    print(
        "| job, seed | ends early | device seconds: search, rounds | runs, given up | CPU seconds | saved | verdict |"
    )
    print("|---|---|---|---|---|---|---|", flush=True)
    for path in map(Path, given.jobs):
        for seed in range(given.pairs):
            begun = {on: Running(path, on, given, seed) for on in (False, True)}
            both = {on: session.spent() for on, session in begun.items()}
            for on in (False, True):
                print(row(f"{path.name}, {seed}", on, both[on], both[False]), flush=True)


def row(name: str, on: bool, it: Spent, full: Spent) -> str:
    saved = f"{1 - it.device_s / full.device_s:.0%} (CPU {1 - it.cpu_s / full.cpu_s:.0%})" if on else "–"
    runs = f"{it.runs} + {it.rounds}, {it.short}"
    seconds = f"{it.device_s:.0f}: {it.search_s:.0f}, {it.rounds_s:.0f}"
    cells = [name, "yes" if on else "no", seconds, runs, f"{it.cpu_s:.0f}", saved, it.sentence.split("; ")[0]]
    return f"| {' | '.join(cells)} |"


if __name__ == "__main__":
    main()
