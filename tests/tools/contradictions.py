"""Checks whether two sessions of a job on a drifting machine contradict each other; the second knows the first's
results.

    python tests/tools/contradictions.py                        ten pairs on recorded values, with two drifts each
    python tests/tools/contradictions.py --real 3 --job JOB     three pairs measured here, with other load in the second

A contradiction is a configuration that one session proves faster than the reference and the other slower. The exit code
is 1 if there was one."""

import argparse
import contextlib
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import msgspec
import numpy as np

sys.path.insert(0, str(Path(__file__).parents[2]))

from autoscout.job.objective import cost
from autoscout.targets.jobs import load_job
from autoscout.tuning.study import Study
from autoscout.tuning.trial import Trial
from kb import journal as journals
from kb.journal import Confirmed, ExperimentEnded, SessionStarted
from kb.records import SpaceLimits
from tests.tools.confirm_rates import REGIMES

ROOT = Path(__file__).parents[2]
RECORDED = ROOT / "fixtures/recorded/smallest-cpu.jsonl"
# Loads both cores for 5 to 15 seconds, then idles for 5 to 15 seconds, until its parent ends it.
LOAD = """
import multiprocessing, random, time
def burn(seed):
    draw = random.Random(seed)
    while True:
        until = time.monotonic() + draw.uniform(5, 15)
        while time.monotonic() < until: pass
        time.sleep(draw.uniform(5, 15))
for seed in (1, 2): multiprocessing.Process(target=burn, args=(seed,), daemon=True).start()
time.sleep(1e6)
"""


class Said(msgspec.Struct, frozen=True):
    """What a session's final rounds prove, by configuration id."""

    faster: set[str]
    slower: set[str]
    sentence: str
    foreign: float  # median share of CPU time used by other processes


def said(journal: Path) -> Said:
    events = journals.events(journal)
    started = next(e for e in events if isinstance(e, SessionStarted))
    verdict = next(e for e in events if isinstance(e, Confirmed))
    ended = [e.measurement for e in events if isinstance(e, ExperimentEnded) and e.purpose == "confirm"]
    reference = next(m.configuration.id for m in ended if m.name == verdict.default_name)
    trial = Trial(
        finalists=sorted({m.configuration.id for m in ended} - {reference}),
        reference=reference,
        limit=max(2, 2 * started.job.launch.repeats),
    )
    rounds: list[list[tuple[str, float]]] = [[]]
    for m in ended:
        twice = 2 if m.configuration.id == reference and len(rounds) <= 2 else 1
        if sum(name == m.configuration.id for name, _ in rounds[-1]) >= twice:
            rounds.append([])
        if (c := cost(started.job.objective, m)) is not None:
            rounds[-1].append((m.configuration.id, c))
    fit = trial.fit([row for row in rounds if row])
    against = {name: trial.against(fit, name) for name in fit.level if name != reference and reference in fit.level}
    foreign = [m.conditions["foreign_cpu_share"] for m in ended if "foreign_cpu_share" in m.conditions]
    return Said(
        faster={verdict.winner.id} if verdict.verdict == "faster" else set(),
        slower={name for name, contrast in against.items() if contrast.high < 0},
        sentence=verdict.sentence.split("; peak")[0].split("; a ")[0],
        foreign=float(np.median(foreign)) if foreign else float("nan"),
    )


def replayed(kb: Path, seed: int, regime: str, level: float, near: bool) -> Said:
    """A session over recorded values, multiplied by the machine's simulated drift. `near`: only similar configurations,
    among which hardly any is faster; the whole space has a clear gain."""
    recorded = {
        e.measurement.configuration.id: e.measurement
        for e in journals.events(RECORDED)
        if isinstance(e, ExperimentEnded) and e.measurement.status == "ok"
    }
    job = load_job(str(ROOT / "fixtures/jobs/smallest-cpu.toml"))
    if near:
        job = msgspec.structs.replace(job, space=SpaceLimits(fix={"mbs": 4}, limit={"ar": ["full", "selective"]}))
    noise, at = REGIMES[regime](np.random.default_rng(seed), level, 1000), 0
    with Study(job, kb=kb, profiles=16, seed=seed) as study:
        while study.wants_more():
            for configuration in study.ask():
                at += 1
                found = recorded[configuration.id].metrics["step_time_s"]
                study.tell(configuration, {"step_time_s": found * float(np.exp(noise[at]))})
        session = study.session
    return said(kb.parent / "sessions" / session / "journal.jsonl")


@contextlib.contextmanager
def load(wanted: bool) -> Iterator[None]:
    busy = subprocess.Popen([sys.executable, "-c", LOAD], start_new_session=True) if wanted else None
    try:
        yield
    finally:
        if busy is not None:
            os.killpg(busy.pid, signal.SIGTERM)
            busy.wait()


def measured(kb: Path, job: str, profiles: int, seed: int, loaded: bool) -> Said:
    """A real session on this machine. `loaded`: with other load."""
    words = ["tune", job, "--no-tui", "--kb", str(kb), "--profiles", str(profiles), "--seed", str(seed)]
    before = set((kb.parent / "sessions").glob("*")) if kb.parent.exists() else set()
    with load(loaded):
        subprocess.run(
            [sys.executable, "-m", "tui.cli", *words],
            check=True,
            cwd=ROOT,
            env={**os.environ, "PYTHONPATH": str(ROOT)},
            stdout=subprocess.DEVNULL,
        )
    (session,) = set((kb.parent / "sessions").glob("*")) - before
    return said(session / "journal.jsonl")


def contradicts(one: Said, other: Said) -> bool:
    return bool(one.faster & other.slower or other.faster & one.slower)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--pairs", type=int, default=10)
    parser.add_argument("--real", type=int, default=0)
    parser.add_argument("--job", default="fixtures/jobs/tiny-moe-cpu.toml")
    parser.add_argument("--profiles", type=int, default=10)
    asked = parser.parse_args()
    found = 0
    for pair in range(asked.real or asked.pairs):
        with tempfile.TemporaryDirectory() as folder:
            kb = Path(folder) / "kb.duckdb"
            if asked.real:
                both = [measured(kb, asked.job, asked.profiles, pair, loaded) for loaded in (False, True)]
            else:
                regimes, level = list(REGIMES), (0.02, 0.1)[pair % 2]
                both = [replayed(kb, 2 * pair + i, regimes[(pair + i) % 3], level, pair % 5 > 1) for i in (0, 1)]
        against = contradicts(*both)
        found += against
        print(f"pair {pair + 1}: {'CONTRADICTION' if against else 'no contradiction'}")
        for each in both:
            others = "" if np.isnan(each.foreign) else f"  (others took {each.foreign:.0%} of the CPU time)"
            print(f"  {each.sentence}{others}", flush=True)
    print(f"{found} contradictions in {asked.real or asked.pairs} pairs")
    raise SystemExit(1 if found else 0)


if __name__ == "__main__":
    main()
