"""What the training models say of seeded rows that use every column they read: each part of the seconds and of the
bytes, on one kind of device and on several, before rows of the job and after. `UPDATE_FROZEN=1` writes them anew."""

from typing import Any

import numpy as np
import pytest
from frozen_values import Values, drawn, hold, kept

from autoscout.simulate.joules import TrainingEnergy
from autoscout.simulate.training import memory
from autoscout.simulate.training.inputs import complete
from autoscout.simulate.training.memory import Memory
from autoscout.simulate.training.rank_parameters import rank_weights, trained
from autoscout.simulate.training.software import evidence, mixed, variants
from autoscout.simulate.training.step import Training
from autoscout.studies.bench.job_landscape import ranks_gib
from kb.records import Configuration, Value

Columns = dict[str, Any]
NAN = float("nan")
MODEL: dict[str, list[Any]] = {
    "layers": [8, 12, 32], "hidden": [1024, 2050, 4096], "heads": [16, 32], "kv_heads": [8, 16],
    "vocab": [32000, 50257], "seq_len": [1024, 2048, 4096], "gated": [0, 1], "ffn": [0, 8192], "bias": [0, 1],
    "tied": [0, 1], "learned_positions": [0, 1],
}  # fmt: skip
LAYOUT: dict[str, list[Any]] = {
    "tp": [1, 2, 4, 8], "pp": [1, 2, 4], "cp": [1, 2], "dp": [1, 2, 8], "vpp": [1, 2], "mbs": [1, 2, 4],
    "global_batch": [16, 64, 100], "sp": [0, 1], "ar": ["none", "selective", "full"],
    "ar_method": ["uniform", "block"], "ar_layers": [1, 2, 3], "distopt": [0, 1], "overlap_grad": [0, 1],
    "overlap_param": [0, 1], "ddp_bucket": [1, 40, 160], "tp_comm_overlap": [0, 1], "tp_comm": [8, 16, 32],
    "overlap_p2p": [0, 1], "te": [0, 1],
}  # fmt: skip
SOFTWARE: dict[str, list[Any]] = {
    "attention": ["", "unfused", "unfused", "flash1", "flash2", "flash"], "dropout": [0, 1], "fused_norm": [0, 1],
    "fused_activation": [0, 1], "split_loss": [0, 1], "zero": [0, 0, 1, 2, 3], "zero_group": [NAN, 4],
    "ar_modules": ["core_attn", "mlp", "moe_act+layernorm", "core_attn+layernorm"], "recomputed": [NAN, NAN, 0.5],
    "grad_bytes": [2, 4], "gpu": ["a100", "a40", "h100", "b200"], "node_gb_s": [NAN, 25], "per_node": [NAN, 4, 8],
}  # fmt: skip
SPARSE: dict[str, list[Any]] = {
    "experts": [0, 1, 8, 16], "topk": [1, 2], "expert_ffn": [0, 1792], "ep": [1, 2, 4], "etp": [1, 1, 2],
    "dispatcher": ["alltoall", "allgather", "flex"], "lora": [0, 0, 1, 2], "adapters": [0, 1], "lora_rank": [8, 16],
    "adapter_width": [NAN, 9000], "frozen_layers": [0, 0, 2], "packing": [0, 1], "packed_share": [0.5, 1],
    "packed_context": [NAN, 512], "norms": [1, 2, 4], "adapter_dropout": [0, 1], "expert_bias": [0, 1],
}  # fmt: skip


def parts_of(name: str, said: Any) -> Values:
    return {
        f"{name} value": kept(said.value),
        f"{name} error": kept(said.error),
        **{f"{name} {part}": kept(values) for part, values in said.parts.items()},
    }


def of(columns: Columns) -> Values:
    return parts_of("step", Training().predict(columns)) | {
        f"memory {part}": kept(values) for part, values in Memory().predict(columns).parts.items()
    }


def test_dense_layouts():
    hold("training/dense", of(drawn(MODEL | LAYOUT | SOFTWARE, 28, 1)))


def test_experts_adapters_and_packed_samples():
    hold("training/sparse", of(drawn(MODEL | LAYOUT | SOFTWARE | SPARSE, 30, 2)))


