"""Ids are for ever: what is stored and shared is found again by them, whatever fields records get later."""

import math

import msgspec
import pytest

from kb.records import Cluster, Configuration, Job, Measurement, Model, Objective, Traffic, job_id

MEASUREMENT = Measurement(
    configuration=Configuration({"tp": 2, "pp": 1, "sp": True, "ar": "full"}),
    name="tp2_pp1",
    context="c",
    status="ok",
    metrics={"step_time_s": 0.5, "odd": 1 / 3},
    iterations_s=[0.5, 0.51],
    losses=[9.5, math.nan],
    grad_norms=[1.5],
    rank_memory_gib=[1.0, 2.0],
    cost_s=3.25,
    device_s=6.5,
    environment={"torch": "2.13.0", "device": "ä"},
    at=1795187022.5,
)
MODEL = Model(layers=2, hidden=8, heads=2, vocab=32)
TRAINING = Traffic(seq_len=8, global_batch=8)


def job(model: Model, traffic: Traffic, task: str = "pretrain", target: str = "megatron") -> Job:
    return Job(
        name="n",
        target=target,
        task=task,  # type: ignore[arg-type]
        model=model,
        traffic=traffic,
        cluster=Cluster(nodes=[]),
        objective=Objective(minimize="step_time_s"),
    )


LLAMA = Model(
    layers=32,
    hidden=4096,
    heads=32,
    vocab=128256,
    kv_heads=8,
    ffn=14336,
    gated=True,
    norm="rmsnorm",
    bias=False,
    position="rope",
    preset="llama-3-8b",
)
EXPERTS = Model(layers=48, hidden=2048, heads=32, vocab=151936, experts=128, topk=8, expert_ffn=768, dtype="fp32")


@pytest.mark.parametrize(
    ("measurement", "id"),
    [
        (MEASUREMENT, "fb4ccce7cc064517"),
        (
            Measurement(
                configuration=Configuration({"tp": 4}),
                name="tp4",
                context="",
                status="oom",
                evidence='rank 1 "out" of memory\n',
            ),
            "886b0f92d97903cb",
        ),
        (
            Measurement(
                configuration=Configuration({}),
                name="",
                context="x",
                status="ok",
                fidelity="predicted",
                metrics={"b": 1.0, "a": 2.0},
            ),
            "6fdffc0140c1619f",
        ),
    ],
)
def test_measurements_have_the_ids_that_records_1_gave_them(measurement: Measurement, id: str):
    assert measurement.id == id


@pytest.mark.parametrize(
    ("of", "id"),
    [
        (job(MODEL, TRAINING), "d9e0eeeb01bb03bb"),
        (
            job(LLAMA, Traffic(rate=4.0, input_len=[10, 200], output_len=128, shared_prefix=16), "serve", "vllm"),
            "cbf599ee35e06ce4",
        ),
        (job(EXPERTS, Traffic(seq_len=4096, global_batch=256), "finetune", "deepspeed"), "20bd1735cd95a84f"),
        (
            job(MODEL, msgspec.json.decode(b'{"rate":0.0,"concurrency":3,"trace":"/a.csv"}', type=Traffic)),
            "ff605dede4352340",
        ),
    ],
)
def test_jobs_have_the_ids_that_records_1_gave_them(of: Job, id: str):
    assert of.id == id


@pytest.mark.parametrize(
    "said",
    [
        {"period": "gpu-07 boot 3"},
        {"per_rank": {"power_w": [300.0, 310.0]}},
        {"rank_devices": ["gpu-07:cpu:0", "gpu-07:cpu:1"]},
        {"conditions": {"steal_share": 0.25}},
        {"fidelity": "short"},
    ],
)
def test_a_field_that_came_later_counts_where_it_says_something(said: dict):
    plain = msgspec.structs.replace(MEASUREMENT, losses=[9.5])
    other = msgspec.structs.replace(plain, **said)
    assert other.id != plain.id
    assert msgspec.json.decode(msgspec.json.encode(other), type=Measurement).id == other.id
    [name] = said
    assert msgspec.structs.replace(other, **{name: getattr(plain, name)}).id == plain.id


class TomorrowsModel(Model, frozen=True):
    window: int = 0
    anchors: list[int] = []
    causal: bool = True
    later = (*Model.later, "window", "anchors", "causal")


class TomorrowsTraffic(Traffic, frozen=True, omit_defaults=True):
    think_s: float = 0.0
    later = (*Traffic.later, "think_s")


def test_models_and_traffic_may_get_fields_too():
    today = job_id("pretrain", "megatron", MODEL, TRAINING)
    model = msgspec.convert(msgspec.to_builtins(MODEL), TomorrowsModel)
    # A float that was written down is another object than the default, though the same number.
    traffic = msgspec.json.decode(b'{"seq_len":8,"global_batch":8,"think_s":0.0}', type=TomorrowsTraffic)
    assert job_id("pretrain", "megatron", model, traffic) == today
    changed = [
        job_id("pretrain", "megatron", msgspec.structs.replace(model, **{name: value}), traffic)
        for name, value in {"window": 4096, "anchors": [0], "causal": False}.items()
    ]
    changed.append(job_id("pretrain", "megatron", model, msgspec.structs.replace(traffic, think_s=1.5)))
    assert len({today, *changed}) == 5
