"""Errors of the analytic training and memory models on measured runs: the tables of docs/lab/simulators-training.md.

    PYTHONPATH=. python tests/tools/training_accuracy.py [--data ../shared/data] [--ablate]

No constant was fitted to these rows, unless a line states it: constants are from single kernels and collectives
(tests/tools/fit_hardware.py). "Five rows" fits the model's correction on five rows of a job, drawn at random, and
scores the others."""

import argparse
import csv
import gzip
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import numpy as np
from msgspec.structs import replace
from scipy.stats import rankdata

import autoscout.simulate.hardware.device as known
from autoscout.simulate.hardware.device import Curve, Hardware, Tile
from autoscout.simulate.training import once, stage
from autoscout.simulate.training import step as training
from autoscout.simulate.training.memory import Memory
from autoscout.simulate.training.step import Training
from autoscout.simulate.validation.training_tables import by_stage, columns_of, peak_gib, step_seconds

Rows = list[dict[str, str]]
WITHIN_90 = 1.645


def main() -> None:
    parser = argparse.ArgumentParser(description="Accuracy of the analytic training and memory models.")
    parser.add_argument("--data", type=Path, default=Path(__file__).parents[3] / "shared" / "data")
    parser.add_argument("--ablate", action="store_true", help="also leave out each part of the time model in turn")
    options = parser.parse_args()
    sources = times(options.data)
    print("Step time, no row of the job\n")
    print("| source | device | rows | MAPE | bias | in 90 % interval |\n|---|---|---|---|---|---|")
    for (source, device), rows in sources.items():
        print(zero_line(source, device, rows))
    a100 = [r for (source, device), rows in sources.items() if device == "A100" and source != "vTrain" for r in rows]
    print(zero_line("**all A100 rows of train_end_to_end**", "A100", a100))
    print("\nBy model\n\n| source | device | model: MAPE |\n|---|---|---|")
    for (source, device), rows in sources.items():
        print(f"| {source} | {device} | {by(rows, 'model' if source != 'vTrain' else 'layers')} |")
    print("\nFive rows of the job, drawn at random (5 seeds); jobs of at least 8 rows\n")
    print("| jobs of | jobs | no row | five rows | median job | rank correlation | best of predicted is off by |")
    print("|---|---|---|---|---|---|---|")
    for name, rows, keys in jobs(sources):
        print(five_line(name, rows, keys))
    print("\nPeak memory\n\n| source | rows | MAPE | bias |\n|---|---|---|---|")
    for source, rows in memories(options.data).items():
        print(memory_line(source, rows))
    print("\n" + decisions(options.data))
    if options.ablate:
        print("\n" + ablation(sources))


def times(data: Path) -> dict[tuple[str, str], Rows]:
    """Rows with a measured step, by source and device."""
    found: dict[tuple[str, str], Rows] = {("vTrain", "A100"): read(data / "landscapes/vtrain_a100_single_node.csv.gz")}
    for row in read(data / "validation/train_end_to_end.csv.gz"):
        device = next((d for d in ("A100", "A10G", "H100", "L4") if row["gpu"].startswith(d)), "")
        source = {
            "llm_foundry": "llm-foundry (FSDP)",
            "internevo": "InternEvo (ZeRO-1)",
            "fms_fsdp": "fms-fsdp (FSDP)",
        }.get(row["source"])
        calibrates = row["source"] == "fms_fsdp" and device == "H100"
        if source and device and not calibrates and "fp8" not in row["precision"]:
            found.setdefault((source, device), []).append(row)
        if row["source"] == "torchtitan" and row["gpu"].startswith("H100-SXM-96GB"):  # its memory is also slower
            found.setdefault(("torchtitan, at 500 of 700 W", device), []).append(
                {**row, "gpu": "h100", "power_cap": str(100 * 500 / 700)}
            )
    for row in golden(data):
        device = row["gpu"][:4]
        if device in ("A100", "H100"):
            found.setdefault(("Megatron-core CI, GPT 7B (deterministic)", device), []).append(row)
    timed = {key: [r for r, _ in with_seconds(rows)] for key, rows in found.items()}
    return {key: rows for key, rows in timed.items() if rows}


def golden(data: Path) -> Rows:
    """Megatron-core's regression runs of GPT models with a known number of devices, without duplicates."""
    once: dict[tuple[str, ...], dict[str, str]] = {}
    for row in read(data / "validation/megatron_ci_golden_large_models.csv"):
        if row["n_gpus"] and row["case"].startswith("gpt3_7b") and row["gpu"]:
            key = (row["gpu"], row["tp"], row["iteration_time_median_s"], row["mem_max_allocated_bytes"])
            once[key] = {**row, "model": row["case"]}
    return list(once.values())


