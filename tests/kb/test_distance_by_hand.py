"""The distance between jobs and the number of parameters, worked out by hand: what each feature is, how a difference
counts, and what is passed over."""

import math
from pathlib import Path

import msgspec
import pytest
from kb_samples import ended, job, measured, write

from kb import door, similar, store
from kb.connect import writer
from kb.records import Cluster, Job, Latent, Model, Node, Objective, Traffic
from kb.similar import Feature, SimilarJob
from kb.sizes import parameters


def memory_of(node: Node) -> float:
    return node.memory_gib or {"a100": 80.0, "a40": 48.0}.get(node.device, 0.0)


# 2 layers of hidden 8: 2 heads of 4 dimensions, 1 KV head, feed-forward 32.
SMALL = Model(layers=2, hidden=8, heads=2, vocab=10, kv_heads=1)


def test_parameters_by_hand():
    # Attention: queries and outputs 8 × 8 each, keys and values 8 × 4 each: 192. Feed-forward: 2 × 8 × 32 = 512.
    # Embeddings, in and out: 2 × 10 × 8 = 160.
    assert parameters(SMALL) == 2 * (192 + 512) + 160
    assert parameters(msgspec.structs.replace(SMALL, tied=True)) == 2 * (192 + 512) + 80
    assert parameters(msgspec.structs.replace(SMALL, gated=True)) == 2 * (192 + 768) + 160
    # Three experts of 16: 3 × 2 × 8 × 16 = 768, and a router of 8 × 3; gated 1152.
    experts = msgspec.structs.replace(SMALL, experts=3, expert_ffn=16)
    assert parameters(experts) == 2 * (192 + 768 + 24) + 160
    assert parameters(msgspec.structs.replace(experts, gated=True)) == 2 * (192 + 1152 + 24) + 160
    # Four query heads of 2 dimensions said outright: 8 × 2 × (8 + 8) = 256.
    wide = msgspec.structs.replace(SMALL, heads=4, kv_heads=0, head_dim=2)
    assert parameters(wide) == 2 * (256 + 512) + 160


TRAINING = Job(
    name="t",
    target="megatron",
    model=SMALL,
    traffic=Traffic(seq_len=64, global_batch=12),
    cluster=Cluster(nodes=[Node(device="a40", count=2), Node(device="a100", count=4)]),
    objective=Objective(minimize="step_time_s"),
)
TRAINED: dict[str, similar.Number] = {
    "target": "megatron",
    "task": "pretrain",
    "experts": None,
    "moe": "dense",
    "active share": None,
    "attention": "heads",
    "parameters per device": 1568 / 6,
    "devices": 6.0,
    "memory per device": 48.0,
    "device": "a100+a40",
    "layers": 2.0,
    "hidden": 8.0,
    "heads": 2.0,
    "kv_heads": 1.0,
    "vocab": 10.0,
    "dtype": "bf16",
    "metric": "step_time_s",
    "trained": "all",
    "seq_len": 64.0,
    "samples per device": 2.0,
}


def with_(job: Job, **changes: object) -> Job:
    return msgspec.structs.replace(job, **changes)


def test_what_the_distance_looks_at_in_training():
    assert similar.features(TRAINING, memory_of) == TRAINED
    odd = with_(
        TRAINING,
        model=msgspec.structs.replace(SMALL, experts=4, expert_ffn=16, lora={"rank": 4}, frozen_layers=1),
        traffic=Traffic(seq_len=64),
        cluster=Cluster(nodes=[Node(device="a100", count=1, memory_gib=40.0), Node(device="odd", count=1)]),
    )
    # 2 × (192 + 4 × 2 × 8 × 16 + 8 × 4) + 160 parameters on two devices; what nobody knows has no memory. A token meets
    # half of the experts, and the output's embedding.
    differing = {
        "experts": 4.0, "moe": "experts", "active share": 1552 / 2656, "parameters per device": 1328.0,
        "devices": 2.0, "memory per device": 40.0, "device": "a100+odd", "trained": "adapters",
        "samples per device": None,
    }  # fmt: skip
    assert similar.features(odd, memory_of) == TRAINED | differing
    upper = with_(TRAINING, model=msgspec.structs.replace(SMALL, frozen_layers=1))
    assert similar.features(upper, memory_of) == TRAINED | {"trained": "the upper layers"}
    nowhere = similar.features(with_(TRAINING, cluster=Cluster(nodes=[])), memory_of)
    assert (nowhere["devices"], nowhere["samples per device"], nowhere["memory per device"]) == (1.0, 12.0, None)


