"""What earlier jobs hand to a new one: projected, checked, switchable, and worth something or not."""

from pathlib import Path

import msgspec
import pytest

from autoscout.space.graph import Space
from autoscout.targets.jobs import JobSpace, load_job
from autoscout.tuning import session
from autoscout.tuning import warm_start as warm
from autoscout.tuning.loop import Stop
from autoscout.tuning.warm_start import WarmStartChoice, gather
from autoscout.tuning.worth import worth
from kb import journal, query, store
from kb.journal import Answered, ExperimentEnded, SessionStarted, WarmStarted
from kb.records import AutoscoutError, Cluster, Configuration, Job, Measurement, Node, Value

JOB = load_job("fixtures/jobs/tiny-gpt-cpu.toml")
SPACE = JobSpace.of_job(JOB)
RECORDED = Path("fixtures/recorded/smallest-cpu.jsonl").resolve()


def with_nodes(job: Job, **nodes: object) -> Job:
    return msgspec.structs.replace(job, cluster=Cluster(nodes=[Node(**{"device": "cpu", "count": 4, **nodes})]))


def longer(job: Job, seq_len: int = 256) -> Job:
    return msgspec.structs.replace(job, name="longer", traffic=msgspec.structs.replace(job.traffic, seq_len=seq_len))


def measured(
    configuration: Configuration, seconds: float | None, context: str = "there", **changes: object
) -> Measurement:
    m = Measurement(
        configuration=configuration,
        name=SPACE.name(configuration),
        context=context,
        status="oom" if seconds is None else "ok",
        metrics={} if seconds is None else {"step_time_s": seconds},
        environment={"torch": "2.12"},
    )
    return msgspec.structs.replace(m, **changes)


def remember(kb: Path, name: str, job: Job, *events: journal.Event, at: float = 1.0) -> None:
    path = store.sessions_folder(kb) / name / "journal.jsonl"
    log = journal.Journal(path)
    started = SessionStarted(
        at=at,
        session=name,
        job=job,
        context="there",
        strategy="autoscout",
        seed=0,
        fidelity="profile",
        warm_start="off",
        hyper={},
        environment={},
        kb_mark=0,
        default=Configuration({}),
        orderings=[],
    )
    log.append(started, *events)
    log.close()
    store.ingest(kb, path)


def ended(*measurements: Measurement) -> list[journal.Event]:
    return [ExperimentEnded(number=i, purpose="search", measurement=m) for i, m in enumerate(measurements, 1)]


@pytest.fixture
def kb(tmp_path: Path) -> Path:
    return tmp_path / "kb.duckdb"


