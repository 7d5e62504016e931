"""Compares a full grid of max_num_seqs × max_num_batched_tokens, as in vLLM's tuner, with our session: experiments
until the same result. Needs .venv-vllm.

    python tests/tools/serving_grid.py grid FOLDER [LAUNCHER]    measures the points once; run it again for repeats
    python tests/tools/serving_grid.py session FOLDER [SEED]     our session on the same two knobs
    python tests/tools/serving_grid.py table FOLDER

benchmarks/auto_tune/auto_tune.sh of vLLM sweeps the same two knobs over lists that the user writes; here they have the
catalog's values, without configurations that its rules consider equivalent. Each measurement starts an engine in mode
(b)."""

import json
import statistics
import sys
import time
from collections.abc import Mapping
from pathlib import Path

import msgspec

from autoscout.targets.jobs import JobSpace, load_job, profiler_of
from autoscout.tuning import session
from kb import journal as journals
from kb.records import Job, SpaceLimits

JOB = "fixtures/jobs/tiny-llama-serve-cpu.toml"
SWEPT = ("max_num_seqs", "max_num_batched_tokens")
WITHIN = (0.05, 0.02)


def main() -> None:
    verb, folder, *rest = sys.argv[1:]
    root = Path(folder)
    root.mkdir(parents=True, exist_ok=True)
    if verb == "grid":
        _grid(root, rest[0] if rest else "warm")
    elif verb == "session":
        _session(root, int(rest[0]) if rest else 0)
    else:
        _table(root)


def _job() -> Job:
    """The job with defaults for all but the two knobs."""
    job = load_job(JOB)
    default = JobSpace.of_job(job).reference
    fixed = {name: value for name, value in default.knobs.items() if name not in SWEPT}
    return msgspec.structs.replace(job, space=SpaceLimits(fix=fixed))


def _grid(root: Path, launcher: str) -> None:
    job = _job()
    job = msgspec.structs.replace(job, launch=msgspec.structs.replace(job.launch, launcher=launcher))
    points = list(JobSpace.of_job(job).configurations())
    profiler = profiler_of(job)
    for i, configuration in enumerate(points):
        m = profiler.run(configuration, "x", root / "grid" / f"{i:04d}-{time.time_ns()}")
        value = m.metrics.get(job.objective.metric)
        said = {"of": len(points), "knobs": configuration.knobs, "value": value, "cost_s": m.cost_s}
        said |= {"launcher": launcher, "evidence": m.evidence}
        with open(root / "grid.jsonl", "a") as file:
            file.write(json.dumps(said) + "\n")
        print(" ".join(f"{name}={configuration.knobs[name]}" for name in SWEPT), m.status, value, flush=True)
    profiler.close()


def _session(root: Path, seed: int) -> None:
    job = _job()
    options = session.SessionOptions(seed=seed, fidelity="profile", warm_start="off")
    kb = root / f"kb-{seed}" / "kb.duckdb"
    session.tune(job, kb, options, lambda event: None, print, session.Stop(), name=f"seed-{seed}")


def _table(root: Path) -> None:
    rows = [json.loads(line) for line in (root / "grid.jsonl").read_text().splitlines()]
    by_mode: dict[str, dict[str, list[float]]] = {}
    for row in rows:
        by_mode.setdefault(row["launcher"], {}).setdefault(_point(row["knobs"]), []).append(row["value"] or 0.0)
    known = {point: statistics.fmean(found) for point, found in by_mode["warm"].items()}
    best = max(known, key=known.__getitem__)
    for launcher, values in by_mode.items():
        costs = [row["cost_s"] for row in rows if row["launcher"] == launcher]
        factors = [statistics.fmean(found) / known[point] for point, found in values.items()]
        said = [row["evidence"] for row in rows if row["launcher"] == launcher and row["evidence"]]
        print(
            f"{launcher}: {len(values)} points, {60 / statistics.fmean(costs):.1f} a minute; against fresh engines "
            f"{statistics.geometric_mean(factors):.3f} times on the average, {min(factors):.2f} to {max(factors):.2f}; "
            f"{said or 'no check disagreed'}"
        )
    print(f"the grid: {rows[0]['of']} experiments; best {best}: {known[best]:.0f}")
    for path in sorted(root.glob("kb-*/sessions/*/journal.jsonl")):
        _of_session(path, known, known[best])


def _of_session(path: Path, known: dict[str, float], best: float) -> None:
    """Prints the session's progress by the grid's measurements of its points, which excludes lucky measurements."""
    ended = [e for e in journals.events(path) if isinstance(e, journals.ExperimentEnded)]
    searched = [e.measurement for e in ended if e.purpose != "confirm"]
    confirmed = next((e for e in journals.events(path) if isinstance(e, journals.Confirmed)), None)
    needed = {}
    for within in WITHIN:
        reached = [i for i, m in enumerate(searched, 1) if known[_point(m.configuration.knobs)] >= (1 - within) * best]
        needed[within] = reached[0] if reached else None
    told = ", ".join(f"within {within:.0%} of the grid's best after {n}" for within, n in needed.items())
    winner = _point(confirmed.winner.knobs) if confirmed else "none"
    print(
        f"{path.parent.name}: {len(searched)} experiments of search, {len(ended) - len(searched)} to confirm; {told}; "
        f"recommends {winner} ({known.get(winner, 0.0):.0f} in the grid)"
    )


def _point(knobs: Mapping[str, object]) -> str:
    return " × ".join(str(knobs[name]) for name in SWEPT)


if __name__ == "__main__":
    main()
