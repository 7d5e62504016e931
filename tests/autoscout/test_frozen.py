"""What the models of autoscout/simulate and the search say of a few hundred inputs, value by value: a changed constant,
sign or comparison shows here first. Whoever meant the change writes the values anew and reads their difference:

    UPDATE_FROZEN=1 python -m pytest tests/autoscout/test_frozen.py

Whether the values are right is other tests' business: worked out by hand (test_memory.py, test_training_sim.py) and
against what was measured (test_error_figures.py).
"""

import math
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from autoscout_flexllmgen import offloading
from autoscout_stack.designs import evaluate
from autoscout_stack.workloads import workloads
from frozen_values import Values, hold, kept
from msgspec.structs import replace
from test_conformance import answer, drive, fine, toy

from autoscout.job.requests import of_traffic
from autoscout.search.bandit import UCB1
from autoscout.search.belief.ranking import Ranking
from autoscout.search.strategy import strategy
from autoscout.simulate.serving.simulator import ServingSimulator
from autoscout.simulate.training.memory import Memory
from autoscout.simulate.training.step import Training
from autoscout.simulate.validation import serving_tables, training_tables
from autoscout.space.graph import Space
from autoscout.studies.rivals.gaussian import expected_improvement
from autoscout.targets.jobs import JobSpace, load_job
from kb.records import Configuration, Measurement, Traffic

HERE = Path(__file__).parent / "frozen"
JOBS = HERE.parents[2] / "fixtures" / "jobs"


def drawn(choices: dict[str, list[Any]], count: int) -> list[dict[str, Any]]:
    rng = random.Random(0)
    return [{name: rng.choice(values) for name, values in choices.items()} for _ in range(count)]


LAYOUTS: dict[str, list[Any]] = {
    "layers": [16, 24, 48], "hidden": [2048, 4096, 6144], "heads": [16, 32], "kv_heads": [8, 16], "ffn": [8192, 14336],
    "vocab": [32000, 128256], "seq_len": [2048, 8192], "tp": [1, 2, 4, 8], "pp": [1, 2, 4], "cp": [1, 2],
    "replicas": [1, 2, 4, 16], "mbs": [1, 2, 4], "micro_batches": [1, 4, 8], "vpp": [1, 2], "sp": [False, True],
    "ar": ["none", "selective", "full"], "ar_layers": [1, 4], "distopt": [False, True], "overlap_grad": [False, True],
    "overlap_param": [False, True], "te": [0, 1], "gated": [0, 1], "dtype": ["bf16", "bf16", "fp16", "fp8"],
    "attention": ["flash", "unfused"], "experts": [0, 0, 8], "ep": [1, 2], "grad_bytes": [2, 4],
    "gpu": ["a100", "a40", "h100", "b200"],
}  # fmt: skip


def layouts() -> dict[str, Any]:
    rows = []
    for row in drawn(LAYOUTS, 120):
        dp, micro_batches = row.pop("replicas"), row.pop("micro_batches")
        moe = row["experts"] > 0
        more = {"topk": 2 if moe else 0, "expert_ffn": 1792 if moe else 0, "dp": dp, "tp_comm_overlap": False}
        row["ep"] = row["ep"] if moe and dp > 1 else 1
        row["gpus"] = row["tp"] * row["pp"] * row["cp"] * dp
        rows.append(row | more | {"global_batch": row["mbs"] * dp * micro_batches})
    return {name: np.array([row[name] for row in rows]) for name in rows[0]}


def training() -> Values:
    columns = layouts()
    step, memory = Training().predict(columns), Memory().predict(columns)
    return {
        "step_s": kept(step.value),
        **{f"step: {name}": kept(part) for name, part in step.parts.items()},
        "gib": kept(memory.value),
        **{f"memory: {name}": kept(part) for name, part in memory.parts.items()},
    }


