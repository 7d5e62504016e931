"""The verdict at the end of a session, from re-measurements alone."""

import contextlib
import re

import msgspec
import numpy as np
import pytest
from landscape import failed, job_of, measured, space_of

from autoscout.job.objective import cost
from autoscout.search.belief.ranking import Ranking
from autoscout.space.explain import completed
from autoscout.tuning.anchors import Anchors
from autoscout.tuning.confirm import finalists, verdict
from autoscout.tuning.rounds import confirmed
from autoscout.tuning.trial import Trial

JOB, SPACE = job_of("tiny-gpt-cpu"), space_of("tiny-gpt-cpu")
DEFAULT = SPACE.reference
OTHER = completed(SPACE, {"pp": 2, "mbs": 2}, DEFAULT)
THIRD = completed(SPACE, {"pp": 4}, DEFAULT)
FAR = completed(SPACE, {"pp": 2, "mbs": 1, "overlap_grad": False, "distopt": False}, DEFAULT)


def took(configuration, seconds):
    return msgspec.structs.replace(measured(SPACE, configuration), metrics={"step_time_s": seconds})


def chosen(*rows):
    ranking = Ranking(SPACE, [(m.configuration, cost(JOB.objective, m)) for m in rows])
    return finalists(JOB, ranking, DEFAULT, rows)


def judged(rounds, anchors=(), job=JOB, limit=6):
    """The verdict over rounds of (configuration, seconds, or None where it failed)."""
    names = list(dict.fromkeys(c.id for row in rounds for c, _ in row if c != DEFAULT))
    trial = Trial(finalists=names, reference=DEFAULT.id, limit=limit, anchors=list(anchors))
    measured_ = [[failed(SPACE, c) if s is None else took(c, s) for c, s in row] for row in rounds]
    return verdict(job, SPACE, trial, measured_, DEFAULT)


def test_the_default_is_always_among_the_finalists_and_failures_never():
    assert chosen(took(OTHER, 1.0), took(DEFAULT, 9.0), failed(SPACE, THIRD, "wrong")) == [OTHER, DEFAULT]
    assert chosen(failed(SPACE, DEFAULT)) == []


def test_finalists_are_those_that_noise_may_have_hidden():
    assert chosen(took(OTHER, 1.0), took(DEFAULT, 1.1), took(THIRD, 1.5)) == [OTHER, DEFAULT]


def test_finalists_are_the_best_as_believed_and_one_that_was_lucky_once_is_not_first():
    """Its two repeats say that it is slow; its one lucky value was the least of all."""
    rng = np.random.default_rng(0)
    rows = [measured(SPACE, SPACE.sample(rng), noise=0.02, seed=i) for i in range(30)]
    least = min(m.metrics["step_time_s"] for m in rows)
    lucky = [took(OTHER, 0.98 * least), took(OTHER, 1.6 * least), took(OTHER, 1.6 * least)]
    found = chosen(*rows, *lucky)
    assert OTHER not in found[:1]


def test_noise_may_have_hidden_the_second_least_single_measurement():
    """The belief that smooths over neighbours may err; what noise could have turned around is measured again."""
    rng = np.random.default_rng(0)
    rows = [measured(SPACE, SPACE.sample(rng), noise=0.1, seed=i) for i in range(30)]
    least = min(m.metrics["step_time_s"] for m in rows)
    found = chosen(took(DEFAULT, 0.4), *rows, took(FAR, 0.97 * least), took(THIRD, 1.02 * least))
    assert {FAR.id, THIRD.id} <= {c.id for c in found}


def test_what_is_said_of_costs_and_of_their_ratio_is_the_same_on_a_machine_that_drifts():
    """The finalist is measured in the slow rounds only, as one that failed by the machine's fault in the others."""
    found = judged(
        [
            [(OTHER, 1.0), (DEFAULT, 1.1)],
            [(OTHER, 2.0), (DEFAULT, 2.2)],
            [(DEFAULT, 1.1)],
            [(OTHER, 2.0), (DEFAULT, 2.2)],
        ]
    )
    assert found is not None
    assert found.default_value is not None
    assert found.gain is not None
    assert found.default_value / found.value == pytest.approx(found.gain, rel=1e-9)