@pytest.mark.parametrize("dtype", ["fp8", "fp4", "fp16", "fp32"])
def test_precisions(dtype: str):
    columns = drawn(MODEL | LAYOUT | SOFTWARE | SPARSE, 18, 3) | {"dtype": dtype, "gpu": "h100"}
    step, held = Training().predict(columns), Memory().predict(columns)
    some = {f"step {name}": kept(step.parts[name]) for name in ("compute", "tp", "cp", "ep", "dp", "pp")}
    few = {f"memory {name}": kept(held.parts[name]) for name in ("weights", "gradients", "optimizer", "activations")}
    hold(f"training/{dtype}", some | few)


def test_several_kinds_of_device_and_a_cpu():
    """Kinds that are counted by row, with layers that each stage is told or is not."""
    counts = {"a100": [0, 8, 16], "a40": [8, 16], "a100_layers": [0, 0, 9], "a40_layers": [0, 7]}
    mixed = {**drawn(MODEL | counts, 24, 4), "layers": 32, "mbs": 1, "global_batch": 64, "pp": 4, "tp": 2, "dp": 1}
    mixed["gpus"] = mixed["a100"] + mixed["a40"]
    mixed |= {"dp": mixed["gpus"] // 8, "kinds_gb_s": np.where(np.arange(24) % 2 == 0, 5.0, NAN)}
    found = of(mixed) | {"mixed oom": kept(Memory().oom_probability(mixed))}
    on_cpu = {**drawn(MODEL | LAYOUT, 8, 5), "gpu": "cpu"}
    cpu = Training().predict(on_cpu)
    found |= {f"cpu {name}": kept(values) for name, values in cpu.parts.items()} | {"cpu error": kept(cpu.error)}
    found |= {"cpu process": kept(Memory().predict(on_cpu).parts["process"])}
    hold("training/kinds", found)


def test_what_does_not_fit_and_what_rows_of_the_job_say():
    columns = {**drawn(MODEL | LAYOUT, 24, 6), "gpu": "a100", "memory_gib": 40.0, "software": "unknown", "te": NAN}
    fused = np.where(np.arange(24) % 3 == 0, 0.0, NAN)
    columns |= {"fused_norm": fused, "attention": np.where(np.arange(24) % 2 == 0, "", "flash2")}
    held, timed = Memory(), Training()
    found = {"oom before": kept(held.oom_probability(columns)), "filled": kept(held.filled(columns))}
    found |= {"fits": kept(held.fits(columns))} | {"unknown": kept(timed.predict(columns).value)}
    found |= {"memory": kept(held.predict(columns).value), "memory error": kept(held.predict(columns).error)}
    known = {**columns, "software": np.where(np.arange(24) < 20, "unknown", "")}
    found |= {"some known": kept(Training().predict(known).value)}
    peaks = held.predict(columns).value * np.linspace(0.8, 1.4, 24)
    peaks[[3, 7]] = np.inf
    held.fit(columns, peaks)
    found |= {"told of peaks": kept(list(held.software.values())), "margin": kept([held.margin, held.squares])}
    found |= {"oom after": kept(held.oom_probability(columns)), "memory after": kept(held.predict(columns).value)}
    seconds = timed.predict(columns).value * np.linspace(0.9, 1.3, 24)
    seconds[5] = NAN
    timed.fit(columns, seconds)
    found |= {"told of seconds": kept(list(timed.software.values()))} | parts_of("fitted", timed.predict(columns))
    hold("training/fitted", found, rel=1e-4)  # a fit ends where its slope is small, not at a point


def test_correction_by_rows_of_several_jobs():
    columns = {**drawn(MODEL | LAYOUT, 30, 7), "gpu": "a100", "framework": np.array(["one", "two", "two"] * 10)}
    timed = Training()
    before = timed.predict(columns)
    factor = 1 + 0.2 * np.sin(np.arange(30.0))
    factor[4] = 9.0  # stands far out
    timed.fit(columns, before.value * factor)
    said = timed.predict({**columns, "tp": np.roll(columns["tp"], 1), "framework": np.array(["two", "one", "x"] * 10)})
    found: Values = {"value": kept(said.value), "error": kept(said.error)}
    alike = timed.predict(
        {name: np.asarray(values)[:3] for name, values in columns.items() if name != "gpu"}
        | {"gpu": "a100", "framework": "two", "layers": 8}
    )
    found["rows of one job"] = kept(alike.value)
    hold("training/corrected", found, rel=1e-3)


def test_correction_takes_every_second_of_three_hundred_rows():
    columns = {**drawn(MODEL | LAYOUT, 300, 11), "gpu": "a100"}
    timed = Training()
    timed.fit(columns, timed.predict(columns).value * 2)
    assert timed.correction is not None
    assert len(timed.correction.weights) == 150


def test_energy():
    columns = {**drawn(MODEL | LAYOUT, 10, 8), "gpu": "a100"}
    columns["gpus"] = columns["tp"] * columns["pp"] * columns["cp"] * columns["dp"]
    energy = TrainingEnergy()
    before = energy.predict(columns)
    found = {"joules": kept(before.value), "error": kept(before.error)}
    energy.fit(columns, before.value * np.array([2.0] * 8 + [NAN, 4.0]))
    # Eight doublings and a factor of four: the level's prior counts as one row.
    assert energy.level == pytest.approx(10 * np.log(2) / 10)
    hold("training/joules", found)


def test_ranks_of_a_pipeline_and_shares_of_parameters():
    attributes = {"layers": 10, "hidden": 1024, "heads": 16, "seq_len": 1024, "global_batch": 16, "gpus": 8}
    found: Values = {}
    layouts: tuple[dict[str, Value], ...] = (
        {"tp": 2, "pp": 4, "mbs": 2},
        {"pp": 2, "tp": 1, "mbs": 1},
        {"tp": 8, "mbs": 1},
    )
    for knobs in layouts:
        found[f"{knobs}"] = kept(ranks_gib(attributes | {"gpu": "a100"}, Configuration(knobs=knobs)))
    counted: dict[str, Value] = {"a100": 4, "a40": 4, "a100_layers": 4, "a40_layers": 1, "tp": 2, "pp": 4, "mbs": 1}
    found["of two kinds"] = kept(ranks_gib(attributes, Configuration(knobs=counted)))
    x = complete(drawn(MODEL | LAYOUT | SPARSE, 20, 9))
    rank = rank_weights(x)
    found |= {"dense": kept(rank[0]), "expert": kept(rank[1])}
    of_rank = trained(x, *rank)
    found |= {"trained dense": kept(of_rank[0]), "trained expert": kept(of_rank[1])}
    found["one"] = kept(memory.estimate_gib(attributes, Configuration(knobs={"tp": 2, "pp": 2})))
    hold("training/ranks", found)


def test_columns_completed():
    rows = drawn(MODEL | LAYOUT | SOFTWARE | SPARSE, 12, 10)
    rows = {name: values for name, values in rows.items() if name not in ("gated", "dp")}
    rows |= {"gpus": np.full(12, 64), "ffn": np.array([0, 8192, 4096, NAN] * 3)}
    found: Values = {}
    for name, more in {
        "plain": {}, "params": {"params": np.linspace(3e8, 9e9, 12)}, "fp16": {"dtype": "fp16"}, "dp": {"dp": 4},
    }.items():  # fmt: skip
        x = complete(rows | more)
        for column in ("gated", "ffn", "expert_ffn", "gpus", "dp", "micro_batches", "head_dim", "attention"):
            found[f"{name} {column}"] = kept(getattr(x, column))
        found[f"{name} again"] = kept(
            [getattr(x, f"again_{part}") for part in ("core", "block", "activation", "norms")]
        )
        found[f"{name} grad_bytes"] = kept(x.grad_bytes[:2])
    no_modules = complete({name: values for name, values in rows.items() if name != "ar_modules"})
    found["core again"] = kept(no_modules.again_core)
    hold("training/inputs", found)


def test_mixtures_of_software():
    rows = {"software": np.array(["unknown", "", "unknown"]), "fused_norm": np.array([NAN, 0.0, 0.0])}
    rows |= {"layers": 2, "hidden": 1024, "heads": 8, "seq_len": 1024, "gpu": "a100", "gated": 1}
    some = variants(rows)
    found: Values = {each.name: kept(each.log_share) for each in some}
    blind = variants(rows, frozenset({"split_loss", "grad_bytes"}))
    found |= {f"blind {each.name}": kept(each.log_share) for each in blind}
    residuals = [np.array([0.1 * i, NAN, 0.3 - 0.1 * i]) for i in range(len(blind))]
    found["told"] = kept(list(evidence(blind, residuals, 0.2).values()))
    value, between, weights = mixed(
        [np.array([2.0, 3.0, NAN]), np.array([4.0])],
        [np.log([0.5, 0.2, 1.0]), np.array([np.log(0.5), -np.inf, -np.inf])],
    )
    found |= {"mean": kept(value), "between": kept(between), "weights": kept(weights)}
    hold("training/software", found)