def with_seconds(rows: Rows) -> list[tuple[dict[str, str], float]]:
    return [(r, y) for r, y in zip(rows, step_seconds(rows), strict=True) if np.isfinite(y)]


def zero_line(source: str, device: str, rows: Rows) -> str:
    error, inside = zero_errors(rows)
    bias = np.expm1(error.mean())
    return f"| {source} | {device} | {len(rows)} | {mape(error):.1%} | {bias:+.1%} | {inside.mean():.0%} |"


def zero_errors(rows: Rows) -> tuple[np.ndarray, np.ndarray]:
    """((n,) log(predicted / measured), (n,) whether the stated 90 % interval contains it)."""
    said = Training().predict(columns_of(rows))
    error = np.log(said.value / step_seconds(rows))
    return error, np.abs(error) <= WITHIN_90 * said.error


def mape(error: np.ndarray) -> float:
    return float(np.abs(np.expm1(error)).mean())


def by(rows: Rows, key: str) -> str:
    error, _ = zero_errors(rows)
    groups = defaultdict(list)
    for row, e in zip(rows, error, strict=True):
        groups[row[key]].append(e)
    return " · ".join(f"{name} {mape(np.array(e)):.1%}" for name, e in groups.items())


def jobs(sources: dict[tuple[str, str], Rows]) -> Iterator[tuple[str, Rows, tuple[str, ...]]]:
    vtrain = sources["vTrain", "A100"]
    yield "vTrain, by model, devices, batch", vtrain, ("layers", "hidden", "n_gpus", "global_batch")
    yield "vTrain, by model, devices", vtrain, ("layers", "hidden", "n_gpus")
    for (source, device), rows in sources.items():
        if source.startswith("llm-foundry"):
            yield f"{source}, {device}, by model", rows, ("gpu", "model")
    yield "InternEvo, by tp and recomputation", sources["InternEvo (ZeRO-1)", "A100"], ("tp", "ar", "other")


def five_line(name: str, rows: Rows, keys: Sequence[str]) -> str:
    columns, seconds = columns_of(rows), step_seconds(rows)
    groups = defaultdict(list)
    for i, row in enumerate(rows):
        groups[tuple(row[k] for k in keys)].append(i)
    alone, fitted, rank, lost = [], [], [], []
    raw = Training().predict(columns).value
    for members in groups.values():
        index = np.array(members)
        if len(index) < 8:
            continue
        rank.append(float(np.corrcoef(rankdata(raw[index]), rankdata(seconds[index]))[0, 1]))
        lost.append(seconds[index[np.argmin(raw[index])]] / seconds[index].min() - 1)
        errors = [five_errors(columns, seconds, index, seed) for seed in range(5)]
        fitted.append(np.mean(errors))
        alone.append(mape(np.log(raw[index] / seconds[index])))
    return (
        f"| {name} | {len(rank)} | {np.mean(alone):.1%} | {np.mean(fitted):.1%} | {np.median(fitted):.1%} "
        f"| {np.mean(rank):.3f} | {np.mean(lost):.1%} |"
    )


def five_errors(columns: dict[str, np.ndarray], seconds: np.ndarray, index: np.ndarray, seed: int) -> float:
    known_rows = np.random.default_rng(seed).choice(index, 5, replace=False)
    others = np.setdiff1d(index, known_rows)
    model = Training()
    model.fit(picked(columns, known_rows), seconds[known_rows])
    return mape(np.log(model.predict(picked(columns, others)).value / seconds[others]))


def picked(columns: dict[str, np.ndarray], index: np.ndarray) -> dict[str, np.ndarray]:
    return {name: column[index] for name, column in columns.items()}


def memories(data: Path) -> dict[str, Rows]:
    rows = read(data / "validation/train_end_to_end.csv.gz")
    litgpt = [r for r in rows if r["source"] == "litgpt_config_hub" and "full.yaml" not in r["other"]]
    return {
        "Megatron-core CI, GPT 7B": golden(data),
        "litgpt LoRA, QLoRA (constants of plain PyTorch trainers come from these rows)": litgpt,
    }


def memory_line(source: str, rows: Rows) -> str:
    measured = peak_gib(rows)
    use = np.isfinite(measured)
    kept = [r for r, u in zip(rows, use, strict=True) if u]
    error = np.log(Memory().predict(columns_of(kept)).value / measured[use])
    return f"| {source} | {len(kept)} | {mape(error):.1%} | {np.expm1(error.mean()):+.1%} |"