def test_a_latent_for_all_heads_is_another_attention():
    """Its projections: 8 × (4 + 2) down, 2 heads × (8 × 6 + 4 × 8) up and 2 × 4 × 8 out, 272 for 192."""
    sizes = Latent(kv_lora_rank=4, qk_nope_head_dim=4, qk_rope_head_dim=2, v_head_dim=4)
    latent = with_(TRAINING, model=msgspec.structs.replace(SMALL, kv_heads=0, latent=sizes))
    differing = {"attention": "latent", "kv_heads": None, "parameters per device": (1568 + 2 * 80) / 6}
    assert similar.features(latent, memory_of) == TRAINED | differing
    found = {f.name: f.distance for f in similar.compare(similar.features(latent, memory_of), TRAINED)}
    assert found == {"attention": 0.5, "parameters per device": pytest.approx(0.5 * math.log2(1728 / 1568))}


def test_shared_experts_and_first_layers_count_by_what_a_token_meets():
    """Layers of 192 for attention: one with a block of 512, one with 4 of 256, a router of 32 and 128 shared."""
    experts = msgspec.structs.replace(SMALL, experts=4, topk=1, expert_ffn=16)
    whole = msgspec.structs.replace(experts, shared_ffn=8, dense_layers=1)
    found = [similar.features(with_(TRAINING, model=m), memory_of)["active share"] for m in (experts, whole)]
    assert found == [
        (2 * (192 + 256 + 32) + 80) / (2 * (192 + 1024 + 32) + 160),
        (2 * 192 + 512 + 256 + 32 + 128 + 80) / (2 * 192 + 512 + 1024 + 32 + 128 + 160),
    ]


def test_what_the_distance_looks_at_in_serving():
    def served(**traffic: object) -> dict[str, similar.Number]:
        found = similar.features(with_(TRAINING, task="serve", traffic=Traffic(**traffic)), memory_of)  # type: ignore[arg-type]
        assert not {"trained", "seq_len", "samples per device"} & found.keys()
        return {name: value for name, value in found.items() if name not in TRAINED}

    assert served(rate=3.0, concurrency=9, input_len=[10, 30], output_len=7, shared_prefix=5) == {
        "load": "rate", "load per device": 0.5, "input_len": 20.0, "output_len": 7.0, "shared_prefix": 5.0,
    }  # fmt: skip
    assert served(concurrency=12, input_len=0, output_len=[0]) == {
        "load": "concurrency", "load per device": 2.0, "input_len": None, "output_len": None, "shared_prefix": 0.0,
    }  # fmt: skip
    assert served(trace="a.csv", output_len=[]) == {
        "load": "trace", "load per device": None, "input_len": None, "output_len": None, "shared_prefix": 0.0,
    }  # fmt: skip


# What twice as much, or another one, costs: the weights of the page docs/knowledge-base.md argues for.
TWICE = {
    "experts": 0.3, "active share": 0.3, "parameters per device": 0.5, "devices": 0.5, "memory per device": 0.5,
    "layers": 0.15, "hidden": 0.15, "heads": 0.15, "kv_heads": 0.1, "vocab": 0.05, "seq_len": 0.25,
    "samples per device": 0.25, "load per device": 0.3, "input_len": 0.25, "output_len": 0.25, "shared_prefix": 0.3,
}  # fmt: skip
OTHER = {
    "target": 3.0, "task": 1.0, "trained": 1.0, "moe": 2.0, "attention": 0.5, "device": 0.5, "dtype": 0.3, "load": 0.5,
    "metric": 0.3,
}  # fmt: skip


