"""The study of docs/lab/full-stack.md: four models on 1,024 NPUs, one layer at a time against the full stack.

    PYTHONPATH=. python tests/tools/stack_study.py [--device h100] [--seeds 3]

Sizes and bandwidths are COSMIC's: 100 GB/s into each of four dimensions of 4, 8 or 16 NPUs, by default of its own NPU
(10 TFLOP/s, 50 GB/s of memory, 24 GB). With a single layer, other settings are as in the reference. Prints a Markdown
table and the best designs; --svg FILE plots time against the price of the network."""

import argparse
import resource
import time
from pathlib import Path
from typing import Any

import numpy as np
from autoscout_stack.designs import evaluate
from autoscout_stack.workloads import workloads

from autoscout.search.candidates import favourites
from autoscout.targets.jobs import JobSpace
from kb.records import Cluster, Job, Model, Node, Objective, SpaceLimits, Traffic, Value

# COSMIC's workload files (sims/AstraSim/astrasim_220_example/workload_cfg_*.json) with the published numbers of layers
# (they simulate four): GPT-3 175B and 13B (Brown et al. 2020), ViT-Large and ViT-Base (Dosovitskiy et al. 2021).
MODELS: dict[str, tuple[Model, int]] = {
    "GPT-3 175B": (Model(layers=96, hidden=12288, heads=96, vocab=51200), 2048),
    "GPT-3 13B": (Model(layers=40, hidden=5120, heads=40, vocab=51200), 2048),
    "ViT-Large": (Model(layers=24, hidden=1024, heads=16, vocab=1024), 256),
    "ViT-Base": (Model(layers=12, hidden=768, heads=12, vocab=1024), 256),
}
LAYERS = {
    "workload": ("tp", "sp", "pp", "dp", "zero", "recompute"),
    "collectives": ("scheduling", "collectives", "chunks", "algorithm_1", "algorithm_2", "algorithm_3", "algorithm_4"),
    "network": ("topology_1", "topology_2", "topology_3", "topology_4", "npus_1", "npus_2", "npus_3", "npus_4"),
}
# The single-layer runs of COSMIC start from fixed files of the other layers; this is their network_input_4.yml and
# system_input_4.json, and dp = 256, tp = 4 (which divides the heads of all four) as a usual start.
REFERENCE: dict[str, Value] = {
    **{"tp": 4, "sp": 1, "pp": 1, "dp": 256, "zero": 3, "recompute": True},
    **{"scheduling": "lifo", "collectives": "baseline", "chunks": 2},
    **{f"algorithm_{i}": "ring" for i in range(1, 5)},
    **{f"topology_{i}": "ring" for i in range(1, 5)},
    **{"npus_1": 16, "npus_2": 4, "npus_3": 4, "npus_4": 4},
}
ALWAYS: dict[str, Value] = {"dims": 4, "mbs": 1}


def job(model: Model, length: int, fixed: dict[str, Value], device: str = "npu", wide: bool = False) -> Job:
    """`wide`: bandwidths of 25 to 400 GB/s into each dimension are knobs too, as in COSMIC's knobs_5_extended.py."""
    limit: dict[str, list[Value]] = {f"npus_{i}": [4, 8, 16] for i in range(1, 5)}
    limit |= {"zero": [0, 3], "chunks": [2, 4, 8, 16], "pp": [1, 2, 4]}
    limit |= {f"bandwidth_{i}": [25, 50, 100, 200, 400] if wide else [100] for i in range(1, 5)}
    limit = {name: values for name, values in limit.items() if name not in fixed}
    return Job(
        name="study",
        target="stack",
        objective=Objective(minimize="latency_s"),
        model=model,
        traffic=Traffic(seq_len=length, global_batch=2048),
        cluster=Cluster(nodes=[Node(device=device, count=1024, memory_gib=22.35)]),
        space=SpaceLimits(fix={**ALWAYS, **fixed}, limit=limit),
    )


