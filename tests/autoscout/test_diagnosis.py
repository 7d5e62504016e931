"""A bad prediction says which it is: saturated, out of the fitted range, or other software."""

import csv
from pathlib import Path

import numpy as np
import pytest
import verbs

from autoscout.simulate.member import Prediction
from autoscout.simulate.serving.simulator import ServingSimulator
from autoscout.simulate.training.step import Training
from autoscout.simulate.validation.diagnosis import UNEXPLAINED, out_of_range, reasons

DENSE = {"layers": 32, "hidden": 4096, "heads": 32, "seq_len": 2048, "global_batch": 64, "gpus": 8, "gpu": "a100"}
SERVED = {"layers": 32, "hidden": 4096, "heads": 32, "kv_heads": 8, "ffn": 14336, "gated": 1, "vocab": 128256}
LOAD = {"gpu": "a100", "input_len": 512, "output_len": 256, "requests": 200}
ONE = np.zeros(1)


def of_step(columns: dict[str, object], factor: float | np.ndarray) -> list[str]:
    said = Training().predict(columns)
    return reasons("pretrain", "step_time_s", columns, said.value * factor, said, np.zeros(len(said.value))).tolist()


def test_a_row_inside_its_interval_needs_no_reason():
    assert of_step(DENSE, 1.1) == [""]


def test_nothing_is_made_up():
    assert of_step(DENSE, 3.0) == of_step(DENSE, 0.3) == [UNEXPLAINED]


def test_what_was_never_compared_is_named():
    moe = {**DENSE, "experts": 8, "expert_ffn": 2048, "cp": 4, "gpu": "b200"}
    (why,) = of_step(moe, 0.2)
    assert why == "out of range: experts, context parallelism, a device known by its data sheet"
    assert out_of_range(DENSE, 1).tolist() == [""]
    assert out_of_range({**DENSE, "gpus": 128.0, "global_batch": 512, "cp": 2}, 1).tolist() == [""]
    assert "deterministic" in out_of_range({**DENSE, "deterministic": 1}, 1)[0]
    long = {**DENSE, "seq_len": 65_536}
    assert "16,384" in out_of_range(long, 1)[0]
    assert out_of_range({**long, "packing": 1, "packed_context": 2048}, 1).tolist() == [""]


def test_software_is_named_that_would_explain_most_rows_of_a_group():
    columns = {**DENSE, "mbs": np.array([1.0, 2.0, 4.0]), "dropout": 0.0}
    plain = {"te": 0.0, "fused_norm": 0.0, "fused_activation": 0.0, "attention": "flash2", "grad_bytes": 4.0}
    said = Training().predict(columns)
    measured = Training().predict({**columns, **plain}).value
    tight = Prediction(value=said.value, error=0.3 * np.abs(np.log(measured / said.value)))
    told = reasons("pretrain", "step_time_s", columns, measured, tight, np.zeros(3))
    assert told.tolist() == ["other software: the time is as if the run used plain PyTorch, gradients in 32 bits"] * 3
    apart = reasons("pretrain", "step_time_s", columns, measured * np.array([1.0, 3.0, 3.0]), tight, np.zeros(3))
    assert UNEXPLAINED in apart.tolist()


def test_memory_and_values_that_are_not_predicted():
    said = Prediction(value=np.array([10.0, np.nan]), error=np.array([0.05, np.nan]))
    values, moe = np.array([20.0, 20.0]), {**DENSE, "experts": 8, "expert_ffn": 2048}
    assert reasons("pretrain", "peak_memory_gib", moe, values, said, np.zeros(2)).tolist() == [UNEXPLAINED, ""]


@pytest.mark.parametrize(
    ("more", "why"),
    [
        ({"rate": 300.0}, "saturated: requests arrive faster than they are answered"),
        ({"rate": 0.5}, UNEXPLAINED),
        ({"rate": 0.5, "framework": "SGLang"}, "other software: the engine is SGLang"),
        ({"rate": 0.5, "gpu": "h200"}, "out of range: kernels or host of another device"),
    ],
)
def test_of_servers(more: dict[str, object], why: str):
    columns = {**SERVED, **LOAD, **more}
    said = ServingSimulator("ttft_mean_ms").predict(columns)
    assert reasons("serve", "ttft_mean_ms", columns, said.value * 50, said, ONE).tolist() == [why]


def test_scores_of_a_table_say_it(tmp_path: Path):
    rows = [
        {"gpu": "A100-SXM4-80GB", "n_gpus": 8, "model": "mpt-7b", "seq_len": 2048, "global_batch": 64, "micro_batch": m}
        | {"tp": tp, "pp": 1, "iteration_time_s": 500.0, "framework": "NeMo"}
        for m in (1, 2)
        for tp in (1, 2)
    ]
    table = tmp_path / "runs.csv"
    with table.open("w", newline="") as file:
        writer = csv.DictWriter(file, rows[0])
        writer.writeheader()
        writer.writerows(rows)
    done = verbs.run("predict", "--against", str(table), AUTOSCOUT_KB=str(tmp_path / "none.duckdb"))
    assert done.returncode == 0, done.stderr
    assert "outside of the analytic model's 90 % interval: 4 of 4 rows" in done.stdout
    assert UNEXPLAINED in done.stdout
