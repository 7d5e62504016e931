"""Rows that are alike in what decides are priced once: no row may notice that others were asked with it."""

import time
from collections.abc import ItemsView, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from autoscout.simulate.combinations import Combinations
from autoscout.simulate.encode import of_job, take
from autoscout.simulate.serving.fluid import fluid
from autoscout.simulate.serving.serving_device import device
from autoscout.simulate.serving.setup import columns_of_job, setup
from autoscout.simulate.serving.simulator import EXACT_BATCHES, ServingSimulator
from autoscout.simulate.training import fleet, inputs
from autoscout.simulate.training.memory import Memory
from autoscout.simulate.training.priced import priced
from autoscout.simulate.training.step import Training
from autoscout.targets.jobs import JobSpace, load_job

FIXTURES = Path(__file__).parents[2] / "fixtures"
ROWS = 40


def columns_of(name: str, software: str) -> dict[str, Any]:
    """Rows of a space that differ in every knob, and in what a table may say besides."""
    space = JobSpace.of_job(load_job(FIXTURES / f"{name}.toml"))
    rng = np.random.default_rng(0)
    columns = {**of_job(space.job), **space.columns(space.sample_many(ROWS, rng))}
    n = len(columns["tp"])
    more = {"zero": [0, 1, 3], "zero_group": [np.nan, 2], "dropout": [0, 1], "tied": [0, 1], "fused_norm": [np.nan, 0]}
    drawn = {column: rng.choice(np.array(values, dtype=float), n) for column, values in more.items()}
    return {**columns, **drawn, "software": np.where(rng.random(n) < 0.5, software, "")}


@pytest.mark.parametrize("software", ["", "unknown"])
@pytest.mark.parametrize("name", ["jobs/llama-3.2-3b", "large/qwen3-30b-a3b-64-h100", "jobs/tiny-moe-cpu"])
def test_rows_are_predicted_together_as_each_is_alone(name: str, software: str):
    columns = columns_of(name, software)
    together, needed, dies = Training().predict(columns), Memory().predict(columns), Memory().oom_probability(columns)
    for i in range(0, len(together.value), 3):
        one = take(columns, slice(i, i + 1))
        alone = Training().predict(one)
        assert together.value[i] == pytest.approx(alone.value[0], rel=1e-9)
        assert together.error[i] == pytest.approx(alone.error[0], rel=1e-9)
        for part, seconds in alone.parts.items():
            assert together.parts[part][i] == pytest.approx(seconds[0], rel=1e-9, abs=1e-12)
        gib = Memory().predict(one)
        assert needed.value[i] == pytest.approx(gib.value[0], rel=1e-9)
        assert needed.error[i] == pytest.approx(gib.error[0], rel=1e-9)
        assert dies[i] == pytest.approx(Memory().oom_probability(one)[0], rel=1e-9, nan_ok=True)


SERVED = {
    "open": {"rate": [2.0, 20.0], "input_len": [800.0], "output_len": [1.0, 200.0]},
    "closed": {"concurrency": [1.0, 64.0], "input_len": [300.0], "output_len": [100.0], "shared_prefix": [0.0, 100.0]},
    "batches": {"batch": [1.0, 48.0], "input_len": [512.0], "output_len": [128.0]},
}
MIXTURE = {"experts": 64.0, "topk": 8.0, "expert_ffn": 1024.0, "dense_layers": 1.0}


# 3 s each: in `make test` a load is predicted with experts or without, in `make test-all` both ways.
ALONE = [
    pytest.param(model, load, id=f"{name}-{load}", marks=[pytest.mark.thorough] if name == skipped else [])
    for name, model in (("dense", {}), ("mixture", MIXTURE))
    for load, skipped in zip(SERVED, ("dense", "mixture", "mixture"), strict=True)
]


@pytest.mark.parametrize(("model", "load"), ALONE)
def test_servers_are_predicted_together_as_each_is_alone(model: dict[str, float], load: str):
    """So many that all are of the fluid model; every configuration comes several times."""
    space, rng = JobSpace.of_job(load_job(FIXTURES / "jobs/llama-3-8b-serve.toml")), np.random.default_rng(0)
    knobs = space.columns(space.sample_many(ROWS, rng))
    of = rng.integers(len(knobs["tp"]), size=EXACT_BATCHES + 1)
    columns = {**of_job(space.job), **columns_of_job(space.job), **take(knobs, of), **model, "accepted": {"ngram": 0.3}}
    columns |= {"framework": rng.choice(["vLLM", "SGLang", "TensorRT-LLM"], len(of)), "gpu": "a100"}
    del columns["traffic"]
    columns |= {name: rng.choice(values, len(of)) for name, values in SERVED[load].items()}
    metric = "e2el_mean_ms"
    together = ServingSimulator(metric).predict(columns)
    said = np.flatnonzero(np.isfinite(together.value))
    assert len(said) > 1000
    for i in said[::150].tolist():
        one = take(columns, slice(i, i + 1))
        alone = fluid(setup(one, device("a100"), 1))
        assert together.value[i] == pytest.approx(alone[metric][0], rel=1e-9)
        for part, milliseconds in together.parts.items():
            assert milliseconds[i] == pytest.approx(alone.get(f"part:{part}", np.zeros(1))[0] * 1e3, rel=1e-9)


