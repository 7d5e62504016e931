"""Compares vLLM's shadow (dry run) and the event simulation with measured batches on A100 and H100
(LLM-Inference-Bench), by the latency of the whole batch. Prints the table of docs/lab/serving-shadow.md.

    PYTHONPATH=. python tests/tools/serving_shadow_rows.py ../shared/data/validation/serve_end_to_end.csv.gz EVERY

The rows are of vLLM of 2024, whose host did not overlap with the device, so async_scheduling is off."""

import sys
from dataclasses import asdict
from typing import Any

import numpy as np
from serving_accuracy import read

from autoscout.job.device_names import capability_of
from autoscout.simulate.serving.engine_shapes import columns_at
from autoscout.simulate.serving.serving_device import device
from autoscout.simulate.serving.setup import setup
from autoscout.simulate.serving.simulator import ServingSimulator
from autoscout.simulate.shadow.served import ServedTrace
from autoscout.simulate.shadow.traced import GIB
from autoscout.simulate.validation.serving_tables import columns_of_rows
from autoscout.targets.vllm.serving_shadow import ask, tables_of
from tui.text import table

_PYTHON = ".venv-vllm/bin/python"


def main() -> None:
    columns, measured = columns_of_rows(read(sys.argv[1]))
    values, n = measured["e2el_mean_ms"], len(columns["row"])
    known = (columns["why_not"] == "") & (columns["framework"] == "vLLM") & np.isfinite(values) & (columns["pp"] == 1)
    rows = np.flatnonzero(known)[:: int(sys.argv[2])]
    events = ServingSimulator("e2el_mean_ms").predict(columns_at(columns, rows, n)).value
    told = ask([_question(columns_at(columns, rows[i : i + 1], n)) for i in range(len(rows))], [_PYTHON], 550.0)
    shadows = np.array([_latency(said) for said in told])
    gpus, values = columns["gpu"][rows], values[rows]
    lines = []
    for gpu in ("all", *np.unique(gpus)):
        some = (gpus == gpu) if gpu != "all" else np.ones(len(rows), dtype=bool)
        some &= np.isfinite(events) & np.isfinite(shadows)
        each = [abs(of[some] / values[some] - 1) for of in (shadows, events)]
        between = abs(shadows[some] / events[some] - 1)
        cells = [f"{error.mean():.1%} / {np.median(error):.1%}" for error in (*each, between)]
        lines.append((gpu, int(some.sum()), *cells))
    print(table(lines, ("GPU", "rows", "shadow: mean / median error", "events: mean / median", "one from the other")))
    for said in told:
        if said.verdict != "starts":
            print(said.verdict, said.type, said.message[:200])


def _question(columns: dict[str, Any]) -> dict[str, Any]:
    gpu = str(columns["gpu"][0])
    sized = setup({**columns, "async_scheduling": np.array([-1.0])}, device(gpu), 1)
    row = {name: float(np.asarray(values).ravel()[0]) for name, values in columns.items() if values.dtype.kind in "fi"}
    count, asked, answered = int(row["batch"]), int(row["input_len"]), int(row["output_len"])
    length = -(-(asked + answered) // 128) * 128
    config = {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_act": "silu",
        "hidden_size": int(row["hidden"]),
        "num_hidden_layers": int(row["layers"]),
        "num_attention_heads": int(row["heads"]),
        "num_key_value_heads": int(row["kv_heads"] or row["heads"]),
        "intermediate_size": int(row["ffn"]),
        "vocab_size": int(row["vocab"]),
        "max_position_embeddings": max(length, 4096),
        "rms_norm_eps": 1e-5,
        "torch_dtype": "bfloat16",
    }
    arguments = {
        "max_model_len": length,
        "tensor_parallel_size": int(row["tp"]),
        "max_num_seqs": int(sized.max_seqs[0]),
        "max_num_batched_tokens": int(sized.batched_tokens[0]),
        "block_size": 16,
        "async_scheduling": False,
        "enable_prefix_caching": False,
    }
    load = {"input_len": [asked] * count, "output_len": [answered] * count, "arrival_s": [0.0] * count}
    plan = {**load, "vocab": 30000, "shared_prefix": 0, "concurrency": 0, "warmup": 0, "passes": 1, "measure_s": 1.0}
    return {
        "arguments": arguments,
        "model": "",
        "config": config,
        "gpu": {"name": gpu, "capability": capability_of(gpu), "memory": int(80 * GIB), "count": 8},
        "memory": max(0, int(sized.memory.kv_gib[0] * GIB)),
        "times": asdict(tables_of(sized, length)),
        "plan": plan,
    }


def _latency(said: ServedTrace) -> float:
    return said.passes[0]["duration_s"] * 1e3 if said.verdict == "starts" else np.nan


if __name__ == "__main__":
    main()
