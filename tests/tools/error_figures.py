"""Errors of the analytic simulators by source, without measurements of the job: the regression test of the test suite.

    python -m tests.tools.error_figures [--data ../shared/data] [--write]

Prints increases over tests/autoscout/error_figures.json (exit code 1 if there are any); --write writes the new figures
to that file. A source fails if its error rises by two points or a tenth (the smaller of both, but at least half a
point), if fewer rows are predicted, or if its 90 % interval contains 5 points less of the rows."""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

import msgspec
import numpy as np

from autoscout.simulate.encode import take
from autoscout.simulate.members import analytic
from autoscout.simulate.training.memory import Memory
from autoscout.simulate.validation.against import score_as_it_is
from autoscout.simulate.validation.measured import read

FIGURES = Path(__file__).parents[1] / "autoscout" / "error_figures.json"
DATA = Path(__file__).parents[3] / "shared" / "data"
TABLES = (
    "landscapes/vtrain_a100_single_node.csv.gz",
    "validation/train_end_to_end.csv.gz",
    "validation/mlperf_train.csv.gz",
    "validation/megatron_ci_golden_large_models.csv",
    "validation/serve_end_to_end.csv.gz",
)
TRAINING = TABLES[:-1]  # fast enough for the test suite, unlike serving, which is simulated event by event
POINTS, SHARE, LEAST = 2.0, 0.1, 0.5
SERVING_STEP = 24  # one in this many rows of serving tables is used, because event simulation is slow


class Figure(msgspec.Struct, frozen=True):
    """Errors of one source and metric: `mape` in percent over `rows`; `rank` correlation, and regret of the predicted
    best (percent) within its jobs; `inside`: percent of rows in their 90 % interval."""

    rows: int
    mape: float
    inside: float
    rank: float | None
    regret: float | None


def figures(data: Path, tables: Sequence[str] = TABLES) -> dict[str, Figure]:
    found: dict[str, Figure] = {}
    for name in tables:
        measured = read(data / name)
        for rows in measured.sets:
            for source in np.unique(rows.groups["source"]):
                here = np.flatnonzero(rows.groups["source"] == source)
                here = here[::SERVING_STEP] if rows.task == "serve" else here
                some = rows._replace(
                    columns=take(rows.columns, here),
                    values=rows.values[here],
                    groups={k: v[here] for k, v in rows.groups.items()},
                    job=rows.job[here],
                )
                (member,) = analytic(rows.metric, rows.task)
                told = score_as_it_is(some, member.predict(some.columns))
                found[f"{Path(name).name.split('.')[0]}/{source}/{rows.metric}"] = Figure(
                    rows=told.rows,
                    mape=round(100 * told.mape, 1),
                    inside=round(100 * told.coverage, 1),
                    rank=None if told.rank is None else round(told.rank, 3),
                    regret=None if told.regret is None else round(100 * told.regret, 1),
                )
        if measured.runs is not None:
            died = np.isposinf(measured.runs.values)
            wrong = 100 * float((Memory().fits(measured.runs.columns) == died).mean())
            found[f"{Path(name).name.split('.')[0]}/does it fit"] = Figure(
                len(died), round(wrong, 1), 100.0, None, None
            )
    return found


def risen(before: dict[str, Figure], now: dict[str, Figure]) -> list[str]:
    """A sentence for each source whose errors increased."""
    worse = []
    for name, old in before.items():
        new = now.get(name)
        if new is None or new.rows < old.rows:
            worse.append(f"{name}: {new.rows if new else 0} rows are predicted, {old.rows} were")
            continue
        if new.mape > old.mape + max(min(POINTS, SHARE * old.mape), LEAST):
            worse.append(f"{name}: errs by {new.mape:.1f} %, before {old.mape:.1f} %")
        if new.inside < min(old.inside, 90.0) - 5:
            worse.append(f"{name}: {new.inside:.0f} % of rows lie in their 90 % interval, before {old.inside:.0f} %")
    return worse


def main() -> None:
    parser = argparse.ArgumentParser(description="Error figures of the analytic simulators, by source.")
    parser.add_argument("--data", type=Path, default=DATA)
    parser.add_argument("--write", action="store_true", help="commit the figures")
    options = parser.parse_args()
    now = figures(options.data)
    print("| source, metric | rows | MAPE | in 90 % interval | rank correlation in a job | regret of the favourite |")
    print("|---|---|---|---|---|---|")
    for name, of in now.items():
        told = [f"{of.rank:.3f}" if of.rank is not None else "", f"{of.regret:.1f} %" if of.regret is not None else ""]
        print(f"| {name} | {of.rows} | {of.mape:.1f} % | {of.inside:.0f} % | {' | '.join(told)} |")
    if options.write:
        FIGURES.write_bytes(msgspec.json.format(msgspec.json.encode(now), indent=1) + b"\n")
        return
    worse = risen(msgspec.json.decode(FIGURES.read_bytes(), type=dict[str, Figure]), now)
    print("\n".join(worse))
    sys.exit(1 if worse else 0)


if __name__ == "__main__":
    main()