def test_a_million_servers_are_priced_by_what_differs():
    """Ten times the rows of a space that has few configurations take hardly longer."""
    space = JobSpace.of_job(load_job(FIXTURES / "jobs/llama-3-8b-serve.toml"))
    few = space.columns(space.sample_many(20_000, np.random.default_rng(0)))
    shared = {**of_job(space.job), **columns_of_job(space.job), "gpu": "a100"}
    many = {name: np.tile(values, 10) for name, values in few.items()}
    member, spent = ServingSimulator("e2el_mean_ms"), list[float]()
    for columns in (few, few, many):
        begun = time.process_time()
        member.predict({**shared, **columns})
        spent.append(time.process_time() - begun)
    assert spent[2] < 5 * spent[1]


class Asked(Mapping[str, Any]):
    """Columns that remember which of them were asked for."""

    def __init__(self, columns: Mapping[str, Any]) -> None:
        self.columns, self.names = columns, set[str]()

    def __getitem__(self, name: str) -> Any:
        self.names.add(name)
        return self.columns[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self.columns)

    def __len__(self) -> int:
        return len(self.columns)

    def items(self) -> ItemsView[str, Any]:  # whoever goes through all of them counts rows
        return self.columns.items()


def test_no_column_decides_that_is_not_listed():
    columns = columns_of("jobs/llama-3.2-3b", "unknown") | {"dtype_bytes": 2, "params": 3e9, "gated": 1.0}
    asked = Asked(columns)
    x = inputs.complete(asked)
    list(fleet.fleets(asked, x.n, ""))
    assert {"tp", "a40_layers", "params"} <= asked.names
    assert asked.names <= set(fleet.read(columns))


def test_what_no_profile_changes_is_priced_once_for_all_of_them():
    columns = columns_of("large/qwen3-30b-a3b-64-h100", "unknown") | {"software": "unknown", "te": np.nan}
    asked: list[inputs.Inputs] = []

    def price(x: inputs.Inputs, _: fleet.Fleet) -> dict[str, Any]:
        asked.append(x)
        return {"tp": x.tp, "te": x.te}

    found = priced(Combinations(columns, fleet.read(columns)), (), "", {"tp": (), "te": ()}, price)
    profiles, m = len(found.software), int(found.of.max()) + 1
    assert [(x.n, x.tp.shape, x.te.shape) for x in asked] == [(m, (m,), (profiles, 1))]
    assert found.at("tp", slice(None)).tolist() == [columns["tp"].tolist()] * profiles
    assert [len(set(each)) for each in found.values["te"].tolist()] == [1] * profiles


def test_combinations_are_those_of_the_rows():
    columns = {
        "tp": np.array([1, 2, 1, 2, 8, 1]),
        "sp": np.array([False, True, False, True, True, False]),
        "ar": np.array(["full", "none", "full", "none", "none", "selective"]),
        "ar_layers": np.array([np.nan, 1.5, np.nan, 1.5, 70000.25, np.nan]),
        "hidden": 4096,
    }
    few, of = Combinations(columns, columns).of()
    assert len(few["tp"]) == 4
    assert few["hidden"] == 4096
    for name in ("tp", "sp", "ar"):
        assert few[name][of].tolist() == columns[name].tolist()
    np.testing.assert_array_equal(few["ar_layers"][of], columns["ar_layers"])
    few, of = Combinations(columns, columns).of({"ar", "ar_layers"})
    assert len(few["tp"]) == 3
    assert few["tp"][of].tolist() == columns["tp"].tolist()


def test_many_values_are_told_apart():
    rng = np.random.default_rng(1)
    columns = {"a": rng.random(500), "b": rng.integers(0, 10**9, 500), "c": rng.integers(0, 4000, 500).astype(float)}
    columns = {name: np.concatenate([values, values]) for name, values in columns.items()}
    few, of = Combinations(columns, columns).of()
    assert len(few["a"]) == 500
    for name, values in columns.items():
        assert few[name][of].tolist() == values.tolist()


def test_one_row_and_no_varying_column():
    assert Combinations({"tp": 2, "ar": "full"}, ("tp", "ar", "pp")).of()[1].tolist() == [0]
    few, of = Combinations({"tp": np.full(3, 2), "pp": 1}, ("tp", "pp")).of()
    assert few["tp"].tolist() == [2]
    assert of.tolist() == [0, 0, 0]
