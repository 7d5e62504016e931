"""The verbs on jobs whose configurations cannot be listed, as a person runs them: what they print, how long, how much.

    PYTHONPATH=. python tests/tools/large_jobs.py [JOB …]          writes docs/lab/large-jobs.md

Jobs: fixtures/large. No GPU runs: what `best` shows was told to a `Study` by a stand-in, the simulator itself with 3 %
of each configuration's own and 2 % of noise, and out of memory where the memory model says so.
"""

import os
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import msgspec
import numpy as np

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT))

from autoscout import Study  # noqa: E402
from autoscout.simulate.ensemble import Simulators, memory_of  # noqa: E402
from autoscout.targets.jobs import load_job  # noqa: E402

PAGE = ROOT / "docs" / "large-jobs.md"
EXPERIMENTS = 12
HEAD = """# Large jobs, as a person sees them

`PYTHONPATH=. python tests/tools/large_jobs.py` runs this page anew: `tune --dry-run`, `predict`, `explain` and `best`
on the jobs of `fixtures/large`, none of which can be listed. Behind each command: CPU time of the whole process, start
of Python included, on one core of a busy machine, and its largest memory. No GPU was there: what `best` shows was told
to a `Study` by a stand-in (the simulator with noise), so it shows the verb and not a gain.
"""


def ran(words: list[str], kb: Path | None = None) -> str:
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    command = [sys.executable, "-m", "tui.cli", *words, *(["--kb", str(kb)] if kb else [])]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, env=_environment())
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    said = (done.stdout + done.stderr).strip().replace(sys.executable, "python").replace(f"{ROOT}/", "")
    cost = f"{cpu:.1f} s of CPU, {after.ru_maxrss / 1024:.0f} MiB, exit code {done.returncode}"
    return f"```\n$ autoscout {' '.join(words)}\n{said}\n```\n\n{cost}\n"


def searched(path: Path, kb: Path) -> tuple[str, str]:
    """A study that is told by a stand-in: how long a step took, and its session."""
    job = load_job(path)
    job = msgspec.structs.replace(job, launch=msgspec.structs.replace(job.launch, repeats=1))
    study = Study(job, kb=kb, profiles=EXPERIMENTS)
    simulators, memory = Simulators(job, study.space, []), memory_of(job, study.space, [])
    assert memory is not None
    rng, spent, asked, failed = np.random.default_rng(0), 0.0, 0, 0
    begun = time.process_time()
    while study.wants_more():
        for configuration in study.ask():
            asked += 1
            at = time.process_time()
            own = np.random.default_rng(int(configuration.id[:8], 16)).standard_normal()
            columns = simulators.columns([configuration])
            gib, fits = float(memory.predict(columns).value[0]), memory.oom_probability(columns)[0] < 0.5
            value = simulators.predict(configuration)[0] * float(np.exp(0.03 * own + 0.02 * rng.standard_normal()))
            spent += time.process_time() - at
            if not fits:
                failed += 1
                study.tell(configuration, failed="oom")
            else:
                study.tell(configuration, {"step_time_s": value, "peak_memory_gib": gib})
    took = 1000 * (time.process_time() - begun - spent) / asked
    steps = f"{asked} experiments, {failed} of them out of memory: {took:.0f} ms of CPU time each on average"
    return f"A study of {steps}.\n", study.session


def _environment() -> dict[str, str]:
    nothing_known = {"XDG_DATA_HOME": str(Path(tempfile.gettempdir()) / "nothing")}
    return {**os.environ, "OMP_NUM_THREADS": "1", "COLUMNS": "120", "PYTHONPATH": str(ROOT), **nothing_known}


def main() -> None:
    paths = sorted((ROOT / "fixtures" / "large").glob("*.toml"))
    chosen = [p for p in paths if not sys.argv[1:] or p.stem in sys.argv[1:]]
    text = [HEAD]
    for path in chosen:
        job = str(path.relative_to(ROOT))
        with tempfile.TemporaryDirectory() as folder:
            kb = Path(folder) / "kb.duckdb"
            text.append(f"## {path.stem}\n")
            text.append(ran(["tune", job, "--dry-run"]))
            text.append(ran(["predict", job, "mbs=1"]))
            text.append(ran(["explain", job, "tp=16", "mbs=3"]))
            said, session = searched(path, kb)
            text += [said, ran(["best", session], kb)]
        PAGE.write_text("\n".join(text))


if __name__ == "__main__":
    main()
