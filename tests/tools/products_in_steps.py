"""How fast matrix products run inside training steps, against products timed one by one: `sustained` of L4.

    PYTHONPATH=. python tests/tools/products_in_steps.py [--data ../shared/data]

Mist's authors timed every operator of Aceso's stages alone, again and again, and recorded how long whole stages take. A
stage's time (here of stages without tensor parallelism, and neither first nor last) less that of its other operators
and of adding its gradients is its products'. Printed by device and model: the products' time by the constants of
fit_hardware.py over that.
"""

import argparse
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from msgspec.structs import replace

from autoscout.simulate.encode import take
from autoscout.simulate.hardware.device import hardware
from autoscout.simulate.hardware.roofline import gemm, memory_bound
from autoscout.simulate.training.inputs import complete
from autoscout.simulate.training.stage_of_plan import layers_of, runs_of
from autoscout.simulate.training.stage_operators import OPERATORS, by_stage
from autoscout.simulate.validation.training_tables import columns_of
from tests.tools.training_accuracy import Rows, read

NAMES = (
    *("1st-layernorm", "attention-qkv", "attention-score", "attention-softmax", "attention-dropout"),
    *("attention-context", "attention-dense", "post-attention-dropout", "2nd-layernorm", "MLP-GEMM-1", "MLP-gelu"),
    *("MLP-GEMM-2", "post-MLP-dropout"),
)
WIDTHS = {1: (3, 1), 6: (1, 1), 9: (4, 1), 11: (1, 4)}  # outputs and inputs of products, in hidden sizes


def main() -> None:
    parser = argparse.ArgumentParser(description="How fast products run inside training steps.")
    parser.add_argument("--data", type=Path, default=Path(__file__).parents[3] / "shared" / "data")
    data: Path = parser.parse_args().data
    alone = {
        (r["gpu"], r["model"], float(r["micro_batch"]), r["op_name"].removeprefix("enc-")): (
            float(r["forward-compute"]),
            float(r["backward-compute"]),
        )
        for r in read(data / "calibration/op_mist_superscaler.csv.gz")
        if r["tp"] == "1" and r["algo"] == "0"
    }
    found = defaultdict(list)
    for row, plan in recorded(data):
        if ratio := of_stage(row, plan, alone):
            found[row["gpu"], row["model"]].append(ratio)
    for (gpu, model), each in sorted(found.items()):
        print(f"{gpu:15} {model:5} {len(each):2} stages: {np.median(each):.2f} ({min(each):.2f} to {max(each):.2f})")


def recorded(data: Path) -> Iterator[tuple[dict[str, str], dict[str, str]]]:
    """Recorded stages of Aceso's runs, once, and the run that each is of."""
    rows: Rows = read(data / "validation/train_end_to_end.csv.gz")
    runs = [r for r in rows if r["metric"] == "iteration_time" and "ranks)" in r["source_ref"]]
    seen = set()
    for row in read(data / "validation/train_stage_breakdown_mist.csv.gz"):
        key = row["config"], row["gpu"], row["stage"]
        plans = [run for run in runs if row["config"] in run["source_ref"] and run["gpu"] == row["gpu"]]
        if plans and row["stage"] and key not in seen:
            seen.add(key)
            yield row, plans[0]


def of_stage(row: dict[str, str], plan: dict[str, str], alone: dict) -> float | None:
    """None for stages with tensor or data parallelism, and for the first and the last one."""
    every, _ = by_stage(columns_of([plan]))
    x = complete(take(every, np.array([int(float(row["stage"]))])))
    ends = x.stage_from[0] == 0 or x.stage_from[0] + x.stage_operators[0] > OPERATORS * x.layers[0] + 1
    hw = hardware(str(every["gpu"][0]))
    if hw is None or ends or x.stage_tp[0] > 1 or x.stage_dp[0] > 1:
        return None
    once, again = (runs[:, 0] for runs in runs_of(x))
    key = row["gpu"], f"gpt_{row['model']}", float(x.mbs[0])
    others = 0.0
    for place, name in enumerate(NAMES):
        if place not in WIDTHS:
            forward, backward = alone[*key, name]
            others += 1e-6 * ((once[place] + again[place]) * forward + once[place] * backward)
    parameters = 12 * x.hidden[0] ** 2 * layers_of(x, np.zeros(1))[0]
    others += float(memory_bound(hw, 3 * 2.0 * parameters, hw.elementwise.bandwidth))
    one_by_one = replace(hw, clocks=replace(hw.clocks, sustained=1.0))
    tokens, products = x.mbs[0] * x.seq_len[0], 0.0
    for place, (n, k) in WIDTHS.items():
        sizes = np.full(1, tokens), n * x.hidden, k * x.hidden
        seconds = float(gemm(one_by_one, *sizes, "fp16")[0])
        products += (3 * once[place] + again[place]) * seconds
    micro_batches = float(row["global_batch_size"]) / x.mbs[0]
    took = 1e-3 * (float(row["forward-compute"]) + float(row["backward-compute"])) / micro_batches
    return float(products / (took - others))


if __name__ == "__main__":
    main()
