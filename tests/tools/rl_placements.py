"""Placements of an RL job on CPU ranks: measures them, and compares predictions and searches with the measurements.

    PYTHONPATH=. python tests/tools/rl_placements.py measure JOB.toml TABLE.jsonl [--minutes 9] [--times 3] [--only A,B]
    PYTHONPATH=. python tests/tools/rl_placements.py compare JOB.toml TABLE.jsonl
    PYTHONPATH=. python tests/tools/rl_placements.py search JOB.toml TABLE.jsonl [--profiles 12] [--seeds 8]

`measure` adds measurements of every valid configuration to TABLE, in rounds, until each was measured some times or the
minutes are over; repeat it to go on. `compare` predicts from nothing, from the reference alone, and from the reference
with a few others. `search` runs sessions that are answered from TABLE. Put the interpreter with TRL first on PATH.
"""

import argparse
import statistics
import tempfile
import time
from collections import Counter
from pathlib import Path

import msgspec
import numpy as np

from autoscout.job.load import with_budget
from autoscout.simulate.ensemble import Simulators, medians
from autoscout.simulate.iteration.measured_phases import PHASES, measured_phases
from autoscout.targets.jobs import JobSpace, load_job, profiler_of, simulators_of
from autoscout.tuning.loop import Stop
from autoscout.tuning.session import SessionOptions, tune
from kb import dates
from kb.journal import ExperimentEnded, SessionStarted
from kb.records import Configuration, Job, Measurement
from tui.text import table


def valid(space: JobSpace) -> list[Configuration]:
    """All configurations: the reference, then those with the same environment variables one after the other, since a
    warm interpreter cannot change them."""
    every = [space.of_codes(codes) for codes in space.feasible.codes.tolist()]
    others = [c for c in every if c != space.reference]
    return [space.reference, *sorted(others, key=lambda c: (c.knobs.get("threads", 0), list(c.knobs.values())))]


def measured(path: Path) -> list[Measurement]:
    lines = path.read_bytes().splitlines() if path.exists() else []
    return [msgspec.json.decode(line, type=Measurement) for line in lines]


def measure(job: Job, path: Path, minutes: float, times: int, only: list[str]) -> None:
    space, until = JobSpace.of_job(job), time.monotonic() + 60 * minutes
    known, profiler = Counter(m.configuration for m in measured(path)), profiler_of(job)
    wanted = [c for c in valid(space) if not only or space.name(c) in only]
    missing = [c for so_far in range(times) for c in wanted if known[c] <= so_far]
    try:
        for configuration in missing:
            if time.monotonic() > until:
                break
            with tempfile.TemporaryDirectory() as folder:
                found = profiler.run(configuration, space.name(configuration), Path(folder) / "run")
            print(
                found.name, found.status, found.evidence[:100], found.metrics.get("step_time_s"), f"{found.cost_s:.0f}"
            )
            with path.open("ab") as file:
                file.write(msgspec.json.encode(found) + b"\n")
    finally:
        profiler.close()


def compare(job: Job, rows: list[Measurement]) -> None:
    space = JobSpace.of_job(job)
    placements, values = medians(rows, job.objective.metric)
    rates, first = np.array(values), [m for m in rows if m.configuration == space.reference]
    print(f"{job.name}: {len(placements)} placements, {len(rows)} runs")
    lines = []
    for called, known in {"nothing": [], "the reference": first, **_some(rows, placements, first)}.items():
        simulators = Simulators(job, space, known, bases=lambda: simulators_of(job))
        predicted = simulators.ensemble.predict(simulators.columns(placements)).value
        seen = {m.configuration for m in known}
        errors = np.array(
            [abs(p / r - 1) for p, r, c in zip(predicted, rates, placements, strict=True) if c not in seen]
        )
        best = int(np.argmax(predicted))
        shares = f"{errors.mean():.1%}", f"{np.quantile(errors, 0.9):.0%}", f"{rates.max() / rates[best] - 1:.1%}"
        lines.append((called, *shares, space.name(placements[best])))
    print(table(lines, ("measured before", "mean error", "9 of 10", "favourite behind the best", "favourite")))
    _by_phase(job, space, rows, first, placements)


