"""Evaluations that a warm start saves on measured landscapes: vTrain's training times on A100 nodes, one landscape per
model and number of GPUs.

    python tests/tools/warm_transfer.py [--seeds 5] [--json]

Every landscape is tuned without earlier sessions, then with the measurements of such sessions on the three most similar
other models, on the three least similar ones, and with inverted costs (1 / cost). Only the last are misleading, because
vTrain's landscapes are all similar.

Figures: evaluations until something within 1 % of the optimum was evaluated (the whole landscape if never), the median
over seeds, then the mean over landscapes. Similarity is kb/similar.py's.
"""

import argparse
import json
import statistics
from pathlib import Path
from typing import Any

from autoscout.search.earlier import Past
from autoscout.search.strategy import strategy
from autoscout.space.graph import Space
from kb import similar
from kb.records import Cluster, Configuration, Job, Measurement, Model, Node, Objective, Traffic
from kb.table_files import read_table

_TABLE = Path(__file__).parents[3] / "shared/data/landscapes/vtrain_a100_single_node.csv.gz"
_METRIC = "s_per_sample"
_COLD = 20  # evaluations of a past session
_OTHERS = 3


class Landscape:
    def __init__(self, layers: int, hidden: int, gpus: int, rows: list[dict[str, Any]]) -> None:
        self.name = f"{layers}×{hidden} on {gpus}"
        self.objective = Objective(minimize=_METRIC)
        knobs = [{k: row[k] for k in ("tp", "pp", "dp", "micro_batch", "global_batch")} for row in rows]
        self.space = Space.from_table(knobs, ["tp", "pp", "dp"], ["micro_batch", "global_batch"], self.objective)
        self.value = {self._id(k): row[_METRIC] for k, row in zip(knobs, rows, strict=True)}
        self.model = layers, hidden
        self.job = Job(
            name=self.name,
            target="megatron",
            model=Model(layers=layers, hidden=hidden, heads=hidden // 128, vocab=51200),
            traffic=Traffic(seq_len=2048, global_batch=64),
            cluster=Cluster(nodes=[Node(device="a100", count=gpus)]),
            objective=self.objective,
        )

    def _id(self, knobs: dict[str, Any]) -> str:
        return Configuration({k.name: knobs[k.name] for k in self.space.knobs}).id

    def measure(self, c: Configuration) -> Measurement:
        metrics = {_METRIC: self.value[c.id]}
        return Measurement(configuration=c, name=self.space.name(c), context="", status="ok", metrics=metrics)

    def tune(self, seed: int, past: list[Past], most: int) -> list[tuple[Configuration, float]]:
        """The distinct evaluated configurations with their costs, in order."""
        chosen = strategy("autoscout", self.space, seed=seed, past=past)
        seen: dict[str, tuple[Configuration, float]] = {}
        while len(seen) < min(most, len(self.value)) and (batch := chosen.ask()):
            told = [self.measure(c) for c in batch]
            for m in told:
                seen.setdefault(m.configuration.id, (m.configuration, m.metrics[_METRIC]))
            chosen.tell(told)
        return list(seen.values())

    def to_target(self, evaluated: list[tuple[Configuration, float]]) -> int:
        best = min(self.value.values())
        within = (i for i, (_, value) in enumerate(evaluated, 1) if value <= 1.01 * best)
        return next(within, len(self.value))


def distance(a: Landscape, b: Landscape) -> float:
    def memory(_: Node) -> float:
        return 80.0

    return sum(f.distance for f in similar.compare(similar.features(a.job, memory), similar.features(b.job, memory)))


def landscapes(least: int = 12) -> list[Landscape]:
    table = read_table(_TABLE)
    groups: dict[tuple[int, int, int], list[dict[str, Any]]] = {}
    for values in table.rows:
        row = dict(zip(table.columns, values, strict=True))
        groups.setdefault((row["layers"], row["hidden"], row["n_gpus"]), []).append(row)
    return [Landscape(*key, rows) for key, rows in sorted(groups.items()) if len(rows) >= least]


def figures(seeds: int) -> dict[str, Any]:
    all_ = landscapes()
    cold = {(i, seed): one.tune(seed, [], 10_000) for i, one in enumerate(all_) for seed in range(seeds)}
    found: list[dict[str, Any]] = []
    for i, one in enumerate(all_):
        others = [j for j, other in enumerate(all_) if other.model != one.model]
        others.sort(key=lambda j, one=one: distance(one, all_[j]))
        entry: dict[str, Any] = {"landscape": one.name, "configurations": len(one.value)}
        entry["cold"] = statistics.median(one.to_target(cold[i, seed]) for seed in range(seeds))
        for how, chosen in (
            ("similar", others[:_OTHERS]),
            ("unlike", others[-_OTHERS:]),
            ("inverted", others[:_OTHERS]),
        ):
            counts = []
            for seed in range(seeds):
                past = [
                    Past(
                        name=all_[j].name,
                        distance=distance(one, all_[j]),
                        rows=[(c, 1 / x if how == "inverted" else x) for c, x in cold[j, seed][:_COLD]],
                    )
                    for j in chosen
                ]
                counts.append(one.to_target(one.tune(seed, past, 10_000)))
            entry[how] = statistics.median(counts)
            entry[f"{how}_distance"] = round(statistics.mean(distance(one, all_[j]) for j in chosen), 2)
        found.append(entry)
    means = {how: statistics.mean(e[how] for e in found) for how in ("cold", "similar", "unlike", "inverted")}
    ratios = {f"{how}/cold": means[how] / means["cold"] for how in ("similar", "unlike", "inverted")}
    return {"landscapes": found, "mean": means, **ratios}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    found = figures(options.seeds)
    if options.json:
        print(json.dumps(found))
        return
    for e in found["landscapes"]:
        print(
            f"{e['landscape']:<16} {e['configurations']:>4} configurations: cold {e['cold']:g}, "
            f"similar {e['similar']:g} (distance {e['similar_distance']:g}), unlike {e['unlike']:g}, "
            f"inverted {e['inverted']:g}"
        )
    print("mean: " + ", ".join(f"{how} {n:.1f}" for how, n in found["mean"].items()))
    print(", ".join(f"{name} {x:.2f}" for name, x in found.items() if name.endswith("/cold")))


if __name__ == "__main__":
    main()
