"""What it costs a prediction that a measured row leaves something unsaid: by source, with all that its table says, with
one thing after the other removed, with none of them, and with three of its rows known.

    python -m tests.tools.unsaid_costs TABLE…        (csv, csv.gz, parquet; Markdown on the standard output)

A source is a table's model on a kind of device, as the source's own name is removed. Three rows, of which nothing is
said either, are the first, the middle and the last; the others are predicted from them. Cover is the share of rows
inside the 90 % interval. The dearest thing is what adds most points of error when it alone is removed.
"""

import argparse
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from autoscout.simulate.encode import take
from autoscout.simulate.learned.weighing import SPAN
from autoscout.simulate.member import Prediction
from autoscout.simulate.members import analytic
from autoscout.simulate.validation.column_names import ALIASES, plain
from autoscout.simulate.validation.measured import MeasuredRows, read_rows
from kb.table_files import read_table

Array = np.ndarray
Row = dict[str, Any]
# By what is removed, the columns that say it.
THINGS = {
    "its source": ("source", "source_ref", "round", "submitter", "system", "suite", "group"),
    "its framework": ("framework",),
    "its release": ("version", "round"),
    "its cache": ("kv_dtype",),
    "its kernels": ("attention", "fused_norm", "fused_activation", "te", "graphs"),
    "its overlaps": ("overlap_grad", "overlap_param", "overlap_p2p", "tp_comm_overlap"),
}
_NOTES = ("other", "config_file", "source_file", "file", "blob", "commit")  # texts that may repeat them
_FEWEST, _KNOWN = 6, 3  # rows of a source; of these known


class Scored(NamedTuple):
    rows: int
    error: float  # mean absolute, a fraction
    cover: float


def main() -> None:
    parser = argparse.ArgumentParser(description="What it costs that rows leave something unsaid.")
    parser.add_argument("tables", type=Path, nargs="+")
    print("| source | metric | rows | said | unsaid | after three rows | dearest | cover: said, unsaid, after |")
    print("|---|---|---|---|---|---|---|---|")
    for path in parser.parse_args().tables:
        for line in lines(path):
            print(line)


def lines(path: Path) -> Iterator[str]:
    """Markdown, a row a source and metric."""
    table = read_table(path)
    names = [plain(name) for name in table.columns]
    rows = [dict(zip(names, row, strict=True)) for row in table.rows]
    whole = by_source(rows)
    nothing = by_source(without(rows, [name for some in THINGS.values() for name in some] + list(_NOTES)), whole)
    alone = {thing: by_source(without(rows, some), whole) for thing, some in THINGS.items()}
    for key, (said, _) in whole.items():
        if key not in nothing:
            continue
        unsaid, known = nothing[key]
        costs = {thing: found[key][0].error - said.error for thing, found in alone.items() if key in found}
        dearest = max(costs, key=lambda thing: costs[thing])
        dear = f"{dearest} +{100 * costs[dearest]:.0f}" if costs[dearest] >= 0.01 else ""
        cover = ", ".join(f"{100 * each.cover:.0f} %" for each in (said, unsaid, known))
        errors = " | ".join(f"{100 * each.error:.1f} %" for each in (said, unsaid, known))
        yield f"| {path.name.partition('.')[0]}: {key[0]} | {key[1]} | {said.rows} | {errors} | {dear} | {cover} |"


def without(rows: Sequence[Row], names: Sequence[str]) -> list[Row]:
    return [{name: v for name, v in row.items() if ALIASES.get(name, name) not in names} for row in rows]


Sources = dict[tuple[str, str], tuple[Scored, Scored]]


def by_source(rows: Sequence[Row], like: Sources | None = None) -> Sources:
    """By source and metric: as they are, and with three rows known. `like`: those that are wanted; None: all."""
    found: Sources = {}
    for some in read_rows(list(rows)).sets:
        member = next((m for m in analytic(some.metric, some.task) if not m.applies(some.columns)), None)
        if member is None:
            continue
        for name in np.unique(keys := _keys(some)).tolist():
            here = np.flatnonzero(keys == name)
            key = name, some.metric
            if len(here) >= _FEWEST and (like is None or key in like):
                columns, values = take(some.columns, here), some.values[here]
                before = _scored(member.predict(columns), values, np.arange(len(here)))
                first = np.linspace(0, len(here) - 1, _KNOWN).astype(int)
                fitted = next(m for m in analytic(some.metric, some.task) if m.name == member.name)
                fitted.fit(take(columns, first), values[first])
                rest = np.setdiff1d(np.arange(len(here)), first)
                found[key] = before, _scored(fitted.predict(take(columns, rest)), values[rest], np.arange(len(rest)))
    return found


def _keys(some: MeasuredRows) -> Array:
    """Without the source's name, which is removed: the kind of device and of model."""
    return np.array([f"{model} on {gpu}" for model, gpu in zip(some.groups["model"], some.groups["gpu"], strict=True)])


def _scored(said: Prediction, values: Array, rows: Array) -> Scored:
    with np.errstate(divide="ignore", invalid="ignore"):
        off = np.log(said.value[rows] / values[rows])
    known = np.isfinite(off)
    if not known.any():
        return Scored(0, float("nan"), float("nan"))
    inside = np.abs(off) <= SPAN * said.error[rows]
    return Scored(int(known.sum()), float(np.abs(np.expm1(off[known])).mean()), float(inside[known].mean()))


if __name__ == "__main__":
    main()