def _some(
    rows: list[Measurement], placements: list[Configuration], first: list[Measurement]
) -> dict[str, list[Measurement]]:
    """The reference with a few other placements, drawn with a fixed seed."""
    order = [placements[i] for i in np.random.default_rng(0).permutation(len(placements))]
    others = [c for c in order if c != first[0].configuration]
    return {f"the reference, {n} others": [*first, *(m for m in rows if m.configuration in others[:n])] for n in (3, 7)}


def _by_phase(
    job: Job, space: JobSpace, rows: list[Measurement], first: list[Measurement], placements: list[Configuration]
) -> None:
    """Measured and predicted seconds of each phase, from the reference alone."""
    (member,) = simulators_of(job)
    simulators = Simulators(job, space, first, bases=lambda: [member])
    parts = member.predict(simulators.columns(placements)).parts
    predicted = {**parts, "rollout": parts["rollout"] + parts["tail"]}
    phases, lines = measured_phases(rows, placements), []
    for i, configuration in enumerate(placements):
        cells = [f"{phases[name][i]:.3f} {predicted[name][i]:.3f}" for name in PHASES]
        whole = f"{sum(phases[i].tolist()):.3f} {sum(float(seconds[i]) for seconds in parts.values()):.3f}"
        lines.append((space.name(configuration), *cells, whole))
    print(table(lines, ("measured, predicted s", *PHASES, "iteration")))


def search(job: Job, rows: list[Measurement], profiles: int, seeds: int) -> None:
    space, lines = JobSpace.of_job(job), []
    placements, values = medians(rows, job.objective.metric)
    truth = {c: 1 / value for c, value in zip(placements, values, strict=True)}
    best = min(truth.values())
    with tempfile.TemporaryDirectory() as folder:
        journal = Path(folder) / "journal.jsonl"
        journal.write_bytes(b"".join(msgspec.json.encode(e) + b"\n" for e in _journal(job, space, rows)))
        launch = msgspec.structs.replace(job.launch, launcher="replay", recorded=str(journal))
        again = with_budget(msgspec.structs.replace(job, launch=launch), profiles, "1h")
        for seed in range(seeds):
            kb, found = Path(folder) / f"{seed}.duckdb", []
            options = SessionOptions(seed=seed, warm_start="off")
            tune(again, kb, options, found.append, lambda note: None, Stop())
            tried = [e.measurement for e in found if isinstance(e, ExperimentEnded) and e.purpose != "confirm"]
            costs = [truth.get(m.configuration, np.inf) for m in tried]
            within = next((i + 1 for i in range(len(costs)) if min(costs[: i + 1]) <= 1.03 * best), None)
            lines.append((str(seed), str(len(tried)), f"{min(costs) / best - 1:.1%}", str(within or "never")))
    print(table(lines, ("seed", "experiments", "behind the best", "within 3 % after")))
    print(f"median {statistics.median(float(line[2][:-1]) for line in lines):.1f} % behind the best")


def _journal(job: Job, space: JobSpace, rows: list[Measurement]) -> list[SessionStarted | ExperimentEnded]:
    started = SessionStarted(
        session="table",
        job=job,
        context=rows[0].context,
        strategy="random",
        seed=0,
        fidelity="profile",
        warm_start="off",
        hyper={},
        environment=rows[0].environment,
        kb_mark=0,
        default=space.reference,
        orderings=[],
        at=dates.now(),
    )
    return [started, *(ExperimentEnded(number=i, purpose="search", measurement=m, at=m.at) for i, m in enumerate(rows))]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["measure", "compare", "search"])
    parser.add_argument("job", type=Path)
    parser.add_argument("table", type=Path)
    parser.add_argument("--minutes", type=float, default=9.0)
    parser.add_argument("--only", default="")
    parser.add_argument("--times", type=int, default=3)
    parser.add_argument("--profiles", type=int, default=12)
    parser.add_argument("--seeds", type=int, default=8)
    given = parser.parse_args()
    job = load_job(given.job)
    if given.what == "measure":
        measure(job, given.table, given.minutes, given.times, [*filter(None, given.only.split(","))])
    elif given.what == "compare":
        compare(job, measured(given.table))
    else:
        search(job, measured(given.table), given.profiles, given.seeds)


if __name__ == "__main__":
    main()