def test_a_gain_that_repeats_is_proven_after_two_rounds():
    found = judged([[(OTHER, 1.0), (DEFAULT, 1.2)], [(OTHER, 1.001), (DEFAULT, 1.2)]], anchors=(1.2, 1.201, 1.199))
    assert found is not None
    assert (found.verdict, found.winner, found.decided) == ("faster", OTHER, True)
    assert found.low is not None
    assert found.gain is not None
    assert found.high is not None
    assert 1 < found.low < found.gain < found.high
    assert found.gain == pytest.approx(1.2, rel=1e-2)
    assert found.p_better is not None
    assert found.p_better > 0.99
    assert f"is faster than {SPACE.name(DEFAULT)}: " in found.sentence
    assert "more rounds are expected to improve the choice by less than 0.1 %" in found.sentence


def test_what_is_not_proven_is_called_undecided_and_the_better_guess_is_recommended():
    rounds = [[(OTHER, w), (DEFAULT, d)] for w, d in ((1.0, 1.1), (1.1, 1.05), (1.0, 1.1), (1.02, 1.04))]
    found = judged(rounds)
    assert found is not None
    assert (found.verdict, found.winner) == ("undecided", OTHER)
    assert not found.decided
    assert found.low is not None
    assert found.gain is not None
    assert found.low < 1 < found.gain
    assert found.sentence.startswith("undecided")
    assert "the better guess" in found.sentence
    assert ("95 % interval" in found.sentence) != ("P(better)" in found.sentence)  # one belief, not two that contradict
    assert found.more is not None
    assert found.more > 4  # what more measurements would buy
    assert f"; {found.more} rounds in all would decide" in found.sentence
    assert found.p_better is not None
    assert 0.5 < found.p_better < 1
    turned = judged([[(DEFAULT if c == OTHER else OTHER, s) for c, s in row] for row in rounds])
    assert turned is not None
    assert (turned.verdict, turned.winner, turned.gain, turned.low) == ("undecided", DEFAULT, 1.0, None)
    assert turned.rival_name == SPACE.name(OTHER)
    assert f"so {SPACE.name(DEFAULT)} is kept" in turned.sentence


def test_equal_is_said_only_where_less_than_one_percent_is_left():
    quiet = judged([[(OTHER, 1.0), (DEFAULT, 1.0)], [(OTHER, 1.0), (DEFAULT, 1.0)]])
    assert quiet is not None
    assert (quiet.verdict, quiet.winner) == ("equal", DEFAULT)
    loud = judged([[(OTHER, 1.0), (DEFAULT, 1.1)], [(OTHER, 1.1), (DEFAULT, 1.0)]])
    assert loud is not None
    assert loud.verdict == "undecided"


def test_one_round_decides_nothing_against_the_default():
    found = judged([[(OTHER, 1.0), (DEFAULT, 2.0)]])
    assert found is not None
    assert (found.winner, found.verdict) == (DEFAULT, "undecided")


def test_one_round_does_not_say_how_many_would_decide():
    """993, after one round whose noise the runs of the search alone gave."""
    found = judged([[(OTHER, 1.0), (DEFAULT, 1.1)]], anchors=(1.0, 1.1, 1.3))
    assert found is not None
    assert (found.verdict, found.more) == ("undecided", None)
    assert "would decide" not in found.sentence


def test_without_a_default_that_runs_the_fastest_wins():
    found = judged([[(OTHER, 1.0), (THIRD, 2.0), (DEFAULT, None)]])
    assert found is not None
    assert (found.winner, found.gain, found.default_value, found.verdict) == (OTHER, None, None, "alone")


def test_a_finalist_that_fails_once_is_out():
    found = judged([[(OTHER, 1.0), (DEFAULT, 2.0)], [(OTHER, None), (DEFAULT, 2.0)]])
    assert found is not None
    assert found.winner == DEFAULT
    assert judged([[(OTHER, None)]]) is None


def test_of_equals_the_one_nearest_to_the_default_wins():
    rounds = [[(FAR, 1.0), (OTHER, 1.001), (DEFAULT, 2.0)]] * 2
    found = judged(rounds, anchors=(2.0, 2.0, 2.0))
    assert found is not None
    assert (found.verdict, found.winner) == ("faster", OTHER)


def test_two_rounds_are_not_enough_on_a_machine_that_moved_since_the_search():
    """What slows the machine for a while may have hit the reference in both rounds."""
    rounds = [[(OTHER, 1.0), (DEFAULT, 1.3)], [(OTHER, 1.0), (DEFAULT, 1.3)]]
    moved = judged(rounds, anchors=(1.0, 1.001, 0.999))
    assert moved is not None
    assert moved.verdict == "undecided"
    stayed = judged(rounds, anchors=(1.3, 1.301, 1.299))
    assert stayed is not None
    assert stayed.verdict == "faster"


