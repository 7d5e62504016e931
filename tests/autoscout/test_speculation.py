"""Speculative decoding in the serving simulator: tokens of a step, what checking and guessing cost, and where a
prediction is refused."""

from pathlib import Path

import numpy as np
import pytest

from autoscout.job.load import read_job
from autoscout.job.requests import Requests
from autoscout.machine.preflight import preflight
from autoscout.simulate.encode import of_job
from autoscout.simulate.serving.engine_run import step_times
from autoscout.simulate.serving.events import simulate
from autoscout.simulate.serving.fluid import fluid
from autoscout.simulate.serving.held_back import EngineLimits
from autoscout.simulate.serving.serving_device import device
from autoscout.simulate.serving.setup import setup
from autoscout.simulate.serving.simulator import ServingSimulator
from autoscout.simulate.serving.speculation import COSTS, expected_tokens, rate_problems
from autoscout.simulate.serving.steps import decode_parts_s, decode_step_s, logits_s
from autoscout.simulate.validation.serving_tables import columns_of_rows
from autoscout.targets.jobs import load_job
from kb.records import AutoscoutError

SHAPE = {"layers": 32, "hidden": 4096, "heads": 32, "kv_heads": 8, "ffn": 14336, "gated": 1, "vocab": 128256, "tp": 1}
LOAD = {"batch": 1, "input_len": 128, "output_len": 256}
NAN = float("nan")


def test_tokens_of_a_step_are_a_geometric_sum():
    assert expected_tokens(np.array([0.5]), np.array([3.0]))[0] == pytest.approx(1 + 0.5 + 0.25 + 0.125)
    assert expected_tokens(np.array([0.8, 0.8]), np.array([0.0, 1.0])).tolist() == pytest.approx([1.0, 1.8])
    assert expected_tokens(np.array([NAN]), np.array([4.0]))[0] == 1.0


def tpot(**more: object) -> np.ndarray:
    return ServingSimulator("tpot_mean_ms").predict({**SHAPE, **LOAD, "gpu": "a100", **more}).value


def test_one_sequence_gains_about_as_many_tokens_as_a_step_yields():
    plain = tpot()[0]
    guessed = tpot(spec="ngram", spec_tokens=3, accepted=0.7)[0]
    gain = float(expected_tokens(np.array([0.7]), np.array([3.0]))[0])
    assert plain / gain < guessed < 1.1 * plain / gain  # four tokens cost little more than one: weights are read once


def test_guesses_that_are_rarely_right_make_full_batches_slower():
    batches = {"batch": 256, "input_len": 64, "output_len": 64}
    assert tpot(**batches, spec="ngram", spec_tokens=8, accepted=0.1)[0] > 1.5 * tpot(**batches)[0]


def test_guessing_by_a_layer_of_the_model_costs_that_layer_and_its_vocabulary():
    spec = {"spec": "eagle", "spec_tokens": 2, "accepted": 0.6}
    e = setup({**SHAPE, **LOAD, **spec}, device("a100"), 1).engine
    free = setup({**SHAPE, **LOAD, **spec, "spec": "ngram"}, device("a100"), 1).engine
    parts, others = (
        decode_parts_s(e, np.ones(1), np.full(1, 200.0)),
        decode_parts_s(free, np.ones(1), np.full(1, 200.0)),
    )
    assert others["guesses"][0] == 0
    layer = (parts["guesses"][0] / 2 - logits_s(e, np.ones(1))[0]) * 32
    assert layer == pytest.approx(others["weights"][0] - logits_s(e, np.full(1, 3.0))[0], rel=0.05)
    assert {name: parts[name][0] for name in others if name != "guesses"} == pytest.approx(
        {name: others[name][0] for name in others if name != "guesses"}
    )


@pytest.mark.parametrize("pp", [1, 2])
def test_tabulated_steps_say_what_the_arrays_say(pp: int):
    spec = {"spec": "eagle3", "spec_tokens": 3, "accepted": 0.6, "pp": pp}
    s = setup({**SHAPE, **LOAD, **spec}, device("a100"), 1)
    times = step_times(s.engine, EngineLimits(kv_tokens=10_000, max_seqs=16, batched_tokens=512), 0)
    for seqs, context in ((2, 100), (8, 900)):
        assert times.pace(seqs, context) == pytest.approx(
            float(decode_step_s(s.engine, np.array([seqs]), np.array([context]))[0])
        )


def test_every_token_is_answered_and_the_cache_is_empty_at_the_end():
    """Steps that yield several tokens, prompts beside them and preemptions: all is accounted for."""
    s = setup({**SHAPE, **LOAD, "spec": "ngram", "spec_tokens": 4, "accepted": 0.8}, device("a100"), 1)
    rng = np.random.default_rng(2)
    inputs, outputs = rng.integers(20, 200, 60), rng.integers(1, 90, 60)
    requests = Requests(np.cumsum(rng.exponential(0.01, 60)), inputs, outputs, 0, 0)
    for room in (700, 100_000):
        limits = EngineLimits(kv_tokens=room, max_seqs=16, batched_tokens=256)
        run = simulate(s.engine, limits, requests)
        assert not np.isnan(run.end_s).any()
        assert run.gap_counts.sum() + run.preemptions == (outputs - 1).sum()  # one computed again ends a prompt
        assert (run.end_s >= run.first_s).all()
    slow = setup({**SHAPE, **LOAD}, device("a100"), 1)
    assert run.end_s.mean() < simulate(slow.engine, limits, requests).end_s.mean()


