"""What a search finds rests on what knobs do: not on their names, nor on how a table is written or sorted, nor on a
knob that is there twice."""

import csv
import itertools
from pathlib import Path

import numpy as np
import pytest

from autoscout.studies.bench.landscape import Landscape
from autoscout.studies.bench.run import BenchSettings, run
from autoscout.studies.bench.table_landscape import TableSource, landscapes_of_table

KNOBS = {
    "workers": (1, 2, 4, 8, 16),
    "chunk": (64, 128, 256, 512),
    "depth": (1, 2, 3, 4, 6),
    "lock": ("none", "spin", "wait"),
}
KINDS = {"sparse": ["workers", "lock"], "dense": ["chunk", "depth"]}
BUDGET = 60
Row = dict[str, object]


def measured() -> list[Row]:
    """300 rows: what two knobs do together, a kind of lock, and a little of each configuration's own."""
    rng, rows = np.random.default_rng(11), []
    for workers, chunk, depth, lock in itertools.product(*KNOBS.values()):
        together = abs(np.log2(workers * chunk) - 9.5) + 0.4 * abs(np.log2(depth) - 1.3)
        waits = {"none": 0.6, "spin": 0.05 * workers, "wait": 0.25}[lock]
        rows.append({"workers": workers, "chunk": chunk, "depth": depth, "lock": lock})
        rows[-1]["time_ms"] = float((1 + together + waits) * np.exp(0.02 * rng.standard_normal()))
    return rows


def landscape(folder: Path, rows: list[Row], sparse: list[str], dense: list[str]) -> Landscape:
    path = folder / "table.csv"
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)
    source = TableSource(path=path, metric="time_ms", goal="min", knobs=[*sparse, *dense], sparse=sparse, dense=dense)
    [found], _ = landscapes_of_table(source)
    return found


def told(land: Landscape, seed: int = 0, budget: int = 40) -> list[float | None]:
    return [cost for _, cost in run(land, "autoscout", seed, BenchSettings(budget=budget, whole=False))[1]]


def found_after(land: Landscape) -> float:
    """Experiments until one within 1 % of the best, geometric mean of six seeds."""
    counts = [
        run(land, "autoscout", seed, BenchSettings(budget=BUDGET, noise=0.02, whole=False))[0] for seed in range(6)
    ]
    return float(np.exp(np.mean([np.log(each.evaluations_to_target or BUDGET + 1) for each in counts])))


@pytest.mark.parametrize("order", ["by chance", "best first", "best last", "each row three times"])
def test_how_a_table_is_sorted_changes_nothing(tmp_path: Path, order: str) -> None:
    rows = measured()
    best_first = sorted(rows, key=lambda row: float(str(row["time_ms"])))
    other = {
        "by chance": [rows[i] for i in np.random.default_rng(3).permutation(len(rows))],
        "best first": best_first,
        "best last": best_first[::-1],
        "each row three times": [row for row in rows for _ in range(3)],
    }[order]
    assert told(landscape(tmp_path, other, **KINDS)) == told(landscape(tmp_path, rows, **KINDS))


def test_names_change_nothing(tmp_path: Path) -> None:
    names, locks = {"workers": "a", "chunk": "b", "depth": "c", "lock": "d"}, {"none": "p", "spin": "q", "wait": "r"}
    other = [{names.get(k, k): locks.get(str(v), v) for k, v in row.items()} for row in measured()]
    kinds = {kind: [names[name] for name in of] for kind, of in KINDS.items()}
    assert told(landscape(tmp_path, other, **kinds)) == told(landscape(tmp_path, measured(), **KINDS))


def test_the_unit_of_a_number_changes_nothing(tmp_path: Path) -> None:
    other = [{**row, "chunk": 1024 * int(str(row["chunk"])), "time_ms": row["time_ms"]} for row in measured()]
    assert told(landscape(tmp_path, other, **KINDS)) == told(landscape(tmp_path, measured(), **KINDS))


def test_which_name_means_what_and_which_column_comes_first_does_not_decide(tmp_path: Path) -> None:
    """Other draws of chance, so not the same experiments: not many more, and not many fewer."""
    plain = found_after(landscape(tmp_path, measured(), **KINDS))
    swapped = {"none": "wait", "spin": "none", "wait": "spin"}
    columns = ["lock", "depth", "time_ms", "chunk", "workers"]
    other = [{name: swapped.get(str(row[name]), row[name]) for name in columns} for row in measured()]
    moved = found_after(landscape(tmp_path, other, ["lock", "workers"], ["depth", "chunk"]))
    assert plain < BUDGET / 2
    assert 0.5 < moved / plain < 2


def test_a_knob_that_is_there_twice_costs_little(tmp_path: Path) -> None:
    plain = found_after(landscape(tmp_path, measured(), **KINDS))
    other = [{**row, "threads": row["workers"], "seed": 7} for row in measured()]
    twice = found_after(landscape(tmp_path, other, [*KINDS["sparse"], "threads"], KINDS["dense"]))
    assert twice < 1.5 * plain
