"""Compares the training model with MLPerf Training v4.0 and v4.1 (GPT-3 175B, LoRA of Llama-2-70B). Logs are not in
this repository (Apache-2.0).

    git clone https://github.com/mlcommons/training_results_v4.0 pages/training_v4.0
    git clone https://github.com/mlcommons/training_results_v4.1 pages/training_v4.1
    PYTHONPATH=. .venv/bin/python -m tests.tools.published_training_mlperf pages [--held-out] [--rows]

Held out, before any prediction was made: all submitters except NVIDIA, and for LoRA also except Oracle. Without
--held-out: the rows on which the model may be changed.

A row is a system, with the median seconds per step over its logs. GPT-3's logs have step times, or start and end of
blocks of tokens; LoRA's have samples per second. The layout is from the log; else from the submitter's configuration
for as many devices; else from NVIDIA's configuration that splits a sample over as many devices (if possible for the
same device, and of the release that wrote the log), because partners run NVIDIA's code."""

import argparse
import json
import re
from collections import Counter
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from autoscout.simulate.hardware.device import hardware
from autoscout.simulate.training.step import Training
from autoscout.simulate.validation.training_tables import columns_of
from tests.tools.published_serving import show

Row = dict[str, Any]

LORA = {
    "layers": 80, "hidden": 8192, "heads": 64, "kv_heads": 8, "ffn": 28672, "gated": 1, "bias": 0, "vocab": 32000,
    "seq_len": 8192, "mbs": 1, "pp": 1, "recompute": "none", "lora": 1, "transposes": 1,
}  # fmt: skip
GPT3 = {
    "layers": 96, "hidden": 12288, "heads": 96, "kv_heads": 96, "ffn": 49152, "gated": 0, "bias": 1, "vocab": 51200,
    "seq_len": 2048, "learned_positions": 1, "tied": 1, "recompute": "none", "grad_bytes": 2, "distopt": 1,
    "overlap_grad": 1, "overlap_param": 1, "overlap_p2p": 1, "vpp": 12, "gathered_bytes": 1, "dp_channels": 8,
}  # fmt: skip
SHAPES = {"llama2_70b_lora": LORA, "gpt3": GPT3}
ROUNDS = ("training_v4.0", "training_v4.1")
_IN_SIGHT = {"llama2_70b_lora": ("NVIDIA", "Oracle"), "gpt3": ("NVIDIA",)}
_DEVICES = ("H100-SXM", "H200-SXM", "B200", "L40S", "A100-SXM4-80GB")

# Names in NeMo's printed configuration, and variables of NVIDIA's scripts → our columns.
_PRINTED = {
    "tensor_model_parallel_size": "tp", "pipeline_model_parallel_size": "pp", "context_parallel_size": "cp",
    "virtual_pipeline_model_parallel_size": "vpp", "micro_batch_size": "mbs", "sequence_parallel": "sp",
    "ub_tp_comm_overlap": "tp_comm_overlap", "tp_comm_overlap_rs_dgrad": "tp_comm_dgrad", "enable_cuda_graph": "graphs",
    "fp8_dot_product_attention": "fp8_attention",
}  # fmt: skip
_SET = {
    "TP": "tp", "TENSOR_MODEL_PARALLEL": "tp", "PP": "pp", "PIPELINE_MODEL_PARALLEL": "pp", "CP": "cp", "SP": "sp",
    "INTERLEAVED_PIPELINE": "vpp", "MBS": "mbs", "MICRO_BATCH_SIZE": "mbs", "TP_COMM_OVERLAP": "tp_comm_overlap",
    "MC_TP_OVERLAP_RS_DGRAD": "tp_comm_dgrad",
    "LAYER_CUDA_GRAPH": "graphs", "FP8_DPA": "fp8_attention", "DGXNNODES": "nodes", "DGXNGPU": "per_node",
}  # fmt: skip
_LINE = re.compile(r"^(?:\s*\d+:)?\s*(\w+): (\w+)\s*$", re.MULTILINE)
_EXPORT = re.compile(r'^export (\w+)="?(?:\$\{\w+:?[=-])?(\w+)', re.MULTILINE)
_TOLD = re.compile(r'"key": "(global_batch_size|gradient_accumulation_steps)", "value": (\d+)')
_STEP = re.compile(r'"train_step_timing in s": ([\d.]+)')
_SAMPLES = re.compile(r'"throughput": ([\d.]+)')
_BEGUN = re.compile(r'"time_ms": (\d+)[^\n]*"key": "run_start"')
_BLOCK = re.compile(r'"time_ms": (\d+)[^\n]*"key": "block_(start|stop)"[^\n]*"epoch_count": (\d+)')


