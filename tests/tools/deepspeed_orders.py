"""How much the number of experiments of grid search on a recorded DeepSpeed grid depends on the order of its lists.

python tests/tools/deepspeed_orders.py GRID.csv [--orders 1000]

Prints the experiments until within 5 % of the best, for orders of the four settings' values and of the settings."""

import argparse
import csv
import random
import statistics
from pathlib import Path

from deepspeed_ours import WITHIN, medians

# In the order in which DeepSpeed's generator nests them; a grid's are those among its columns.
SETTINGS = ("stage", "offload_optimizer", "reduce_bucket", "allgather_bucket", "persistence", "mbs")


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("grid", type=Path)
    parser.add_argument("--orders", type=int, default=1000)
    asked = parser.parse_args()
    known = medians(asked.grid)
    rows = {row["name"]: row for row in csv.DictReader(asked.grid.open())}
    settings = [name for name in SETTINGS if name in next(iter(rows.values()))]
    good = {name for name, seconds in known.items() if seconds <= WITHIN * min(known.values())}
    shuffled, hits = random.Random(0), []
    for _ in range(asked.orders):
        nested = shuffled.sample(settings, len(settings))
        place = {}
        for setting in settings:
            values = sorted({row[setting] for row in rows.values()})
            place[setting] = {value: i for i, value in enumerate(shuffled.sample(values, len(values)))}
        order = sorted(known, key=lambda n: [place[setting][rows[n][setting]] for setting in nested])
        hits.append(1 + min(order.index(name) for name in good))
    spread = statistics.quantiles(hits, n=10)
    print(
        f"{len(good)} of {len(known)} are within 5 %; {asked.orders} orders: median {statistics.median(hits):g}",
        end=" ",
    )
    print(f"mean {statistics.mean(hits):.1f}, deciles {spread[0]:g} to {spread[-1]:g}", end=", ")
    print(f"at most 2 in {sum(hit <= 2 for hit in hits)}, fewer than 7 in {sum(hit < 7 for hit in hits)}")


if __name__ == "__main__":
    main()