def best(
    wanted: Job, seed: int, near: list[dict[str, Value]] | None = None
) -> tuple[float, dict[str, Value], JobSpace]:
    """The best design of a space by the analytic model, with the prediction of the chunk-level model."""
    space = JobSpace.of_job(wanted)
    given = workloads(wanted)

    def costs(codes: np.ndarray) -> np.ndarray:
        return evaluate(space.columns(codes), given)["latency_s"]

    begun = [c for n in near or [] if (c := space.codes_of(n)) is not None]
    codes, _ = favourites(space, costs, np.random.default_rng(seed), np.array(begun, dtype=np.int16) if begun else None)
    codes = codes[:200]
    seconds = evaluate(space.columns(codes), given, whole=True)["latency_s"]
    first = int(np.argmin(seconds))
    return float(seconds[first]), space.of_codes(codes[first].tolist()).knobs, space


def feasible_share(space: JobSpace) -> float:
    """Share of feasible assignments if each knob is drawn independently, as by COSMIC's random walker."""
    product = np.prod([float(len(knob.values)) for knob in space.knobs])
    return float(space.count / product)


def words(found: dict[str, Value]) -> str:
    network = " · ".join(
        f"{found[f'npus_{i}']} {found[f'topology_{i}']} ({found[f'algorithm_{i}']})" for i in range(1, 5)
    )
    layout = " ".join(f"{name} {found[name]}" for name in ("tp", "sp", "pp", "dp", "zero"))
    return f"{layout}; {network}; {found['chunks']} chunks, {found.get('collectives')}, {found.get('scheduling')}"


def study(seeds: int, device: str) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, (model, length) in MODELS.items():
        row: dict[str, Any] = {"single": {}}
        start = job(model, length, REFERENCE, device)
        row["reference"] = best(start, 0)[0]
        for layer, knobs in LAYERS.items():
            fixed = {k: v for k, v in REFERENCE.items() if k not in knobs}
            seconds, chosen, space = best(job(model, length, fixed, device), 0)
            row["single"][layer] = (seconds, space.count, chosen)
        began = time.process_time()
        runs = [best(job(model, length, {}, device), seed) for seed in range(seeds)]
        row["cpu_s"] = (time.process_time() - began) / seeds
        row["full"] = [seconds for seconds, _, _ in runs]
        row["best"] = min(runs, key=lambda r: r[0])[1]
        space = runs[0][2]
        row["count"], row["share"] = space.count, feasible_share(space)
        row["again"] = all(space.codes_of(c) is not None for _, _, c in row["single"].values())
        wide = JobSpace.of_job(job(model, length, {}, device, wide=True))
        row["wide"] = wide.count
        found[name] = row
    return found


def front(device: str, n: int = 100_000) -> list[tuple[str, np.ndarray, np.ndarray]]:
    """(model, dollars of the network, seconds relative to the fastest) of the non-dominated designs."""
    found = []
    for name, (model, length) in MODELS.items():
        wanted = job(model, length, {}, device, wide=True)
        space = JobSpace.of_job(wanted)
        near = space.codes_of(best(wanted, 0)[1])
        assert near is not None
        usd = seconds = np.empty(0)
        rng = np.random.default_rng(0)
        codes = np.concatenate([space.sample_many(n, rng), np.array([near, *space.neighbour_codes(near)], np.int16)])
        for _ in range(3):  # adds neighbours of the front
            told = evaluate(space.columns(codes), workloads(wanted))
            kept = undominated(told["network_usd"], told["latency_s"])
            codes, usd, seconds = codes[kept], told["network_usd"][kept], told["latency_s"][kept]
            moved = [space.neighbour_codes(row) for row in codes.tolist()]
            codes = np.concatenate([codes, *(np.array(m, dtype=np.int16) for m in moved)])
        found.append((name, usd, seconds / seconds.min()))
    return found