def rows_of(pages: Path) -> tuple[list[Row], Counter[str]]:
    """(rows of all rounds, number of excluded results by reason)."""
    rows, reasons, seen = list[Row](), Counter[str](), set[str]()
    for folder in _results(pages):
        logs = [log.read_text(encoding="utf-8", errors="replace") for log in sorted(folder.glob("result_*.txt"))]
        if not logs:
            reasons["no log"] += 1
        elif (run := _begun(logs[0])) in seen:
            reasons["the runs of another submission once more"] += 1
        else:
            seen.add(run)
            row = row_of(pages, folder, logs)
            if isinstance(row, str):
                reasons[row] += 1
            else:
                rows.append(row)
    return rows, reasons


def _begun(log: str) -> str:
    """A run's start in milliseconds, which identifies it."""
    return found[1] if (found := _BEGUN.search(log)) else log


def _results(pages: Path) -> Iterator[Path]:
    for name in ROUNDS:
        for benchmark in SHAPES:
            yield from sorted((pages / name).glob(f"*/results/*/{benchmark}"))


def row_of(pages: Path, folder: Path, logs: list[str]) -> Row | str:
    """One system's row, or the reason why there is none."""
    system, benchmark = folder.parent.name, folder.name
    submitter, round_ = folder.parents[2].name, folder.parents[3].name
    told = json.loads((folder.parents[2] / "systems" / f"{system}.json").read_text(encoding="utf-8"))
    gpu = device_of(str(told["accelerator_model_name"]))
    if not gpu:
        return f"no constants for {told['accelerator_model_name']}"
    row: Row = {"gpu": gpu, "per_node": int(told["accelerators_per_node"])}
    row["gpus"] = int(told["number_of_nodes"]) * row["per_node"]
    found = {name: int(value) for name, value in _TOLD.findall(logs[0])}
    row["global_batch"] = found["global_batch_size"]
    seconds = [s for log in logs if (s := seconds_of(log, row["global_batch"], SHAPES[benchmark]["seq_len"]))]
    if not seconds:
        return "no step's seconds in its logs"
    newer = round_.endswith("4.1") if benchmark == "gpt3" else '"train_loss"' in logs[0]
    release = "24.09" if newer else "24.04"
    own = printed(logs[0])
    if "tp" not in own:
        each = found["gradient_accumulation_steps"]
        own = _like(pages, folder, row, row["gpus"] * each / row["global_batch"], release)
    if not own:
        return "neither a layout in its log nor a configuration that fits"
    shape = SHAPES[benchmark] | row | {"cp": 1} | own
    return shape | {
        "dp": row["gpus"] // (int(shape["tp"]) * int(shape["pp"]) * int(shape["cp"])),
        "sp": int(shape["tp"] > 1),
        "precision": "fp8",
        "framework": f"NeMo {release}",
        "iteration_time_s": float(np.median(seconds)),
        "page": f"{round_} {submitter} {system}",
        "benchmark": benchmark,
        "held_out": submitter not in _IN_SIGHT[benchmark],
    }


def device_of(accelerator: str) -> str:
    """Our name of the device; "" if it is not NVIDIA's or has no constants."""
    name = next((name for name in _DEVICES if name in accelerator), "")
    ours = "a100" if name.startswith("A100") else name.split("-")[0].lower()
    return ours if name and hardware(ours) else ""


def seconds_of(log: str, global_batch: int, seq_len: int) -> float:
    """The median seconds per step; 0 if the log has no times. Blocks consist of whole steps; the first step includes
    the delay after an evaluation."""
    if steps := [float(s) for s in _STEP.findall(log)]:
        return float(np.median(steps))
    if rates := [float(rate) for rate in _SAMPLES.findall(log)]:
        return global_batch / float(np.median(rates))
    marks = [(int(at), kind, int(tokens)) for at, kind, tokens in _BLOCK.findall(log)]
    blocks = [
        (end - start) / 1e3 * global_batch * seq_len / tokens
        for (start, begun, tokens), (end, ended, _) in pairwise(marks)
        if (begun, ended) == ("start", "stop") and tokens
    ]
    return float(np.median(blocks)) if blocks else 0.0