def apart(name: str, here: similar.Number, there: similar.Number) -> float:
    return sum(f.distance for f in similar.compare({name: here}, {name: there}))


@pytest.mark.parametrize(("name", "weight"), TWICE.items())
def test_numbers_count_by_doublings_four_at_most(name: str, weight: float):
    assert apart(name, 4.0, 8.0) == pytest.approx(weight)
    assert apart(name, 8.0, 1.0) == pytest.approx(3 * weight)
    assert apart(name, 1.0, 16.0) == apart(name, 1.0, 1000.0) == pytest.approx(4 * weight)
    # One more of both where one of them is none: 0 and 1 are a doubling apart, 3 and 0 two of them.
    assert apart(name, 0.0, 1.0) == pytest.approx(weight)
    assert apart(name, 3.0, 0.0) == pytest.approx(2 * weight)
    assert apart(name, 4.0, 4.0) == 0


@pytest.mark.parametrize(("name", "weight"), OTHER.items())
def test_what_is_one_or_the_other_counts_whole(name: str, weight: float):
    assert apart(name, "a", "b") == weight
    assert apart(name, "a", "a") == 0


def test_every_weight_is_one_of_these():
    assert {*TWICE, *OTHER, "versions"} == similar.WEIGHTS.keys()


def test_what_only_one_side_has_counts_unless_another_feature_says_so():
    silent = {
        "experts",
        "active share",
        "kv_heads",
        "load per device",
        "memory per device",
        "samples per device",
        "input_len",
        "output_len",
    }
    for name in TWICE:
        assert apart(name, 4.0, None) == apart(name, None, 4.0) == (0 if name in silent else TWICE[name])
    assert apart("layers", 1.0, "x") == 0.15


def test_the_features_that_differ_come_with_the_largest_first():
    here: dict[str, similar.Number] = {"layers": 2.0, "target": "a", "devices": 8.0, "load": "rate"}
    there: dict[str, similar.Number] = {"layers": 4.0, "target": "b", "devices": 8.0, "vocab": 5.0}
    found = [(f.name, f.here, f.there, f.distance) for f in similar.compare(here, there)]
    assert found == [
        ("target", "a", "b", 3.0),
        ("load", "rate", None, 0.5),
        ("layers", 2.0, 4.0, 0.15),
        ("vocab", None, 5.0, 0.05),
    ]


def versions(here: dict[str, str] | None, there: dict[str, str]) -> tuple[object, ...] | None:
    found = similar._versions(here, there)
    return found and (found.here, found.there, round(found.distance, 9))


def test_other_versions_as_far_as_both_know_them():
    assert versions(None, {"torch": "2"}) is None
    assert versions({}, {"torch": "2"}) is None
    assert versions({"torch": "2"}, {"torch": "2", "cuda": "12"}) is None
    assert versions({"torch": "2", "launcher": "a"}, {"torch": "2", "launcher": "b"}) is None
    assert versions({"torch": "2"}, {}) == ("known", "unknown", 0.2)
    assert versions({"torch": "2"}, {"cuda": "12"}) == ("known", "unknown", 0.2)
    assert versions({"torch": "3", "cuda": "13"}, {"torch": "2", "cuda": "12"}) == (
        "cuda 13, torch 3", "cuda 12, torch 2", 0.4,
    )  # fmt: skip
    four = dict.fromkeys("abcd", "1")
    assert versions(four, dict.fromkeys("abcd", "2")) == ("a 1, b 1, c 1, d 1", "a 2, b 2, c 2, d 2", 0.6)