def undominated(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """Indices of the non-dominated points, by ascending x."""
    order = np.lexsort((y, x))
    lowest = np.minimum.accumulate(y[order])
    new = np.r_[True, lowest[1:] < lowest[:-1]]
    return order[new]


def picture(device: str) -> str:
    """The fronts as SVG: price of the network (x) and time (y), both logarithmic."""
    width, height, edge = 720, 400, 60
    fronts = front(device)
    usd = np.log10(np.concatenate([u for _, u, _ in fronts]))
    time_ = np.log10(np.concatenate([t for _, _, t in fronts]))
    ends = usd.min(), usd.max(), 0.0, min(time_.max(), 2.0)

    def at(u: float, t: float) -> tuple[float, float]:
        x = edge + (np.log10(u) - ends[0]) / (ends[1] - ends[0]) * (width - 2 * edge)
        return x, height - edge - (min(np.log10(t), ends[3])) / ends[3] * (height - 2 * edge)

    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" font-family="sans-serif" '
        f'font-size="13"><rect width="100%" height="100%" fill="white"/>'
    ]
    for number, (name, u, t) in enumerate(fronts):
        colour = ("#1b6ca8", "#c8553d", "#3a7d44", "#7d5ba6")[number]
        points = " ".join("{:.1f},{:.1f}".format(*at(a, b)) for a, b in zip(u, t, strict=True))
        lines.append(f'<polyline points="{points}" fill="none" stroke="{colour}" stroke-width="2"/>')
        lines.append(f'<text x="{width - 2.6 * edge}" y="{edge + 18 * number}" fill="{colour}">{name}</text>')
    for value in (1, 2, 5, 10, 20, 50, 100):
        if np.log10(value) <= ends[3]:
            y = at(10 ** ends[0], value)[1]
            lines.append(f'<text x="{edge - 8}" y="{y + 4:.0f}" text-anchor="end">{value} ×</text>')
    for value in np.linspace(ends[0], ends[1], 5):
        x = at(10**value, 1)[0]
        lines.append(f'<text x="{x:.0f}" y="{height - edge + 20}" text-anchor="middle">{10**value / 1e6:.3g} M$</text>')
    lines.append(
        f'<text x="{width / 2}" y="{height - 12}" text-anchor="middle">price of the network of 1,024 {device}'
        f'</text><text x="{edge - 40}" y="{edge - 20}">time, against the fastest design (predicted)</text></svg>'
    )
    return "\n".join(lines) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--device", default="npu")
    parser.add_argument("--svg", type=Path)
    asked = parser.parse_args()
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    found = study(asked.seeds, asked.device)
    print(
        "| model | reference, s | workload only | collectives only | network only | full stack, each seed | "
        "full stack against single layers | valid designs | share of all assignments |"
    )
    print("|---|---|---|---|---|---|---|---|---|")
    for name, row in found.items():
        single = {layer: seconds for layer, (seconds, _, _) in row["single"].items()}
        gains = [s / min(row["full"]) for s in single.values()]
        full = ", ".join(f"{s:.4g}" for s in row["full"])
        print(
            f"| {name} | {row['reference']:.4g} | {single['workload']:.4g} | {single['collectives']:.4g} | "
            f"{single['network']:.4g} | {full} | {min(gains):.2f}–{max(gains):.2f} × | "
            f"{row['count']:.3g} | {row['share']:.3%} |"
        )
    for name, row in found.items():
        print(f"* {name}: {words(row['best'])}")
    for name, row in found.items():
        worst = max(row["full"]) <= min(s for s, _, _ in row["single"].values())
        print(
            f"{name}: every seed at least as good as each single layer: {worst}; with bandwidths as knobs "
            f"{row['wide']:.3g} valid designs; {row['cpu_s']:.1f} s CPU a search"
        )
    after = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    if asked.svg:
        asked.svg.write_text(picture(asked.device))
    print(f"memory above the imports at most {(after - before) / 1024:.0f} MiB")


if __name__ == "__main__":
    main()