SERVED: dict[str, Any] = {
    "layers": 32, "hidden": 4096, "heads": 32, "kv_heads": 8, "head_dim": 128, "ffn": 14336, "vocab": 128256,
}  # fmt: skip
SETTINGS: dict[str, list[Any]] = {
    "gpu": ["a100", "h100"], "tp": [1, 2, 4], "max_num_seqs": [16, 64, 256],
    "max_num_batched_tokens": [512, 2048, 8192],
    "quantization": ["none", "fp8"], "input_len": [128, 1024, 3000], "output_len": [16, 128, 400],
    "concurrency": [4, 32, 128], "prefix_caching": [False, True], "scheduler_v0": [0, 0, 1],
}  # fmt: skip


def serving() -> Values:
    rows = drawn(SETTINGS, 9)
    columns = {**SERVED, **{name: np.array([row[name] for row in rows]) for name in SETTINGS}}
    return {
        metric: kept(ServingSimulator(metric).predict(columns).value)
        for metric in ("tpot_mean_ms", "ttft_p99_ms", "tokens_per_s", "peak_memory_gib")
    }


def arrivals() -> Values:
    found: Values = {}
    lengths = Traffic(input_len=256, output_len=64)
    for name, traffic in {"open": replace(lengths, rate=2.5), "closed": replace(lengths, concurrency=8)}.items():
        load = of_traffic(traffic, seed=3, requests=12)
        found |= {f"{name} arrival_s": kept(load.arrival_s), f"{name} input_len": kept(load.input_len)}
    return found


def offloaded() -> Values:
    found: Values = {}
    machine = offloading.Machine(gpu=15e9)
    for hidden, batch in ((2048, 8), (7168, 32), (12288, 4)):
        g = offloading.Generation(layers=48, hidden=hidden, heads=32, ffn=4 * hidden, prompt=512, tokens=32)
        share = offloading.solve(g, machine, batch, 8)
        found[f"{hidden} shares"] = kept(list(share.values())) if share else []
        if share:
            told = offloading.evaluate(g, machine, batch, 8, share)
            found |= {f"{hidden} {metric}": kept(value) for metric, value in told.items()}
    return found


READ: dict[str, list[Any]] = {  # as people's tables of training runs name things
    "model": ["llama2-13b", "mpt-70b", "GPT 18.4B", "qwen3-30b-a3b", "my-model"],
    "gpu": ["A100-SXM-80GB", "H100", "a100_40g"],
    "n_gpus": [8, 64], "framework": ["llm-foundry FSDP", "Megatron-LM", "DeepSpeed ZeRO-3", "vtrain", "torchtitan", ""],
    "seq_len": [2048, 4096], "global_batch": [64, 1024], "micro_batch": [0, 1, 4], "tp": [1, 2, 0], "pp": [1, 4],
    "dp": [1, 8], "ar": ["full", "selective", "none", ""], "zero_stage": [0, 1, 3],
    "precision": ["amp_bf16", "fp16", "fp8", ""],
    "kernel": ["flash_attention2 + RMS kernel", "flash_attention2", "torch", ""], "bf16": ["True", "False"],
    "other": ["grad_accum=4; sharding=FULL_SHARD", "act_cpu_offload=True", ""], "vpp": [0, 2], "ep": [0, 8],
}  # fmt: skip
SERVED_READ: dict[str, list[Any]] = {
    "gpu": ["A100-SXM-80GB", "A100 40GB", "H200", "cpu"], "n_gpus": [1, 4],
    "framework": ["vllm", "TensorRT-LLM", "sglang"],
    "version": ["0.6.3", "0.11.0", ""], "model": ["meta-llama/Llama-2-7b-hf", "Qwen3-235B-A22B", "mine"],
    "tp": [0, 1, 4],
    "precision": ["fp8", "bf16", "w8a8", "int4", ""], "kv_dtype": ["fp8", "", "auto"], "input_len": [128, 2048],
    "output_len": [128, 512], "concurrency_or_batch": [0, 1, 64], "request_rate": [0, 2.5], "max_model_len": [0, 8192],
    "other": ["KV Cache Block_size=32", "offline", ""], "heads": [0, 32], "hidden": [0, 4096], "layers": [0, 32],
}  # fmt: skip