@pytest.mark.parametrize("load", [{"batch": 16}, {"rate": 4.0}, {"concurrency": 32}])
def test_the_fluid_agrees_with_the_events(load: dict[str, float]):
    columns = {**SHAPE, **LOAD, "batch": 0, **load, "requests": 400, "spec": "ngram", "spec_tokens": 4, "accepted": 0.7}
    average = fluid(setup(columns, device("a100"), 1))["output_tokens_per_s"][0]
    exact = ServingSimulator("output_tokens_per_s").predict({**columns, "gpu": "a100"}).value[0]
    assert average == pytest.approx(exact, rel=0.12)


def test_rows_of_several_methods_and_what_is_refused():
    methods = np.array(["none", "ngram", "eagle", "draft_model", "mtp"])
    columns = {**SHAPE, **LOAD, "gpu": "a100", "spec": methods, "spec_tokens": np.array([NAN, 2, 3, 2, 1])}
    told = {**columns, "accepted": {"ngram": 0.3, "eagle": 0.7, "draft_model": 0.9}}
    said = ServingSimulator("tpot_mean_ms").predict(told)
    assert np.isfinite(said.value).tolist() == [True, True, True, False, False]
    assert said.value[2] < said.value[1] < said.value[0]
    assert said.error[1] > said.error[0]
    assert np.isfinite(ServingSimulator("tpot_mean_ms").predict(columns).value).tolist() == [True] + [False] * 4
    for method in ("ngram", "eagle3"):  # who speculates by EAGLE was asked about n-grams
        alone = {**columns, "spec": np.array([method]), "spec_tokens": np.array([2.0])}
        assert f"launch.accepted = {{ {method} = 0.3 }}" in ServingSimulator("tpot_mean_ms").applies(alone)


def test_a_job_says_it_and_mistakes_are_sentences(tmp_path: Path):
    text = Path("fixtures/jobs/llama-3-8b-serve.toml").read_text()
    assert "[launch]" in text
    job = tmp_path / "job.toml"
    job.write_text(text.replace("[launch]", "[launch]\naccepted = { ngram = 0.4 }"))
    assert of_job(read_job(job))["accepted"] == {"ngram": 0.4}
    job.write_text(text.replace("[launch]", "[launch]\naccepted = { ngrams = 0.4 }"))
    with pytest.raises(AutoscoutError, match=r"launch\.accepted: 'ngrams' is unknown; did you mean 'ngram'"):
        load_job(job)
    assert "between 0 and 1" in next(rate_problems({"ngram": 40.0}))
    assert list(rate_problems(dict.fromkeys(COSTS, 0.5))) == []


def test_tables_say_switches_and_methods_and_0_is_a_value():
    row = {"model": "llama-3-8b", "gpu": "A100-SXM-80GB", "input_len": 100, "output_len": 20, "rate": 2, "tpot_ms": 9}
    off = {"enable_chunked_prefill": 0, "enable_prefix_caching": "False", "async_scheduling": 0, "range_ratio": 0}
    guessed = {"spec": "ngram", "num_speculative_tokens": 2, "acceptance_rate": 0.5, "quantization": "FP8"}
    new = {**row, "framework": "vLLM", "version": "0.14"}
    columns, _ = columns_of_rows([{**new, **dict.fromkeys(off), **dict.fromkeys(guessed)}, {**new, **off, **guessed}])
    s = setup(columns, device("a100"), 2)
    assert s.chunked.tolist() == s.prefix_caching.tolist() == s.engine.overlap.tolist() == [True, False]
    assert s.length_spread.tolist() == [0.1, 0.0]
    assert s.engine.guesses.tolist() == [0, 2]
    assert s.engine.per_step.tolist() == pytest.approx([1, 1.75])
    assert s.engine.weight_bytes.tolist() == [2, 1]


@pytest.mark.parametrize(("ep", "on"), [(1, False), (8, True), ("True", True), ("False", False), (None, False)])
def test_a_degree_of_1_is_no_expert_parallelism(ep: object, on: bool):
    shape = {"layers": 8, "hidden": 1024, "heads": 8, "ffn": 2048, "vocab": 32000, "experts": 8, "topk": 2}
    row = {**shape, "gpu": "H100", "input_len": 100, "output_len": 20, "rate": 2, "tp": 8, "tpot_ms": 9, "ep": ep}
    columns, _ = columns_of_rows([row])
    assert setup(columns, device("h100"), 1).engine.spread.tolist() == [8.0 if on else 1.0]


def test_what_other_columns_may_mean():
    """A column `spec` of a table may describe machines; an acceptance may be in percent."""
    row = {"model": "llama-3-8b", "gpu": "H100", "input_len": 100, "output_len": 20, "rate": 2, "tpot_ms": 9}
    strange = [{**row, "spec": "8 x H100, 2 TB"}, {**row, "spec": "EAGLE", "spec_tokens": 1, "acceptance_rate": 60}]
    columns, _ = columns_of_rows(strange)
    assert columns["spec"].tolist() == ["none", "eagle"]
    assert setup(columns, device("h100"), 2).engine.per_step.tolist() == pytest.approx([1.0, 1.6])


def test_what_nothing_predicts_is_not_ticked(tmp_path: Path):
    text = Path("fixtures/jobs/llama-3-8b-serve.toml").read_text()
    (tmp_path / "job.toml").write_text(text.replace("fix = {", 'fix = { spec = "ngram",'))
    found = preflight(load_job(tmp_path / "job.toml"), tmp_path / "kb.duckdb")
    assert {f.ok for f in found if f.subject == "predicted"} == {None}