def decisions(data: Path) -> str:
    """Compares the memory model's predictions of fitting with all runs of all tables, including out-of-memory ones."""
    rows = read(data / "validation/train_end_to_end.csv.gz") + golden(data)
    rows += read(data / "landscapes/vtrain_a100_single_node.csv.gz")
    distinct: dict[tuple[str, ...], dict[str, str]] = {}
    for row in rows:
        if by_stage(row) or "full.yaml" in row.get("other", ""):  # their optimizer is not stated
            continue
        if row.get("source") == "megatron_bridge" and not row["ar"]:  # recomputation and offloading are not stated
            continue
        key = (row.get("source", ""), row.get("source_ref") or str(sorted(row.items())))
        if key not in distinct or row.get("status") == "oom":
            distinct[key] = row
    rows = list(distinct.values())
    columns = columns_of(rows)
    told = [i for i in range(len(rows)) if np.isfinite(columns["layers"][i]) and np.isfinite(columns["seq_len"][i])]
    rows = [rows[i] for i in told]
    columns = columns_of(rows)
    memory = Memory()
    known_device = np.isfinite(memory.oom_probability(columns))
    ran = np.array([r.get("status", "ok") != "oom" for r in rows])[known_device]
    fits = memory.fits(columns)[known_device]
    return (
        f"Does it fit: {len(ran)} runs, {(~ran).sum()} of them out of memory. Right {(fits == ran).mean():.1%}, "
        f"false fits {(fits & ~ran).mean():.2%} ({(fits & ~ran).sum()}), false alarms {(~fits & ran).sum()}."
    )


def ablation(sources: dict[tuple[str, str], Rows]) -> str:
    """MAPE without rows of the job if one component of the model is removed."""
    shown = [
        ("vTrain", "A100"),
        ("llm-foundry (FSDP)", "A100"),
        ("InternEvo (ZeRO-1)", "A100"),
        ("llm-foundry (FSDP)", "H100"),
    ]
    lines = [
        "| without | " + " | ".join(f"{s} {d}" for s, d in shown) + " |",
        "|---|" + "---|" * len(shown),
    ]
    for name, change in {"(all parts)": lambda hw: hw, **CHANGES}.items():
        with changed(change):
            lines.append(f"| {name} | " + " | ".join(f"{mape(zero_errors(sources[k])[0]):.1%}" for k in shown) + " |")
    for name, module, constant in CONSTANTS:
        before = getattr(module, constant)
        setattr(module, constant, 0.0)
        lines.append(f"| {name} | " + " | ".join(f"{mape(zero_errors(sources[k])[0]):.1%}" for k in shown) + " |")
        setattr(module, constant, before)
    return "\n".join(lines)


def _no_curves(hw: Hardware) -> Hardware:
    best = max(t.efficiency for t in hw.gemm.tiles)
    return replace(hw, gemm=replace(hw.gemm, extra_k=0.0, tiles=[Tile(1, 1, best)]))


def _no_latency(hw: Hardware) -> Hardware:
    island = hw.island
    kinds = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all", "send")
    free: dict[str, Curve] = {
        k: replace(c, latency_us=[0.0] * len(c.latency_us)) for k in kinds if (c := getattr(island, k))
    }
    return replace(hw, island=replace(island, inside_us=[0.0] * len(island.inside_us), **free))


CHANGES: dict[str, Callable[[Hardware], Hardware]] = {
    "efficiency curves of products (waves, prologue)": _no_curves,
    "clocks under load": lambda hw: replace(hw, clocks=replace(hw.clocks, sustained=1.0)),
    "kernels bound by memory": lambda hw: replace(
        hw, elementwise=replace(hw.elementwise, bandwidth=1e3, norm_bandwidth=1e3, overhead_us=0.0)
    ),
    "waiting for the host": lambda hw: replace(hw, host=replace(hw.host, forward_us=0.0, backward_us=0.0)),
    "latency of collectives": _no_latency,
    "older attention kernels": lambda hw: replace(hw, attention=replace(hw.attention, flash1=1.0, flash2=1.0)),
}
CONSTANTS = (
    ("waiting for the slowest rank", training, "STRAGGLER"),
    ("multiprocessors lost to overlapped gradients", once, "NCCL_MULTIPROCESSORS"),
    ("multiprocessors lost to gathered layers", stage, "NCCL_MULTIPROCESSORS"),
)


@contextmanager
def changed(change: Callable[[Hardware], Hardware]) -> Iterator[None]:
    table = known.all_hardware()
    before = dict(table)
    table.update({name: change(hw) for name, hw in before.items()})
    try:
        yield
    finally:
        table.update(before)


def read(path: Path) -> Rows:
    if not path.exists():
        raise SystemExit(f"{path} is missing: give the folder of the measured tables with --data")
    with gzip.open(path, "rt") if path.suffix == ".gz" else path.open() as f:
        return list(csv.DictReader(f))


if __name__ == "__main__":
    main()