def test_every_second_round_is_on_other_devices_and_a_round_all_on_the_same():
    anchors, done = Anchors(JOB, DEFAULT), [took(OTHER, 1.0), took(DEFAULT, 1.2), took(THIRD, 1.1)]
    asking = confirmed(JOB, SPACE, SPACE, done, DEFAULT, anchors, lambda text: None, lambda _: False)
    rng, seen = np.random.default_rng(0), []

    def profile(configuration):
        seconds = {OTHER.id: 1.0, DEFAULT.id: 1.2, THIRD.id: 1.1}[configuration.id]
        return took(configuration, seconds * float(np.exp(rng.normal(0, 0.05))))

    wanted = next(asking)
    with contextlib.suppress(StopIteration):
        while True:
            seen.append(wanted.elsewhere)
            wanted = asking.send(profile(wanted.configuration))
    first = seen.index(False)
    assert first >= 2
    assert seen[: 2 * first] == [True] * first + [False] * first


def test_the_present_launch_is_measured_beside_the_finalists_where_a_recipe_is_what_they_have_to_beat():
    """What a person gains over what they run today came from one run of the search."""
    seconds = {OTHER.id: 1.0, DEFAULT.id: 1.2, FAR.id: 2.0}
    done = [took(c, seconds[c.id]) for c in (OTHER, DEFAULT, FAR)]
    for today, times in ((FAR, 2), (None, 0), (DEFAULT, 0)):
        anchors, seen = Anchors(JOB, DEFAULT), []
        asking = confirmed(JOB, SPACE, SPACE, done, DEFAULT, anchors, lambda text: None, lambda _: False, today)
        wanted, rng = next(asking), np.random.default_rng(0)
        while True:
            seen.append(wanted.configuration)
            noise = float(np.exp(rng.normal(0, 0.01)))
            try:
                wanted = asking.send(took(wanted.configuration, seconds[wanted.configuration.id] * noise))
            except StopIteration as end:
                found = end.value
                break
        assert found.winner == OTHER
        assert seen.count(FAR) == times, "it cannot win, and is dropped after two rounds"
        over = re.search(
            r"; its gain over the present launch is \+(\d+\.\d)% \(95 % interval .*; 2 rounds\)", found.sentence
        )
        assert (over is not None) == bool(times)
        assert over is None or 90 < float(over[1]) < 110
        assert found.today_name == (SPACE.name(FAR) if times else "")
        assert (found.over_today or 2.0) == pytest.approx(2.0, rel=0.1)


def test_where_all_finalists_fail_the_next_best_do_not_wait_for_the_present_launch():
    """It was measured beside the reference up to the last round, which decides nothing."""
    seconds, rng, seen = {DEFAULT.id: 1.2, THIRD.id: 1.18, FAR.id: 1.22}, np.random.default_rng(0), []
    done = [took(OTHER, 1.0), took(DEFAULT, 1.2), took(THIRD, 1.18), took(FAR, 1.22)]
    asking = confirmed(JOB, SPACE, SPACE, done, DEFAULT, Anchors(JOB, DEFAULT), lambda text: None, lambda _: False, FAR)
    wanted = next(asking)
    with contextlib.suppress(StopIteration):
        while len(seen) < 50:
            one = wanted.configuration
            seen.append(one)
            ran = None if one == OTHER else took(one, seconds[one.id] * float(np.exp(rng.normal(0, 0.05))))
            wanted = asking.send(ran or failed(SPACE, one))
    first = [OTHER, DEFAULT, DEFAULT, FAR]
    assert sorted(c.id for c in seen[:4]) == sorted(c.id for c in first)
    assert THIRD in seen[4:8]
    assert OTHER not in seen[4:]


def test_a_larger_metric_wins_where_the_objective_maximizes():
    objective = msgspec.structs.replace(JOB.objective, minimize="", maximize="tokens_per_s")
    job = msgspec.structs.replace(JOB, objective=objective)
    trial = Trial(finalists=[OTHER.id], reference=DEFAULT.id, limit=6)

    def rate(configuration, tokens):
        return msgspec.structs.replace(measured(SPACE, configuration), metrics={"tokens_per_s": tokens})

    found = verdict(job, SPACE, trial, [[rate(OTHER, 200.0 + i), rate(DEFAULT, 100.0 - i)] for i in range(4)], DEFAULT)
    assert found is not None
    assert found.winner == OTHER
    assert found.value == pytest.approx(201.5, rel=1e-3)
    assert found.gain == pytest.approx(2.046, rel=1e-2)
