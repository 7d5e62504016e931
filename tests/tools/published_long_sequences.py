"""Compares the training model with NeMo's page on long sequences: Llama-2 7B on H100 and Llama-3 8B on B200 in FP8,
4,096 to 1,048,576 tokens over up to 32 context parallel ranks. The page is not in this repository (Apache-2.0).

    git clone https://github.com/NVIDIA/NeMo pages/nemo
    PYTHONPATH=. .venv/bin/python -m tests.tools.published_long_sequences pages/nemo [--rows]

The page has FLOP/s; seconds follow by the formula of NeMo 25.04 (nemo/utils/flops_formulas.py), which counts all of the
score matrix. The number of devices is the product of the degrees, although the page states four times as many for B200.
Micro batches have one sequence, nothing is recomputed, gradients are reduced in 16 bits, and overlaps are as in NeMo's
recipes. Runs without context parallelism are excluded, because the page omits their layouts."""

import argparse
import re
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np

from autoscout.simulate.training.step import Training
from autoscout.simulate.validation.training_tables import columns_of
from tests.tools.published_serving import show

Row = dict[str, Any]

PAGE = "docs/source/performance/performance_long_sequence.md"
_SHAPE = ("layers", "hidden", "heads", "kv_heads", "ffn", "vocab")
SHAPES = {
    ("LLAMA3-8B", "B200"): dict(zip(_SHAPE, (32, 4096, 32, 8, 14336, 128256), strict=True)),
    ("LLAMA2-7B", "H100"): dict(zip(_SHAPE, (32, 4096, 32, 32, 11008, 32000), strict=True)),
}
FIXED: Row = {
    "gated": 1, "bias": 0, "tied": 0, "mbs": 1, "precision": "fp8", "recompute": "none", "grad_bytes": 2, "distopt": 1,
    "overlap_grad": 1, "overlap_param": 1, "framework": "NeMo", "per_node": 8,
}  # fmt: skip
# As fast as FlashAttention-2 on an H100 (docs/lab/simulators-training.md), instead of cuDNN's kernels.
KERNELS = {"h100": "flash2", "b200": ""}
_TITLE = re.compile(r"^## (\S+) \(FP8\) - (\S+)$", re.MULTILINE)
_ROW = re.compile(r"<tr>(.*?)</tr>", re.DOTALL)
_CELL = re.compile(r"<td[^>]*>(.*?)</td>", re.DOTALL)


def rows_of(page: Path) -> list[Row]:
    parts = _TITLE.split(page.read_text(encoding="utf-8"))
    found = list[Row]()
    for model, device, text in zip(parts[1::3], parts[2::3], parts[3::3], strict=True):
        shape = SHAPES[model, device]
        for cells in (_CELL.findall(row) for row in _ROW.findall(text)):
            if len(cells) == 10:
                found.append(_row(shape, device, cells))
    return found


def _row(shape: Row, device: str, cells: list[str]) -> Row:
    thousands, batch, tp, pp, dp, cp = (int(cells[i]) for i in (0, 2, 4, 5, 6, 7))
    devices, length = tp * pp * dp * cp, 1024 * thousands
    seconds = flops(shape, batch, length) / (1e12 * float(cells[8].replace(",", "")) * devices)
    split = int(tp > 1)
    layout: dict[str, Any] = {"tp": tp, "pp": pp, "dp": dp, "cp": cp, "gpus": devices}
    layout |= {"sp": split, "tp_comm_overlap": split}
    layout["attention"] = KERNELS[device.lower()]
    run = {"gpu": device.lower(), "seq_len": length, "global_batch": batch, "iteration_time_s": seconds}
    return FIXED | shape | layout | run


def flops(shape: Row, batch: int, length: int) -> float:
    """FLOP of a step, as NeMo counts them."""
    h = shape["hidden"]
    products = 12 + 12 * shape["kv_heads"] / shape["heads"] + 18 * shape["ffn"] / h
    return batch * length * (shape["layers"] * h * h * (products + 12 * length / h) + 6 * shape["vocab"] * h)


def main() -> None:
    parser = argparse.ArgumentParser(description="How far the training model is from NeMo's runs of long sequences.")
    parser.add_argument("clone", type=Path, help="of NeMo, or a folder with its page")
    parser.add_argument("--rows", action="store_true", help="prints each row, too")
    options = parser.parse_args()
    rows = rows_of(options.clone / PAGE)
    told = Training().predict(columns_of(rows))
    groups: dict[str, dict[str, list[tuple[float, float, float]]]] = {"step_time_s": {}}
    for i, row in enumerate(rows):
        found = float(told.value[i]), row["iteration_time_s"], float(told.error[i])
        for name in ("all", row["gpu"], f"cp {'1' if row['cp'] == 1 else '2' if row['cp'] == 2 else 'more'}"):
            groups["step_time_s"].setdefault(name, []).append(found)
        if options.rows:
            parts = ", ".join(f"{n} {float(np.broadcast_to(p, len(rows))[i]):.2f}" for n, p in told.parts.items())
            layout = " ".join(f"{name}{row[name]}" for name in ("seq_len", "gpus", "tp", "pp", "cp", "dp"))
            print(f"{row['gpu']} {layout}: {found[1]:.3f} s, {found[0]:.3f} predicted {found[0] / found[1] - 1:+.1%}")
            print("   ", parts)
    show(groups, Counter())


if __name__ == "__main__":
    main()
