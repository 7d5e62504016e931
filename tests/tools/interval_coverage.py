"""The coverage of the training model's 90 % intervals by source, and that with errors chosen on the other sources: the
table of docs/lab/simulators-training.md, "What the intervals hold".

    PYTHONPATH=. python -m tests.tools.interval_coverage [--data ../shared/data] [--dgxc CLONE] [--mlperf PAGES]
        [--sweep DATA]

--dgxc, --mlperf and --sweep: clones, as for published_training_dgxc, published_training_mlperf and layout_sweep.

The criterion is the mean over sources of the log interval score (width plus twenty times a row's distance outside;
Gneiting and Raftery 2007), so that every source counts equally."""

import argparse
from collections.abc import Iterator
from itertools import product
from pathlib import Path
from typing import NamedTuple

import numpy as np

from autoscout.simulate.encode import take
from autoscout.simulate.member import Columns
from autoscout.simulate.training.fleet import fleets
from autoscout.simulate.training.inputs import by_precision, complete
from autoscout.simulate.training.step import USUAL, Training, doubts
from autoscout.simulate.validation.measured import read
from autoscout.simulate.validation.training_tables import columns_of, step_seconds
from tests.tools import layout_sweep, published_training_dgxc, published_training_mlperf
from tests.tools.error_figures import DATA, TRAINING

Array = np.ndarray
WITHIN_90 = 1.645
# Doubts (additional errors) on which several sources have rows, and their candidate values.
CHOICES = {
    "experts": (0.15, 0.2, 0.25),
    "context parallelism": (0.0, 0.05, 0.1),
    "deterministic kernels": (0.0, 0.05, 0.1),
    "a device known by its data sheet": (0.03, 0.05, 0.07, 0.1),
}
USUALS = (0.06, 0.065, 0.07, 0.08, 0.09, 0.1)


class Rows(NamedTuple):
    """Rows of one source: log(measured / predicted), the stated error, and each doubt's part of it; (n,) each."""

    off: Array
    claimed: Array
    doubted: dict[str, Array]


def of_columns(columns: Columns, seconds: Array) -> Rows:
    told = Training().predict(columns)
    with np.errstate(divide="ignore", invalid="ignore"):
        off = np.log(seconds / told.value)
    usable = np.isfinite(off) & np.isfinite(told.error)
    doubted = {name: value[usable] for name, value in _doubted(columns, len(off)).items()}
    return Rows(off[usable], told.error[usable], doubted)


def _doubted(columns: Columns, n: int) -> dict[str, Array]:
    """Doubt → its (n,) part of the stated error."""
    found: dict[str, Array] = {}
    for rows, some in by_precision(columns):
        x = complete(some)
        for fleet in fleets(some, x.n, ""):
            for name, error in doubts(x.take(fleet.rows), fleet.kinds).items():
                found.setdefault(name, np.zeros(n))[rows[fleet.rows]] = error
    return found


def sources(options: argparse.Namespace) -> Iterator[tuple[str, Rows]]:
    for table in TRAINING:
        for rows in read(options.data / table).sets:
            if rows.metric != "step_time_s":
                continue
            names = rows.groups["source"].astype(object)
            if "mlperf" in table:
                lora = np.nan_to_num(np.broadcast_to(rows.columns.get("lora", 0.0), len(names))) > 0
                amd = np.array(["AMD" in gpu for gpu in rows.groups["gpu"]])
                names = np.where(lora, "MLPerf v5, adapters", "MLPerf v5, pre-training") + np.where(amd, ", AMD", "")
            for name in np.unique(names):
                here = np.flatnonzero(names == name)
                unnamed = "vTrain" if "vtrain" in table else "Megatron-core CI"
                yield unnamed if name == "table" else str(name), of_columns(take(rows.columns, here), rows.values[here])
    if options.mlperf:
        rows, _ = published_training_mlperf.rows_of(options.mlperf)
        for name, model in (("MLPerf v4, adapters", "llama2_70b_lora"), ("MLPerf v4, GPT-3", "gpt3")):
            some = [row for row in rows if row["benchmark"] == model]
            yield name, of_columns(columns_of(some), np.array([row["iteration_time_s"] for row in some]))
    if options.dgxc:
        rows, _ = published_training_dgxc.rows_of(options.dgxc)
        seconds = np.array([row["iteration_time_s"] for row in rows])
        yield "DGX Cloud's recipes", of_columns(published_training_dgxc.columns(rows), seconds)
    if options.sweep:
        rows = layout_sweep.trials(options.sweep)
        yield "a sweep of layouts", of_columns(columns_of(rows), step_seconds(rows))


def chosen(rows: Rows, usual: float, doubted: dict[str, float]) -> Array:
    """(n,) the error that would be stated with other constants."""
    variance = rows.claimed**2 - USUAL**2 + usual**2
    for name, error in doubted.items():
        old = rows.doubted.get(name, np.zeros(1))
        variance = variance - old**2 + np.where(old > 0, error, 0.0) ** 2
    return np.sqrt(variance)


def score(off: Array, claimed: Array) -> float:
    """Logarithm of the mean interval score."""
    half = WITHIN_90 * claimed
    return float(np.log(np.mean(2 * half + 20 * np.maximum(np.abs(off) - half, 0))))


def covered(off: Array, claimed: Array) -> float:
    return 100 * float(np.mean(np.abs(off) < WITHIN_90 * claimed))


def main() -> None:
    parser = argparse.ArgumentParser(description="What the training model's 90 % intervals hold, by source.")
    parser.add_argument("--data", type=Path, default=DATA)
    parser.add_argument("--dgxc", type=Path)
    parser.add_argument("--mlperf", type=Path)
    parser.add_argument("--sweep", type=Path)
    of = dict(sources(parser.parse_args()))
    tried = [(usual, dict(zip(CHOICES, errors, strict=True))) for usual, *errors in product(USUALS, *CHOICES.values())]
    scores = np.array([[score(rows.off, chosen(rows, *one)) for rows in of.values()] for one in tried])
    print("| source | rows | error (rms) | claimed | holds | by the other sources: usual, it would hold |")
    print("|---|---|---|---|---|---|")
    held = []
    for i, (name, rows) in enumerate(of.items()):
        best = tried[int(np.argmin(np.delete(scores, i, axis=1).mean(axis=1)))]
        held.append((covered(rows.off, rows.claimed), covered(rows.off, chosen(rows, *best))))
        rms = np.sqrt(np.mean(rows.off**2))
        print(
            f"| {name} | {len(rows.off)} | {rms:.3f} | {np.median(rows.claimed):.3f} | {held[-1][0]:.0f} %"
            f" | {best[0]:g}, {held[-1][1]:.0f} % |"
        )
    now, others = np.mean(held, axis=0)
    print(f"| mean of sources | | | | {now:.0f} % | {others:.0f} % |")
    usual, rest = tried[int(np.argmin(scores.mean(axis=1)))]
    print(f"best by all: usual {usual}, " + ", ".join(f"{name} {error}" for name, error in rest.items()))


if __name__ == "__main__":
    main()
