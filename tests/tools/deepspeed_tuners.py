"""Runs DeepSpeed's three tuners, unchanged, on a recorded grid and counts experiments until within 5 % of the best.

ENVIRONMENT/bin/python tests/tools/deepspeed_tuners.py GRID.csv OUT.json [--seeds 20] [--batch 16]

Needs DeepSpeed with XGBoost, and nothing of AutoScout. Only DeepSpeed's resource manager is replaced: it returns
recorded results (medians of the repeats) instead of launching. Early stopping is off, so every tuner runs to the end;
the searches that its default of 5 would have stopped too early are counted separately."""

import argparse
import csv
import json
import logging
import random
import statistics
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

WITHIN = 1.05


# Column → its field of zero_optimization and DeepSpeed's default, in the order in which its generator nests them.
# Settings without effect get their defaults, because DeepSpeed's model needs the same keys in all configurations.
FIELDS: dict[str, tuple[str, int]] = {
    "reduce_bucket": ("reduce_bucket_size", 500_000_000),
    "allgather_bucket": ("allgather_bucket_size", 500_000_000),
    "persistence": ("stage3_param_persistence_threshold", 100_000),
}


def costs_of(path: Path, batch: int) -> dict[str, tuple[dict[str, Any], float]]:
    """Configuration name → (its ds_config as DeepSpeed's generator writes it, seconds per step)."""
    times: dict[str, list[float]] = {}
    configs: dict[str, dict[str, Any]] = {}
    for row in csv.DictReader(path.open()):
        if row["status"] != "ok":
            continue
        times.setdefault(row["name"], []).append(float(row["step_time_s"]))
        zero: dict[str, Any] = {"stage": int(row["stage"])}
        zero |= {name: int(row[column] or usual) for column, (name, usual) in FIELDS.items() if column in row}
        if "offload_optimizer" in row:
            zero["offload_optimizer"] = {"device": row["offload_optimizer"] or "none"}
        micro = int(row["mbs"])
        configs[row["name"]] = {
            "train_batch_size": batch,
            "train_micro_batch_size_per_gpu": micro,
            "gradient_accumulation_steps": batch // (2 * micro),
            "zero_optimization": zero,
        }
    order = sorted(configs, key=lambda n: _key(configs[n]))
    return {name: (configs[name], statistics.median(times[name])) for name in order}


def _key(config: dict[str, Any]) -> list[Any]:
    """A sort key for the order of DeepSpeed's generator: by stage, then the product of the lists."""
    zero = config["zero_optimization"]
    device = zero.get("offload_optimizer", {}).get("device", "")
    sizes = [zero[name] for name, _ in FIELDS.values() if name in zero]
    return [zero["stage"], device == "cpu", *sizes, config["train_micro_batch_size_per_gpu"]]


class Record:
    """Replaces deepspeed.autotuning.scheduler.ResourceManager: returns recorded results."""

    def __init__(self, seconds: dict[str, float], folder: str) -> None:
        self.seconds, self.exps_dir, self.visited = seconds, folder, []
        self.finished_experiments: dict[int, tuple[dict[str, Any], None]] = {}
        self._queue: list[str] = []

    def schedule_experiments(self, paths: list[str]) -> None:
        self._queue = list(paths)

    def run(self) -> None:
        for path in self._queue:
            found = json.loads(Path(path).read_text())
            metrics = Path(self.exps_dir) / f"{found['name']}-metrics.json"
            metrics.write_text(json.dumps({"throughput": 16 / self.seconds[found["name"]]}))
            found["ds_config"]["autotuning"] = {"metric_path": str(metrics)}
            self.finished_experiments[len(self.visited)] = (found, None)
            self.visited.append(found["name"])

    def parse_results(self, metric: str) -> tuple[dict[str, Any], float]:
        best = max(self.finished_experiments.values(), key=lambda e: 16 / self.seconds[e[0]["name"]])[0]
        return best, 16 / self.seconds[best["name"]]

    def clear(self) -> None:
        self.finished_experiments = {}


def visited_by(tuner: str, known: dict[str, tuple[dict[str, Any], float]], seed: int) -> list[str]:
    from deepspeed.autotuning.tuner import GridSearchTuner, ModelBasedTuner, RandomTuner  # type: ignore[import-not-found]

    random.seed(seed)
    np.random.seed(seed)
    with tempfile.TemporaryDirectory() as folder:
        record = Record({name: cost for name, (_, cost) in known.items()}, folder)
        experiments = [{"name": name, "ds_config": config} for name, (config, _) in known.items()]
        if tuner == "model_based":
            made = ModelBasedTuner(experiments, record, "throughput", {"zero_optimization": {"stage": [0, 1, 2, 3]}})
        else:
            made = {"gridsearch": GridSearchTuner, "random": RandomTuner}[tuner](experiments, record, "throughput")
        made.tune(sample_size=1, n_trials=len(experiments), early_stopping=None)
        return record.visited


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("grid", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--seeds", type=int, default=20)
    parser.add_argument("--batch", type=int, default=16, help="samples a step")
    asked = parser.parse_args()
    logging.disable(logging.CRITICAL)
    known = costs_of(asked.grid, asked.batch)
    best = min(cost for _, cost in known.values())
    told: dict[str, Any] = {"configurations": len(known), "best": min(known, key=lambda n: known[n][1])}
    for tuner in ("gridsearch", "random", "model_based"):
        runs = []
        for seed in range(asked.seeds):
            names = visited_by(tuner, known, seed)
            order = [known[name][1] for name in names]
            hit = next((i for i, cost in enumerate(order, 1) if cost <= WITHIN * best), None)
            runs.append(
                {"seed": seed, "experiments_to_5pct": hit, "run": len(order), "stopped_before": _stops(order, hit)}
            )
        hits = [run["experiments_to_5pct"] or len(known) + 1 for run in runs]
        missed = sum(run["stopped_before"] for run in runs)
        told[tuner] = {"median": statistics.median(hits), "mean": statistics.mean(hits), "missed": missed, "runs": runs}
    asked.out.write_text(json.dumps(told, indent=1))
    for tuner in ("gridsearch", "random", "model_based"):
        print(f"{tuner:12} median {told[tuner]['median']:g} mean {told[tuner]['mean']:.1f}", end=" ")
        print(f"early stopping would have missed it in {told[tuner]['missed']} of {asked.seeds}")


def _stops(order: list[float], hit: int | None, patience: int = 5) -> bool:
    """Whether DeepSpeed's default early stopping would have ended the search before the hit."""
    best_at, best = 0, float("inf")
    for i, cost in enumerate(order, 1):
        if cost < best:
            best_at, best = i - 1, cost
        if hit is not None and i >= hit:
            return False
        if i >= best_at + patience:
            return True
    return hit is None


if __name__ == "__main__":
    main()
