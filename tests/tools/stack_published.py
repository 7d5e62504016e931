"""Compares the analytic model of `target = "stack"` with published training steps.

    PYTHONPATH=. python tests/tools/stack_published.py ../shared/data/validation/*.csv.gz

Each row's cluster is expressed as a design: nodes of eight behind a switch (NVLink: 300 GB/s per A100 and 450 GB/s per
H100 each way), nodes behind switches (25 and 50 GB/s per GPU), rings of four chunks, dense models in bf16. Only
`reached` (parts.toml) is fitted to these rows. The remaining errors determine the intervals that users get."""

import sys
from collections import defaultdict
from pathlib import Path
from typing import Any

import numpy as np
from autoscout_stack.designs import evaluate

from autoscout.simulate.validation.measured import MeasuredRows, read

ISLAND = {"a100": 300.0, "h100": 450.0}
OUTWARDS = {"a100": 25.0, "h100": 50.0}


def design(columns: dict[str, Any], i: int) -> tuple[dict[str, np.ndarray], dict[str, Any]] | None:
    """(design, workload) of a row; None if the stack cannot describe it."""

    def said(name: str, absent: Any) -> Any:
        value = columns.get(name)
        value = absent if value is None else value[i] if isinstance(value, np.ndarray) else value
        return absent if isinstance(value, float | np.floating) and np.isnan(value) else value

    gpu = str(said("gpu", "")).lower()
    device = next((kind for kind in ISLAND if kind in gpu), "")
    layers, hidden, heads = (int(said(name, 0)) for name in ("layers", "hidden", "heads"))
    npus, batch, length = (int(said(name, 0)) for name in ("gpus", "global_batch", "seq_len"))
    tp, pp, sp, mbs = (int(said(name, 1)) for name in ("tp", "pp", "cp", "mbs"))
    if (
        not device
        or "40" in gpu
        or not (layers and hidden and heads and npus and batch and length)
        or said("experts", 0)
    ):
        return None
    if str(said("dtype", "bf16")) not in ("bf16", "fp16", "") or said("fp8", 0):
        return None
    dp = npus // (tp * pp * sp)
    inside = min(npus, 8)
    if dp < 1 or dp * tp * pp * sp != npus or batch % (dp * mbs) or npus % inside:
        return None
    recomputed = str(said("ar", "none")) in ("full", "true", "True")
    zero = said("zero", 0)
    of_device = {"device": device, "tp": tp, "sp": sp, "pp": pp, "dp": dp, "mbs": mbs, "zero": int(zero)}
    of_network = {"npus_1": inside, "npus_2": npus // inside, "topology": "switch", "algorithm": "ring", "chunks": 4}
    of_network |= {"bandwidth_1": ISLAND[device], "bandwidth_2": OUTWARDS[device], "collectives": "hierarchical"}
    knobs = {**of_device, **of_network, "recompute": recomputed, "dims": 2}
    kv = int(said("kv_heads", heads)) or heads
    gated = bool(said("gated", 0))
    workload = {"layers": layers, "hidden": hidden, "heads": heads, "kv_heads": kv, "head_dim": hidden // heads}
    workload |= {"ffn": int(said("ffn", 4 * hidden)) or 4 * hidden, "vocab": int(said("vocab", 50304)) or 50304}
    workload |= {"gated": int(gated), "experts": 0, "expert_ffn": 0, "topk": 0, "serving": 0, "output": 0}
    workload |= {"length": length, "batch": batch, "longest": length, "tokens": length * batch}
    return {name: np.array([value]) for name, value in knobs.items()}, workload


def errors(rows: MeasuredRows) -> dict[str, list[float]]:
    """log(measured / predicted) by device and table."""
    found: dict[str, list[float]] = defaultdict(list)
    for i, seconds in enumerate(rows.values):
        described = design(rows.columns, i)
        if described and np.isfinite(seconds):
            predicted = evaluate(described[0], [(1.0, described[1])])["latency_s"][0]
            found[str(described[0]["device"][0])].append(float(np.log(seconds / predicted)))
    return found


def main() -> None:
    print("| table | device | rows | measured / predicted, median | deviation of its logarithm | off by, median |")
    print("|---|---|---|---|---|---|")
    for path in sys.argv[1:]:
        for rows in read(Path(path)).sets:
            if rows.metric == "step_time_s":
                for device, logs in errors(rows).items():
                    away = np.median(np.abs(np.expm1(-np.array(logs))))
                    name = Path(path).name.partition(".")[0]
                    print(
                        f"| {name} | {device} | {len(logs)} | {np.exp(np.median(logs)):.2f} | {np.std(logs):.2f} | "
                        f"{away:.0%} |"
                    )


if __name__ == "__main__":
    main()
