"""Power limits in the simulators: what computes slows down, what waits for memory or links does not."""

import json
from pathlib import Path

import numpy as np
import pytest
import verbs

from autoscout.simulate.hardware.device import shipped
from autoscout.simulate.hardware.power_limit import LEAST, clock, doubt, limited
from autoscout.simulate.joules import COMPUTING, EXCHANGING, WAITING, TrainingEnergy, watts
from autoscout.simulate.serving.simulator import ServingSimulator
from autoscout.simulate.training.memory import Memory
from autoscout.simulate.training.step import Training

DENSE = {"layers": 32, "hidden": 8192, "heads": 64, "seq_len": 4096, "global_batch": 64, "gpus": 8, "tp": 8, "sp": 1}
NAN = float("nan")


def test_the_clock_is_the_square_root_of_the_dynamic_power_that_is_left():
    assert clock(1.0) == 1.0
    assert clock(0.6) == pytest.approx(0.5**0.5)  # half of the dynamic 80 %
    assert clock(1.3) == 1.0
    assert clock(0.2) == clock(0.05) == LEAST
    assert doubt(1.0) == 0.0
    assert doubt(0.6) == pytest.approx(np.log(2) / 4)


def test_a_limited_device_computes_slower_and_draws_less():
    whole = shipped("h100")
    less = limited(whole, 0.6)
    assert less.peak("bf16") == pytest.approx(clock(0.6) * whole.peak("bf16"))
    assert (less.memory_gb_s, less.watts) == (whole.memory_gb_s, 0.6 * whole.watts)
    assert less.doubt == pytest.approx(doubt(0.6))
    assert limited(whole, 1.0) is whole


def test_products_slow_down_and_optimizer_and_links_do_not():
    said = Training().predict({**DENSE, "gpu": "h100", "distopt": 1, "power_cap": np.array([100.0, 60.0])})
    slower = {name: part[1] / part[0] for name, part in said.parts.items() if part[0] > 0}
    assert 0.95 / clock(0.6) < slower["compute"] <= 1 / clock(0.6)
    assert slower["tp"] == pytest.approx(1)
    assert slower["optimizer"] == pytest.approx(1)
    assert said.error[1] > said.error[0]


def test_rows_under_several_limits_are_each_as_if_asked_alone():
    limits = np.array([NAN, 0.0, 100.0, 80.0, 60.0, 80.0])
    together = Training().predict({**DENSE, "gpu": "h100", "power_cap": limits})
    alone = [Training().predict({**DENSE, "gpu": "h100", "power_cap": one}) for one in limits]
    assert together.value.tolist() == pytest.approx([float(one.value[0]) for one in alone])
    assert together.value[0] == together.value[1] == together.value[2] < together.value[3] < together.value[4]


def test_no_memory_depends_on_it():
    held = Memory().predict({**DENSE, "gpu": "h100", "power_cap": np.array([100.0, 60.0])}).value
    assert held[0] == held[1]


def test_fewer_joules_a_token_at_a_longer_step():
    columns = {**DENSE, "gpu": "h100", "power_cap": np.array([100.0, 70.0])}
    step, joules = Training().predict(columns), TrainingEnergy().predict(columns)
    drawn = watts(columns, step)
    assert step.value[1] > step.value[0]
    assert joules.value[1] < joules.value[0]
    assert joules.value == pytest.approx(drawn * step.value / (64 * 4096))
    computing = np.array([COMPUTING, 0.7 * COMPUTING])
    busy = (step.parts["compute"] + step.parts["recompute"] + step.parts["optimizer"]) / step.value
    exchanging = sum(step.parts[part] for part in ("tp", "cp", "ep", "pp", "dp")) / step.value
    moved = np.minimum(EXCHANGING, computing) * exchanging
    assert drawn == pytest.approx(8 * 700 * (computing * busy + moved + WAITING * (1 - busy - exchanging)))


def test_watts_of_a_mixed_cluster_are_those_of_every_device():
    columns = {**DENSE, "tp": 1, "pp": 3, "gpus": 12, "a100": 8, "a40": 4}
    drawn = float(watts(columns, Training().predict(columns))[0])
    most = 8 * shipped("a100").watts + 4 * shipped("a40").watts
    assert WAITING * most < drawn < COMPUTING * most
    assert TrainingEnergy().applies(columns) == ""
    assert "one kind of device" in TrainingEnergy().applies({**DENSE, "gpu": np.array(["a100", "h100"])})


def test_prompts_are_read_slower_and_a_single_sequence_is_written_as_fast():
    shape = {"layers": 80, "hidden": 8192, "heads": 64, "kv_heads": 8, "ffn": 28672, "gated": 1, "vocab": 128256}
    load = {"gpu": "h100", "tp": 8, "batch": 1, "input_len": 8192, "output_len": 64}
    some = {**shape, **load, "power_cap": np.array([100.0, 60.0])}
    first, each = (ServingSimulator(metric).predict(some) for metric in ("ttft_mean_ms", "tpot_mean_ms"))
    assert 0.75 / clock(0.6) < first.value[1] / first.value[0] <= 1 / clock(0.6)
    assert each.value[1] / each.value[0] < 1.02
    assert first.error[1] > first.error[0]


def test_predict_says_what_a_limit_costs_and_spares(tmp_path: Path):
    job = tmp_path / "job.toml"
    job.write_text(Path("fixtures/jobs/llama-3.2-3b.toml").read_text() + '\n[space]\nallow = ["power_cap"]\n')
    nothing = {"AUTOSCOUT_KB": str(tmp_path / "none.duckdb")}
    of = {}
    for limit in (100, 70):
        done = verbs.run("predict", str(job), "a40=0", "tp=2", f"power_cap={limit}", "--json", **nothing)
        assert done.returncode == 0, done.stderr
        of[limit] = json.loads(done.stdout)
    assert of[70]["value"] > of[100]["value"]
    assert of[70]["unpriced"] == []
    assert of[70]["power"]["watts"] < of[100]["power"]["watts"] < 8 * 400
    told = of[70]["power"]
    assert told["low"] < told["joules_per_token"] < min(told["high"], of[100]["power"]["joules_per_token"])


def test_without_samples_a_step_costs_no_known_joules_a_token():
    """A batch that is not stated was divided by, and numpy's warning reached the terminal."""
    with np.errstate(all="raise"):
        none = TrainingEnergy().predict({**DENSE, "gpu": "h100", "global_batch": np.array([0.0, 64.0])}).value
    assert np.isnan(none[0])
    assert none[1] > 0
