"""The distance between jobs is argued: it must order them as an engineer would, and say why."""

from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from kb_samples import ended, job, measured, write

from kb import outcomes, similar, store
from kb.records import Cluster, Job, Model, Node, Objective, Traffic

LLAMA = Job(
    name="llama",
    target="megatron",
    model=Model(layers=32, hidden=4096, heads=32, vocab=32000),
    traffic=Traffic(seq_len=2048, global_batch=512),
    cluster=Cluster(nodes=[Node(device="a100", count=16)]),
    objective=Objective(minimize="step_time_s"),
)


def memory_of(node: Node) -> float:
    return {"a100": 80.0, "a40": 48.0, "cpu": 1.0}.get(node.device, 0.0)


def changed(**changes: object) -> Job:
    """LLAMA with other values of its model, traffic or cluster."""
    model = {k: v for k, v in changes.items() if k in Model.__struct_fields__}
    traffic = {k: v for k, v in changes.items() if k in Traffic.__struct_fields__}
    others = {k: v for k, v in changes.items() if k not in model and k not in traffic}
    return msgspec.structs.replace(
        LLAMA,
        **{
            "model": msgspec.structs.replace(LLAMA.model, **model),
            "traffic": msgspec.structs.replace(LLAMA.traffic, **traffic),
            **others,
        },
    )


def on(device: str, count: int) -> Cluster:
    return Cluster(nodes=[Node(device=device, count=count)])


def distance(a: Job, b: Job) -> float:
    there = similar.features(b, memory_of)
    return sum(f.distance for f in similar.compare(similar.features(a, memory_of), there))


def test_the_same_job_is_at_no_distance():
    assert distance(LLAMA, changed(name="other")) == 0


def test_what_decides_the_layout_counts_more():
    longer = changed(seq_len=4096)
    half = changed(cluster=on("a100", 8))
    deeper = changed(layers=40)
    experts = changed(experts=8, bias=False)
    other_gpu = changed(cluster=on("a40", 16))
    assert distance(LLAMA, deeper) < distance(LLAMA, longer) + 0.2
    assert distance(LLAMA, longer) < distance(LLAMA, half) < distance(LLAMA, experts)
    assert distance(LLAMA, other_gpu) < distance(LLAMA, experts)
    assert distance(LLAMA, changed(target="deepspeed")) > 2.9


def test_every_difference_is_explained():
    there = similar.features(changed(layers=64, cluster=on("a40", 32)), memory_of)
    found = {f.name: f for f in similar.compare(similar.features(LLAMA, memory_of), there)}
    assert (found["devices"].here, found["devices"].there, found["devices"].distance) == (16.0, 32.0, 0.5)
    assert found["device"].here == "a100"
    assert all(f.why for f in found.values())
    assert "hidden" not in found


sizes = st.builds(
    changed,
    layers=st.sampled_from([8, 24, 48, 96]),
    hidden=st.sampled_from([1024, 4096, 8192]),
    experts=st.sampled_from([0, 8, 64]),
    seq_len=st.sampled_from([512, 2048, 32768]),
    cluster=st.builds(on, st.sampled_from(["a100", "a40", "unheard-of"]), st.sampled_from([1, 8, 64])),
)


@given(sizes, sizes)
def test_distances_are_symmetric_and_never_negative(a: Job, b: Job):
    assert distance(a, b) == pytest.approx(distance(b, a))
    assert distance(a, b) >= 0
    assert distance(a, a) == 0


@pytest.fixture
def kb(tmp_path: Path) -> Path:
    """LLAMA on 8 and on 16 devices, an unlike job, one with no measurements, one that serves."""
    kb = tmp_path / "kb.duckdb"
    three = [ended(measured(1.0 + i, tp=2**i)) for i in range(3)]
    write(kb, "near", *three, ended(measured(None, tp=8)), of=changed(cluster=on("a100", 8)), at=1.0)
    write(kb, "same", ended(measured(5.0, tp=1, pp=2)), of=LLAMA, at=2.0)
    write(kb, "unlike", ended(measured(6.0, tp=1, pp=4)), of=job("tiny"), at=3.0)
    write(kb, "empty", of=changed(seq_len=1024), at=4.0)
    serving = changed(task="serve", target="vllm", rate=4.0, input_len=100, output_len=10)
    write(kb, "serving", ended(measured(7.0, tp=1, pp=8)), of=serving, at=5.0)
    store.ingest_all(kb)
    return kb


def test_the_nearest_jobs_with_measurements_first(kb: Path):
    found = similar.similar(kb, LLAMA, memory_of)
    assert [(a.job.name, a.cluster, a.measurements, a.ok) for a in found] == [
        ("llama", "16×a100", 1, 1),
        ("llama", "8×a100", 4, 3),
        ("tiny", "4×cpu", 1, 1),
    ]
    assert [a.sessions for a in found] == [["same"], ["near"], ["unlike"]]
    assert found[0].distance == 0 < found[1].distance < similar.FAR < found[2].distance
    assert found[1].features[0].name in ("devices", "parameters per device")
    mark = store.mark(kb)
    assert len(similar.similar(kb, LLAMA, memory_of, up_to=mark)) == 3
    assert similar.similar(kb, LLAMA, memory_of, up_to=0) == []


def test_other_versions_are_a_little_away(kb: Path):
    versions = msgspec.structs.replace(measured(5.5, tp=1, pp=16), environment={"torch": "2.12", "worker": "x"})
    store.ingest(kb, write(kb, "old", ended(versions), of=changed(cluster=on("a100", 2)), at=6.0))
    here = {"torch": "2.13", "worker": "x"}
    [old] = [a for a in similar.similar(kb, changed(cluster=on("a100", 2)), memory_of, here) if a.cluster == "2×a100"]
    [feature] = old.features
    assert (feature.name, feature.here, feature.there) == ("versions", "torch 2.13", "torch 2.12")
    assert old.distance == pytest.approx(0.2)


def test_outcomes_are_one_row_a_configuration(tmp_path: Path):
    kb = tmp_path / "kb.duckdb"
    wrong = msgspec.structs.replace(measured(0.1, 9.0, tp=4), status="wrong")
    odd = msgspec.structs.replace(measured(4.0, tp=16), metrics={"step_time_s": 4.0, "odd": 0.5})
    events = [measured(3.0, 1.0, tp=1), measured(1.0, 2.0, tp=1), measured(None, tp=2), measured(2.0, tp=4), wrong, odd]
    store.ingest(kb, write(kb, "s", *map(ended, events)))
    found = outcomes.outcomes(kb, job().id, ["step_time_s", "odd"])
    assert [(o.knobs["tp"], o.status, o.metrics, o.runs) for o in found] == [
        (1, "ok", {"step_time_s": 2.0}, 2),
        (2, "oom", {}, 1),
        (4, "wrong", {}, 2),
        (16, "ok", {"step_time_s": 4.0, "odd": 0.5}, 1),
    ]
    assert [o.knobs["tp"] for o in outcomes.outcomes(kb, job().id, ["step_time_s"], most=2)][:1] == [1]
    assert outcomes.outcomes(kb, job().id, ["step_time_s"], contexts=["elsewhere"]) == []
