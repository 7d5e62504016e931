"""Nothing of a design can be measured, so nothing is measured again; sessions that did it before still go on."""

from pathlib import Path

import numpy as np
import pytest

from autoscout.job.objective import cost
from autoscout.space.nearness import differing
from autoscout.targets.jobs import JobSpace, load_job, profiler_of
from autoscout.tuning.designed import compared
from autoscout.tuning.loop import Stop
from autoscout.tuning.session import SessionOptions, begun, resume, tune
from kb import journal as journals
from kb import store
from kb.journal import Confirmed, ExperimentEnded, ExperimentStarted
from kb.records import AutoscoutError, Measurement

STACK = """
name = "small"
task = "pretrain"
target = "stack"
model = { layers = 8, hidden = 1024, heads = 8, vocab = 32000 }
traffic = { seq_len = 1024, global_batch = 64 }
cluster = { nodes = [{ device = "h100", count = 64 }] }
objective = { minimize = "latency_s" }
budget = { profiles = 12 }

[space]
fix = { mbs = 1, sp = 1, chunks = 4 }
limit = { bandwidth_1 = [400], bandwidth_2 = [50, 100] }
"""  # more experiments than lie between two anchors


@pytest.fixture
def stack(tmp_path):
    path = tmp_path / "small.toml"
    path.write_text(STACK.strip())
    return load_job(path)


def quiet(_: object) -> None:
    pass


def searched(job, kb: Path, name: str) -> list[journals.AnyEvent]:
    tune(job, kb, SessionOptions(), quiet, quiet, Stop(), name)
    return journals.events(store.journalled(kb, name) / "journal.jsonl")


def as_before(job, kb: Path, name: str) -> None:
    """A session that measures again whatever it is told, as all did once."""
    profiler, space = profiler_of(job), JobSpace.of_job(job)
    with begun(name, job, kb, space, SessionOptions(), profiler.environment(), quiet, quiet) as engine:
        engine.anchors.exact = False
        while experiment := engine.ask():
            engine.tell(experiment.number, profiler.run(experiment.configuration, experiment.name, Path()))


def confirmed(events: list[journals.AnyEvent]) -> list[Confirmed]:
    return [e for e in events if isinstance(e, Confirmed)]


def test_each_design_is_asked_for_once_and_the_best_is_what_was_found(stack, tmp_path):
    events = searched(stack, tmp_path / "kb.duckdb", "once")
    starts = [e for e in events if isinstance(e, ExperimentStarted)]
    assert {e.purpose for e in starts} == {"search"}
    assert len({e.configuration.id for e in starts}) == len(starts) == 12
    costs = [cost(stack.objective, e.measurement) for e in events if isinstance(e, ExperimentEnded)]
    (found,) = confirmed(events)
    assert found.value == pytest.approx(min(c for c in costs if c is not None))
    assert found.default_value is not None
    assert found.gain == pytest.approx(found.default_value / found.value)
    assert (found.pairs, found.low, found.behind_low, found.noise) == (0, None, None, None)
    assert "interval" not in found.sentence


@pytest.mark.parametrize("kept", [0.3, 0.6, 0.99])
def test_a_session_that_was_cut_off_ends_like_one_that_was_not(stack, tmp_path, kept):
    kb = tmp_path / "kb.duckdb"
    whole = searched(stack, kb, "whole")
    path = store.journalled(kb, "whole") / "journal.jsonl"
    lines = path.read_text().splitlines(keepends=True)
    path.write_text("".join(lines[: int(kept * len(lines))]))
    resume("whole", kb, quiet, quiet, Stop())
    assert confirmed(journals.events(path))[-1].winner == confirmed(whole)[-1].winner


@pytest.mark.parametrize("cut", ["anchor", "confirm", "confirmed"])
def test_a_session_that_measured_again_goes_on_as_it_began(stack, tmp_path, cut):
    kb = tmp_path / "kb.duckdb"
    as_before(stack, kb, "old")
    path = store.journalled(kb, "old") / "journal.jsonl"
    events, lines = journals.events(path), path.read_text().splitlines(keepends=True)
    last = {getattr(e, "purpose", "confirmed" if isinstance(e, Confirmed) else ""): i for i, e in enumerate(events)}
    path.write_text("".join(lines[: last[cut] + 1]))
    assert resume("old", kb, quiet, quiet, Stop()).confirmed is not None
    again = journals.events(path)
    assert [c.winner for c in confirmed(again)] == [c.winner for c in confirmed(events)]
    assert confirmed(again)[0].pairs >= 2


def test_of_equal_designs_the_nearest_to_the_reference_is_chosen(stack):
    space = JobSpace.of_job(stack)
    reference = space.reference
    near = min(space.neighbours(reference), key=lambda c: differing(c, reference))
    far = max((space.sample(np.random.default_rng(i)) for i in range(9)), key=lambda c: differing(c, reference))
    assert compared(stack, space, [took(far, 1.0), took(near, 1.0), took(reference, 2.0)], reference).winner == near


def test_without_a_design_that_works_there_is_nothing_to_say(stack):
    space = JobSpace.of_job(stack)
    with pytest.raises(AutoscoutError) as caught:
        compared(stack, space, [], space.reference)
    assert caught.value.exit_code == 3


def took(configuration, seconds: float) -> Measurement:
    return Measurement(configuration=configuration, name="x", context="c", status="ok", metrics={"latency_s": seconds})
