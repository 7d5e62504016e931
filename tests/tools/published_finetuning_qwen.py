"""Compares the training and memory models with Qwen's table of fine-tuning: LoRA, Q-LoRA and all parameters of 1.8B to
14B models, Hugging Face's trainer on one and two A100, 256 to 8,192 tokens. The page is not in this repository (Tongyi
Qianwen's licences).

    git clone https://github.com/QwenLM/Qwen pages/qwen
    PYTHONPATH=. .venv/bin/python -m tests.tools.published_finetuning_qwen pages/qwen/README.md [--rows]

The page states eight micro batches of one sequence and FlashAttention 2. According to its finetune/*.sh and
finetune.py, each layer is recomputed, all products have adapters of rank 64, and all parameters are trained with
DeepSpeed's ZeRO-3 (ds_config_zero3.json). Other settings are predicted as unknown software. Memory is that of all
devices according to the driver, so the context's memory is added to the prediction. Excluded: LoRA with trained
embedding and head, 72B (more devices, DeepSpeed's ZeRO-3), two nodes (unknown network), and times of Q-LoRA, because no
model has GPTQ's kernels."""

import argparse
import re
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np

from autoscout.simulate.hardware.device import shipped
from autoscout.simulate.training.memory import Memory
from autoscout.simulate.training.step import Training
from tests.tools.published_serving import show

Row = dict[str, Any]

# layers, hidden, heads, ffn, vocabulary, from the model cards; only queries, keys and values have biases.
SHAPES = {
    "1.8B": (24, 2048, 16, 5504, 151936),
    "7B": (32, 4096, 32, 11008, 151936),
    "14B": (40, 5120, 40, 13696, 152064),
}
LENGTHS = (256, 512, 1024, 2048, 4096, 8192)
LORA = {"LoRA": 1.0, "Q-LoRA": 2.0}
# ds_config_zero3.json as columns of the models (targets/deepspeed/catalog.toml).
ZERO_3 = {"zero": 3.0, "masters_apart": 1.0, "grad_bytes": 2.0, "kept_elements": 5e8}
_ROW = re.compile(r"<tr>(.*?)</tr>", re.DOTALL)
_CELL = re.compile(r"<t[hd][^>]*>(.*?)</t[hd]>", re.DOTALL)
_TOLD = re.compile(r"([\d.]+)G? / ([\d.]+)s/it")


def rows_of(page: Path) -> tuple[list[Row], Counter[str]]:
    text = page.read_text(encoding="utf-8")
    text = text[text.index("Profiling of Memory and Speed") :]
    rows, reasons, model = list[Row](), Counter[str](), ""
    for line in _ROW.findall(text[: text.index("</table>")]):
        cells = [cell.strip() for cell in _CELL.findall(line)]
        if re.fullmatch(r"[\d.]+B", cells[0]):
            model, *cells = cells
        if len(cells) != len(LENGTHS) + 3:
            continue
        method, nodes, devices = cells[0], int(cells[1]), int(cells[2])
        if model not in SHAPES or nodes > 1 or method not in {*LORA, "Full-parameter"}:
            reasons[f"{model} {method}"] += len(LENGTHS)
            continue
        for length, cell in zip(LENGTHS, cells[3:], strict=True):
            if told := _TOLD.fullmatch(cell):
                rows.append(_row(model, method, devices, length) | {"gib": float(told[1]), "seconds": float(told[2])})
    return rows, reasons


def _row(model: str, method: str, devices: int, length: int) -> Row:
    layers, hidden, heads, ffn, vocab = SHAPES[model]
    lora = LORA.get(method, 0.0)
    sharded = dict.fromkeys(ZERO_3, 0.0) | {"grad_bytes": np.nan} if lora else ZERO_3
    return {**sharded,
        "model": model, "method": method, "layers": layers, "hidden": hidden, "heads": heads, "kv_heads": heads,
        "ffn": ffn, "gated": 1, "vocab": vocab, "bias": 0, "qkv_bias": 1, "tied": 0, "seq_len": length, "mbs": 1,
        "global_batch": 8 * devices, "gpus": devices, "gpu": "a100", "ar": "full", "attention": "flash2",
        "lora": lora, "lora_rank": 64, "adapters": 1.0, "adapter_width": 9 * hidden + 3 * ffn,
        "software": "unknown",
    }  # fmt: skip


def columns(rows: list[Row]) -> dict[str, np.ndarray]:
    return {name: np.array([row[name] for row in rows]) for name in rows[0] if name not in ("model", "method")}


def main() -> None:
    parser = argparse.ArgumentParser(description="How far the training and memory models are from Qwen's fine-tuning.")
    parser.add_argument("page", type=Path, help="its README.md")
    parser.add_argument("--rows", action="store_true", help="prints each row, too")
    options = parser.parse_args()
    rows, reasons = rows_of(options.page)
    x = columns(rows)
    step, memory = Training().predict(x), Memory().predict(x)
    context = shipped("a100").context_gib
    groups: dict[str, dict[str, list[tuple[float, float, float]]]] = {"step_time_s": {}, "memory_gib": {}}
    for i, row in enumerate(rows):
        seconds = float(step.value[i]), row["seconds"], float(step.error[i])
        gib = row["gpus"] * (float(memory.value[i]) + context), row["gib"], float(memory.error[i])
        for name in ("all", f"{row['method']} {row['model']}", f"{row['seq_len']} tokens"):
            groups["memory_gib"].setdefault(name, []).append(gib)
            if row["method"] != "Q-LoRA":
                groups["step_time_s"].setdefault(name, []).append(seconds)
        if options.rows:
            said = f"{seconds[1]:.2f} s {seconds[0]:.2f} predicted, {gib[1]:.1f} GiB {gib[0]:.1f} predicted"
            print(row["model"], row["method"], row["gpus"], row["seq_len"], said)
            print("   ", ", ".join(f"{n} {float(np.broadcast_to(p, len(rows))[i]):.2f}" for n, p in step.parts.items()))
            print("   ", ", ".join(f"{n} {float(p[i]):.2f}" for n, p in memory.parts.items()))
    show(groups, reasons)


if __name__ == "__main__":
    main()