def printed(log: str) -> dict[str, int]:
    """NeMo's printed configuration, the first value of each name; empty if a log has only benchmark events."""
    found = dict[str, int]()
    for name, value in _LINE.findall(log):
        if name in _PRINTED and (number := _number(value)) is not None:
            found.setdefault(_PRINTED[name], number)
    return found


def exported(script: Path) -> dict[str, int]:
    """The values that a configuration's script exports; they override the folder's, and later lines earlier ones."""
    shared = [script.parent / "config_common.sh", script.parent / "configs/config_common.sh"]
    files = [file for file in (*shared, script) if file.exists()]
    text = "\n".join(file.read_text(encoding="utf-8", errors="replace") for file in files)
    each = {_SET[name]: _number(value) for name, value in _EXPORT.findall(text) if name in _SET}
    return {name: value for name, value in each.items() if value is not None}


def _number(value: str) -> int | None:
    known = {"true": 1, "false": 0}
    return known.get(value.lower(), int(value) if value.isdecimal() else None)


def _like(pages: Path, folder: Path, row: Row, replicated: float, release: str) -> dict[str, int]:
    """The first configuration that splits a sample over as many devices as the log, among the submitter's for as many
    devices, then NVIDIA's. `replicated`: devices × micro batches of a replica / samples per step."""
    own, theirs = list[tuple[bool, int, dict[str, int]]](), list[tuple[bool, int, dict[str, int]]]()
    for script in sorted(pages.glob(f"training_v4.*/*/benchmarks/{folder.name}/implementations/*/config_*x*.sh")):
        said = exported(script)
        if not {"tp", "nodes"} <= said.keys():
            continue
        split = said["tp"] * said.get("pp", 1) * said.get("cp", 1)
        if split != replicated * said.get("mbs", 1):
            continue
        submitter, round_ = script.parents[4].name, script.parents[5].name
        gpus = said.pop("nodes") * said.pop("per_node", 8)
        near = row["gpu"].upper() not in script.name, abs(gpus - row["gpus"]), said
        if submitter == folder.parents[2].name and round_ == folder.parents[3].name and gpus == row["gpus"]:
            own.append(near)
        if submitter == "NVIDIA" and round_ == ("training_v4.1" if release == "24.09" else "training_v4.0"):
            theirs.append(near)
    return min(own or theirs, key=lambda each: each[:2], default=(False, 0, {}))[2]


def main() -> None:
    parser = argparse.ArgumentParser(description="How far the training model is from MLPerf Training v4.0 and v4.1.")
    parser.add_argument("folder", type=Path, help="with clones of the rounds' results")
    parser.add_argument("--held-out", action="store_true", help="the rows that the model was not changed by")
    parser.add_argument("--rows", action="store_true", help="prints each row, too")
    options = parser.parse_args()
    rows, reasons = rows_of(options.folder)
    rows = [row for row in rows if row["held_out"] == options.held_out]
    told = Training().predict(columns_of(rows))
    groups: dict[str, dict[str, list[tuple[float, float, float]]]] = {}
    for i, row in enumerate(rows):
        found = float(told.value[i]), row["iteration_time_s"], float(told.error[i])
        for name in names(row):
            groups.setdefault("step_time_s", {}).setdefault(name, []).append(found)
        if options.rows:
            print(
                f"{row['page']} {row['benchmark']} {layout(row)}: {found[1]:.4f} s measured, {found[0]:.4f} predicted"
            )
            parts = (
                f"{name} {1e3 * float(np.broadcast_to(part, len(rows))[i]):.0f}" for name, part in told.parts.items()
            )
            print(f"    {found[0] / found[1] - 1:+.1%} ms: {', '.join(parts)}")
    show(groups, reasons)


def names(row: Row) -> list[str]:
    """Names of the groups that a row belongs to."""
    model = "GPT-3" if row["benchmark"] == "gpt3" else "LoRA"
    return [f"all {model}", f"{model} {row['gpu']} {row['gpus']:,} devices"]


def layout(row: Row) -> str:
    said = " ".join(f"{name}{row[name]}" for name in ("tp", "cp", "pp", "vpp", "mbs", "dp") if row.get(name, 1) != 1)
    on = " ".join(name for name in ("tp_comm_overlap", "graphs") if row.get(name))
    return f"{row['gpus']} {row['gpu']} batch {row['global_batch']} {said} {on} {row['framework']}"


if __name__ == "__main__":
    main()