def tables() -> Values:
    """Numbers of the columns; names by how often each occurs."""
    found: Values = {}
    trained = training_tables.columns_of(drawn(READ, 60))
    served, _ = serving_tables.columns_of_rows(drawn(SERVED_READ, 60))
    for kind, columns in (("trained", trained), ("served", served)):
        for name, values in columns.items():
            if values.dtype.kind in "fiub":
                found[f"{kind} {name}"] = kept(values)
            else:
                words, times = np.unique(values.astype(str), return_counts=True)
                found |= {f"{kind} {name} {word}": [int(n)] for word, n in zip(words, times, strict=True)}
    return found


def arms() -> Values:
    """The bandit and the tree's choice over a few hundred steps of made-up rewards; no linear algebra decides here."""
    bandit, rng = UCB1(c0=0.7, gamma=0.97), random.Random(1)
    index, promised = [], []
    for t in range(40):
        arm = bandit.select(t)
        bandit.update(arm, rng.random() * (2 if arm == "SPARSE" else 1), rng.random())
        index += [v for v in bandit.index(t).values() if math.isfinite(v)]
        promised += bandit.expecting({"SPARSE": rng.random(), "DENSE": rng.random()}, 2.0).values()
        if t % 10 == 9:
            bandit.age()
    return {"index": kept(index), "expecting": kept(promised), "kept": kept(list(bandit.kept.values()))}


# No linear algebra decides in these: what they ask is the same on every processor.
DECIDED = (
    "ants",
    "deepspeed-grid",
    "deepspeed-random",
    "deepspeed-staged",
    "genetic",
    "grid",
    "random",
    "udo",
    "walker",
)


def decisions() -> Values:
    """The configurations that each asks for, by their times, on a table that answers and sometimes fails."""
    space, _ = toy()
    found: Values = {}
    for name in DECIDED:
        asked, _ = drive(strategy(name, space, seed=5), space, 40, failing_now_and_then)
        found[name] = kept([fine(space, c).metrics["step_time_s"] for c in asked])
    return found


def failing_now_and_then(space: Space, configuration: Configuration) -> Measurement:
    fails = configuration.knobs["mode"] == "mesh" and int(str(configuration.knobs["degree"])) > 4
    return answer(space, configuration, None, "oom") if fails else fine(space, configuration)


def belief() -> Values:
    """What is believed of every configuration of the table after 24 of them, of which some failed."""
    space, _ = toy()
    rows = [space.feasible.configuration(i) for i in range(3, 200, 8)]
    told = [(c, failing_now_and_then(space, c).metrics.get("step_time_s")) for c in rows]
    ranking = Ranking(space, told, {rows[0].id: 0.1})
    above = {each.configuration.id: (each.excess, each.deviation) for each in ranking.believed}
    around = ranking.around(ranking.believed[0].configuration)
    rng = random.Random(2)
    mean, sd = (np.array([rng.random() for _ in range(9)]) for _ in range(2))
    return {
        "improvement": kept(expected_improvement(mean, sd, 0.4)),
        "above the best": kept([value for _, (value, _) in sorted(above.items())]),
        "deviation": kept([deviation for _, (_, deviation) in sorted(above.items())]),
        "around": kept([around.within, around.median, around.low, around.high] if around else []),
    }


def designs() -> Values:
    found: Values = {}
    for name in ("gpt3-175b-stack", "mpt-70b-stack"):
        space = JobSpace.of_job(load_job(JOBS / f"{name}.toml"))
        codes = space.sample_many(60, np.random.default_rng(0))
        told = evaluate(space.columns(codes), workloads(space.job), False)
        found |= {f"{name} {metric}": kept(values) for metric, values in told.items()}
    return found


@pytest.mark.parametrize(
    ("file", "values"),
    [
        ("training", training),
        ("serving", serving),
        ("serving", arrivals),
        ("serving", offloaded),
        ("stack", designs),
        ("tables", tables),
        ("search", arms),
        ("search", decisions),
        ("search", belief),
    ],
)
def test_every_value_is_as_it_was(file: str, values: Callable[[], Values]):
    rel = 1e-3 if values is belief else 1e-6  # a fit ends where its slope is small, not at a point
    hold(f"{file}/{values.__name__}", values(), rel)