@pytest.fixture(scope="module")
def many(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The job itself in two sessions, and the same with sequences twice and four times as long; one without a run."""
    kb = tmp_path_factory.mktemp("many") / "kb.duckdb"
    for session, seq_len, runs in (("b", 8, 1), ("a", 8, 2), ("twice", 16, 1), ("four", 32, 1), ("none", 64, 0)):
        events = [ended(measured(1.0 + i, tp=i, of=session)) for i in range(runs)]
        write(kb, session, *events, of=job("same" if seq_len == 8 else session, seq_len=seq_len))
    failed = measured(None, tp=9)
    write(kb, "failed", ended(failed), of=job("failed", seq_len=128), at=1.0)
    store.ingest_all(kb)
    return kb


def found(kb: Path, count: int = 5, **asked: object) -> list[tuple[str, float, list[str], int, int]]:
    near = similar.similar(kb, job(), memory_of, count=count, **asked)  # type: ignore[arg-type]
    return [(a.job.name, round(a.distance, 9), a.sessions, a.measurements, a.ok) for a in near]


def test_the_nearest_first_with_what_was_measured(many: Path):
    # Twice as long: a quarter; four times: a half; sixteen times: one.
    assert found(many) == [
        ("same", 0.0, ["a", "b"], 3, 3),
        ("twice", 0.25, ["twice"], 1, 1),
        ("four", 0.5, ["four"], 1, 1),
        ("failed", 1.0, ["failed"], 1, 0),
    ]
    assert [row[0] for row in found(many, count=2)] == ["same", "twice"]
    assert found(many, up_to=0) == []
    # An environment of which the past says nothing is a version apart.
    assert [row[1] for row in found(many, environment={"torch": "2"})] == [0.2, 0.45, 0.7, 1.2]


def test_the_features_of_a_past_job_are_the_largest_first(many: Path):
    [_, twice, *_] = similar.similar(many, job(), memory_of, environment={"torch": "2"})
    assert [(f.name, f.distance) for f in twice.features] == [("seq_len", 0.25), ("versions", 0.2)]
    assert isinstance(twice, SimilarJob)
    assert isinstance(twice.features[0], Feature)
    assert twice.features[0].why == "determines activation memory and the cost of attention"
    assert twice.context == "here"
    assert twice.environment == {}


def test_more_are_counted_than_are_asked_for(tmp_path: Path):
    """Four times as many: three nearer ones without a measurement do not hide the one that has some; four do."""
    kb = tmp_path / "kb.duckdb"
    runs = [measured(1.0, tp=1, of=i) for i in range(5)]
    for i, run in enumerate(runs):
        write(kb, f"s{i}", ended(run), of=job(f"j{i}", seq_len=8 + i))
    store.ingest_all(kb)
    for only, names in ((3, ["j3"]), (4, [])):
        with writer(kb) as con:
            con.execute("UPDATE measurement SET status = if(id = ?, 'ok', 'infrastructure')", [int(runs[only].id, 16)])
        assert [row[0] for row in found(kb, count=1)] == names


def test_two_alike_are_in_the_order_of_their_sessions_then_names(tmp_path: Path):
    kb = tmp_path / "kb.duckdb"
    for session, name, context in (("s1", "b", "x"), ("s2", "a", "y"), ("s3", "c", "z"), ("s4", "c", "z")):
        run = msgspec.structs.replace(measured(1.0, tp=1, of=session), context=context)
        write(kb, session, ended(run), of=job(name))
    store.ingest_all(kb)
    assert [row[0] for row in found(kb)] == ["c", "a", "b"]


def test_a_job_that_cannot_be_read_is_said(many: Path, tmp_path: Path):
    notes: list[str] = []
    kb = tmp_path / "kb.duckdb"
    write(kb, "s", ended(measured(1.0, tp=1)))
    store.ingest_all(kb)
    with writer(kb) as con:
        con.execute("UPDATE session SET job = '[]'")
    assert similar.similar(kb, job(), memory_of, on_note=notes.append) == []
    assert len(notes) == 1
    assert notes[0].startswith("s is ignored: a job cannot be read (")
    assert similar.similar(kb, job(), memory_of) == []  # and nobody has to listen
    with pytest.raises(door.Refused):
        door.job("[]")