def some(count: int, of: Space = SPACE) -> list[Configuration]:
    """Evenly over the space."""
    return [of.feasible.configuration(i * len(of.feasible) // count) for i in range(count)]


RANKED = journal.TournamentRanked(round=0, orderings=[["tp", "pp", "nonsense"], ["mbs"]], rewards=[0.9, 0.1], kept=[0])


def test_the_best_of_a_similar_job_come_over_in_order_with_orderings_and_failures(kb):
    there = some(12)
    costs = [3.0, 1.0, 2.0, None, *[5.0 + i for i in range(8)]]
    remember(kb, "s", longer(JOB), *ended(*(measured(c, x) for c, x in zip(there, costs, strict=True))), RANKED)
    carried = gather(kb, JOB, SPACE)
    [past] = carried.past
    assert past.rows[0] == (there[1], 1.0)
    assert [c for _, c in past.rows][-1] is None
    assert len(past.rows) == 12
    assert 0 < past.distance < 1
    assert [f.configuration for f in carried.favourites[:3]] == [there[1], there[2], there[0]]
    assert carried.orderings == [["tp", "pp"]]
    [source] = carried.started.sources
    assert (source.rows, source.failures, source.orderings) == (11, 1, 1)
    assert carried.started.notes == []


def test_what_broke_a_bound_of_a_similar_job_tells_its_cost_and_is_no_favourite(kb):
    """A run whose memory nobody measured breaks the bound for all that is known, and says nothing of it."""
    bound = msgspec.structs.replace(JOB.objective, constraints=["peak_memory_gib <= 2"])
    here = msgspec.structs.replace(JOB, objective=bound)
    there = some(4)
    told = [
        msgspec.structs.replace(measured(c, seconds), metrics={"step_time_s": seconds, **peak})
        for c, seconds, peak in zip(
            there,
            (1.0, 3.0, 2.0, 0.5),
            ({"peak_memory_gib": 3.0}, {"peak_memory_gib": 1.0}, {"peak_memory_gib": 4.0}, {}),
            strict=True,
        )
    ]
    remember(kb, "s", longer(here), *ended(*told))
    carried = gather(kb, here, SPACE)
    [past] = carried.past
    assert past.rows == [(there[1], 3.0)]
    assert past.broken == [(there[0], 1.0), (there[2], 2.0)]
    assert [f.configuration for f in carried.favourites] == [there[1]]
    assert carried.started.sources[0].rows == 3


def test_configurations_of_another_cluster_are_projected_and_valid_here(kb):
    two = JobSpace.of_job(with_nodes(JOB, count=2))
    there = some(6, two)
    events = ended(*(measured(c, 1.0 + i) for i, c in enumerate(there)))
    remember(kb, "s", with_nodes(JOB, count=2), *events)
    carried = gather(kb, JOB, SPACE)
    assert carried.favourites
    assert all(SPACE.is_valid(f.configuration) for f in carried.favourites)
    first = carried.favourites[0]
    assert first.configuration.knobs["mbs"] == there[0].knobs["mbs"]
    assert any(c.id == first.configuration.id for c, _ in carried.past[0].rows)


def test_what_ran_out_of_memory_is_tried_where_there_is_more_and_said(kb):
    [a, b] = some(2)
    remember(kb, "s", with_nodes(longer(JOB), memory_gib=1), *ended(measured(a, None), measured(b, 1.0)))
    more = gather(kb, with_nodes(JOB, memory_gib=2), SPACE)
    assert [row for row in more.past[0].rows if row[1] is None] == []
    [note] = more.started.notes
    assert (
        "1 configurations ran out of memory for longer on 4×cpu (1 GiB a device) and may be tried here (2 GiB)" in note
    )
    less = gather(kb, with_nodes(JOB, memory_gib=1), SPACE)
    assert [row[0] for row in less.past[0].rows if row[1] is None] == [a]


def test_other_versions_of_the_same_job_are_hints_and_said(kb):
    remember(kb, "s", JOB, *ended(*(measured(c, 1.0 + i) for i, c in enumerate(some(5)))))
    carried = gather(kb, JOB, SPACE, context="here", environment={"torch": "2.13"})
    assert carried.past[0].distance == pytest.approx(0.2)
    [note] = carried.started.notes
    assert (
        "5 measurements of this job were made with different versions or hardware (torch 2.12 there, torch 2.13" in note
    )
    assert gather(kb, JOB, SPACE, context="there", environment={"torch": "2.12"}).past[0].distance == 0


def test_each_part_can_be_left_out(kb):
    there = some(6)
    costs = [1.0, 2.0, 3.0, None, 4.0, 5.0]
    remember(kb, "s", longer(JOB), *ended(*(measured(c, x) for c, x in zip(there, costs, strict=True))), RANKED)

    def parts(text: str) -> warm.Warm:
        return gather(kb, JOB, SPACE, choice=WarmStartChoice.parse(text))

    assert parts("off").past == []
    assert parts("auto:orderings").past[0].rows == []
    assert parts("auto:failures").past[0].rows == [(there[3], None)]
    assert len(parts("auto:rows").past[0].rows) == 5
    assert parts("auto:rows").favourites == []
    assert parts("auto:configurations").orderings == []
    with pytest.raises(AutoscoutError, match="'luck' cannot be carried over; choose from configurations, rows"):
        parts("auto:luck")


def test_one_session_only(kb):
    [a, b] = some(2)
    remember(kb, "s1", longer(JOB), *ended(measured(a, 1.0)))
    remember(kb, "s2", longer(JOB, 512), *ended(measured(b, 2.0)))
    assert [p.rows[0][0] for p in gather(kb, JOB, SPACE, choice=WarmStartChoice("s2")).past] == [b]
    with pytest.raises(AutoscoutError, match="--warm-start s3: no session of that name"):
        gather(kb, JOB, SPACE, choice=WarmStartChoice("s3"))


def test_unlike_jobs_hand_over_nothing(kb):
    huge = msgspec.structs.replace(JOB, model=msgspec.structs.replace(JOB.model, layers=96, hidden=8192, heads=64))
    remember(kb, "s", with_nodes(huge, device="a100", count=1024), *ended(measured(some(1)[0], 1.0)))
    assert gather(kb, JOB, SPACE).past == []


def test_many_rows_become_a_few_the_best_among_them(kb):
    there = some(400)
    remember(kb, "s", longer(JOB), *ended(*(measured(c, 1.0 + i) for i, c in enumerate(there))))
    rows = gather(kb, JOB, SPACE).past[0].rows
    assert len(rows) == 128
    assert [c for _, c in rows[:64]] == [1.0 + i for i in range(64)]
    assert max(c for _, c in rows if c is not None) > 390


def test_what_it_was_worth():
    a, b, c, d = some(4)
    started = WarmStarted(favourites=[a, b, c])
    events = [started, *ended(measured(d, 1.0), measured(a, 1.2), measured(b, None)), *ended(measured(d, 1.0))]
    told = worth(JOB, events)
    assert told is not None
    assert (told.carried, told.tried, told.failed, told.rank, told.experiments, told.first_within) == (3, 2, 1, 2, 4, 1)
    assert told.behind == pytest.approx(0.2)
    assert "2 of 3 carried-over configurations were measured" in told.sentence
    answered = worth(JOB, [started, Answered(measurement=measured(a, 0.5), measured_by="x"), *events[1:]])
    assert answered is not None
    assert (answered.rank, answered.first_within) == (1, 0)
    assert worth(JOB, events[1:]) is None


def test_a_session_says_and_stores_what_its_warm_start_was_worth(tmp_path):
    text = Path("fixtures/jobs/smallest-cpu.toml").read_text()
    text = text.replace("[launch]", f'[launch]\nlauncher = "replay"\nrecorded = "{RECORDED}"')
    path = tmp_path / "replay.toml"
    path.write_text(text)
    kb, job = tmp_path / "kb.duckdb", load_job(path)
    notes: list[str] = []

    def run(**options: str) -> str:
        chosen = session.SessionOptions(fidelity="profile", **options)  # type: ignore[arg-type]
        return session.tune(job, kb, chosen, lambda e: None, notes.append, Stop()).session

    first = run()
    assert not any("warm start" in note for note in notes)
    second = run(warm_start=f"{first}:configurations,rows")
    assert any(note.startswith("warm start: ") and "of smallest-cpu on 2×cpu (distance 0.00)" in note for note in notes)
    assert notes[-1].startswith("warm start: ")
    [row] = query.run(kb, "SELECT session, carried, tried, rank, experiments FROM warm_starts").rows
    assert row[:2] == (second, 5)
    assert row[2] > 0
    session.resume(second, kb, lambda e: None, notes.append, Stop())
    assert query.run(kb, "SELECT count(*) FROM warm_starts").rows == [(1,)]


def test_what_a_table_leaves_out_is_as_in_the_reference():
    """Rows of four knobs were tried with the least of every other: 0.8 of the memory, no large graphs, A40 for A100."""
    space = JobSpace.of_job(load_job(Path("fixtures/jobs/llama-3-8b-serve.toml")))
    said: dict[str, Value] = {"tp": 1, "max_num_seqs": 64, "max_num_batched_tokens": 2048}
    found = warm.projected(space, Configuration(said))
    assert found is not None
    assert found.knobs == {**space.reference.knobs, **said}
