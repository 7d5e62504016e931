"""P(fits) of the search, learned from peaks."""

import math
from pathlib import Path

import msgspec
import numpy as np
import pytest
from scipy.stats import truncnorm

from autoscout.search.autoscout import AutoScout
from autoscout.search.belief import peaks as memory_of_search
from autoscout.search.belief.encoding import Encoding
from autoscout.search.belief.peaks import PeakBelief, _censored, failed_for_memory, fullness
from autoscout.search.strategy import Search
from autoscout.simulate.training.memory import Memory as Analytic
from autoscout.space.attributes import attributes_of
from autoscout.space.graph import Space
from autoscout.studies.bench.job_landscape import landscape, ranks_gib
from autoscout.studies.bench.run import BenchSettings, run
from autoscout.targets.jobs import JobSpace, load_job
from autoscout.tuning import session
from autoscout.tuning.loop import Stop
from kb.journal import ExperimentEnded
from kb.records import Configuration, Measurement, Objective, SpaceLimits, Status, Value

MIXED = load_job("fixtures/jobs/llama-3.1-nemotron-nano-8b.toml")


def told_of(y: float) -> float:
    return y if y < 0 else math.inf


def measured(knobs: dict, peak: float, ranks: tuple[float, ...] = (), status: Status = "ok") -> Measurement:
    return Measurement(
        configuration=Configuration(knobs),
        name="c",
        context="x",
        status=status,
        metrics={"peak_memory_gib": peak} if status == "ok" else {},
        rank_memory_gib=list(ranks),
    )


def test_the_fullest_device_counts_by_its_own_memory_and_a_constraint_by_its_bound():
    objective = Objective(minimize="step_time_s")
    space = JobSpace.of_job(msgspec.structs.replace(MIXED, objective=objective))  # A100: 79.15 GiB, A40: 44.4 GiB
    both, large = {"a100": 8, "a40": 4}, {"a100": 8, "a40": 0}
    room = 0.03
    on_the_small = fullness(space, measured(both, 50.0, (50.0,) * 8 + (40.0,) * 4))
    assert on_the_small == pytest.approx(math.log(40.0 / 44.4) + room)
    assert fullness(space, measured(large, 50.0, (50.0,) * 8)) == pytest.approx(math.log(50.0 / 79.15) + room)
    assert fullness(space, measured(large, 77.0)) == pytest.approx(math.log(77.0 / 79.15) + room)
    # The largest peak alone: of the smallest device that can hold it.
    assert fullness(space, measured(both, 40.0)) == pytest.approx(math.log(40.0 / 44.4) + room)
    assert fullness(space, measured(both, 50.0)) == pytest.approx(math.log(50.0 / 79.15) + room)
    assert fullness(space, measured(both, 0.0, status="oom")) == math.inf
    assert math.isnan(fullness(space, measured(both, 0.0, status="timeout")))
    strict = JobSpace.of_job(MIXED)  # at most 76 GiB, a little less than an A100 has room for
    assert fullness(strict, measured(large, 77.0)) == pytest.approx(math.log(77.0 / 76.0))
    assert fullness(strict, measured({"a100": 0, "a40": 4}, 40.0)) == on_the_small


def test_where_no_limit_is_known_memory_is_not_known_either():
    table = Space.from_table([{"x": 1, "y": 2}, {"x": 2, "y": 2}])
    serving = JobSpace.of_job(load_job("fixtures/jobs/llama-3-8b-serve.toml"))
    on_cpu = JobSpace.of_job(load_job("fixtures/jobs/tiny-gpt-cpu.toml"))
    for space in (table, serving, on_cpu):
        assert math.isnan(fullness(space, measured({"x": 1}, 3.0)))
        assert math.isnan(fullness(space, measured({"x": 1}, 3.0, status="oom")))


def test_a_bound_alone_does_not_make_an_engine_that_did_not_start_too_full():
    """vLLM is out of memory where its share is too small for one request."""
    job = load_job("fixtures/jobs/llama-3-8b-serve.toml")
    objective = msgspec.structs.replace(job.objective, constraints=["peak_memory_gib <= 20"])
    space = JobSpace.of_job(msgspec.structs.replace(job, objective=objective))
    failed = measured({}, 0.0, status="oom")
    assert math.isnan(fullness(space, failed))
    assert not failed_for_memory(space, failed, fullness(space, failed))
    broke = measured({}, 21.0)
    assert fullness(space, broke) == pytest.approx(math.log(21 / 20))
    assert failed_for_memory(space, broke, fullness(space, broke))
    nothing = JobSpace.of_job(
        msgspec.structs.replace(job, objective=msgspec.structs.replace(objective, constraints=[]))
    )
    assert not failed_for_memory(nothing, measured({}, 21.0), fullness(nothing, measured({}, 21.0)))


def test_a_wrong_run_that_nearly_filled_its_memory_is_not_a_failure_for_memory():
    space = JobSpace.of_job(msgspec.structs.replace(MIXED, objective=Objective(minimize="step_time_s")))
    diverged = msgspec.structs.replace(measured({"a100": 8, "a40": 0}, 78.0), status="wrong")
    assert fullness(space, diverged) > 0
    assert not failed_for_memory(space, diverged, fullness(space, diverged))


def test_many_failures_settle(monkeypatch):
    """All sites at once may swing for ever: what is believed must not hang on which sweep was the last."""
    rng = np.random.default_rng(0)
    values = [(a, b, c) for a in range(6) for b in range(6) for c in range(6)]
    space = Space.from_table([{"a": a, "b": b, "c": c} for a, b, c in values], [], ["a", "b", "c"])
    rows = Encoding(space.knobs, space.feasible.codes).rows(space.feasible.codes)
    told = rng.choice(len(rows), 60, replace=False)
    chances = []
    for sweeps in (10, 11, 60):
        monkeypatch.setattr(memory_of_search, "_SWEEPS", sweeps)
        memory = PeakBelief(Encoding(space.knobs, space.feasible.codes))
        for i, row in enumerate(told):
            memory.tell(rows[np.array([row])], -0.2 if i < 2 else math.inf)
        memory._settle(memory._way, rows[told])
        memory.watch(rows)
        chances.append(memory.chance())
    assert np.abs(chances[0] - chances[2]).max() < 0.02
    assert np.abs(chances[1] - chances[0]).max() < 0.02


def test_a_row_that_fails_when_measured_again_counts_once_and_is_not_recommended():
    rows: list[dict[str, Value]] = [{"x": x, "y": y} for x in range(4) for y in range(4)]
    space = Space.from_table(rows, [], ["x", "y"])
    search = AutoScout(Search(space=space))
    asked = set()
    while batch := search.ask():
        (c,) = batch
        assert c.id not in asked
        asked.add(c.id)
        cost = 1.0 + float(c.knobs["x"]) + float(c.knobs["y"])
        search.tell([msgspec.structs.replace(measured(c.knobs, 3.0), metrics={"step_time_s": cost})])
        if cost in (1.0, 4.0):  # an order to try it again, which fails
            search.tell([measured(c.knobs, 0.0, status="timeout")])
    assert len(asked) == 16
    best = search.recommend()
    assert best is not None
    assert float(best.knobs["x"]) + float(best.knobs["y"]) == 1


def test_failures_alone_bring_the_memory_model_up_to_date(monkeypatch):
    space = JobSpace.of_job(msgspec.structs.replace(MIXED, objective=Objective(minimize="step_time_s")))
    search = AutoScout(Search(space=space))
    fits, fit = [], PeakBelief.fit
    monkeypatch.setattr(PeakBelief, "fit", lambda self: (fits.append(1), fit(self))[1])
    for n in range(24):
        (c,) = search.ask()
        if n == 0:
            told = measured(c.knobs, 30.0)
            search.tell([msgspec.structs.replace(told, metrics=told.metrics | {"step_time_s": 1.0})])
        else:
            search.tell([measured(c.knobs, 0.0, status="oom")])
    assert len(fits) >= 4


def test_on_a_table_failures_stay_with_the_classifier():
    rows: list[dict[str, Value]] = [{"x": x, "y": y} for x in range(8) for y in range(8)]
    search = AutoScout(Search(space=Space.from_table(rows, [], ["x", "y"])))
    for _ in range(15):
        (c,) = search.ask()
        fails = c.knobs["x"] == 7 or c.knobs["y"] == 0
        told = measured(c.knobs, 3.0, status="oom" if fails else "ok")
        search.tell([msgspec.structs.replace(told, metrics=told.metrics | {"step_time_s": 1.0 + search.asked % 3})])
    assert search.model.failed
    assert search.model.chances.feasibility.failed
    assert search.model.chances.memory.chance() == 1.0


def test_a_censored_row_stands_for_the_moments_of_what_is_above_the_limit():
    for mean, variance in ((-1.0, 0.5), (0.1, 0.04), (0.5, 1.0)):
        value, vague = _censored(np.array(mean), np.array(variance))
        after = 1 / (1 / variance + 1 / vague)
        deviation = math.sqrt(variance)
        expected = truncnorm(-mean / deviation, np.inf, loc=mean, scale=deviation)
        assert after * (mean / variance + value / vague) == pytest.approx(expected.mean(), abs=0.01)
        assert after == pytest.approx(expected.var(), rel=0.1)
    assert _censored(np.array(3.0), np.array(0.01))[1] > 100  # what was expected tells nothing


def test_the_boundary_is_learned_from_few_peaks_and_failures():
    """Twenty rows of a product of four knobs tell nearly all others apart, and chances are what they say."""
    rng = np.random.default_rng(0)
    rows = [
        {"mbs": 2**m, "tp": 2**t, "pp": 2**p, "ar": a}
        for m in range(5)
        for t in range(4)
        for p in range(4)
        for a in ("none", "full", "some")
    ]
    space = Space.from_table(rows, ["ar"], ["mbs", "tp", "pp"])
    at = space.feasible.columns()
    kept = np.array([{"none": 1.0, "some": 0.6, "full": 0.25}[a] for a in at["ar"]])
    y = np.log((20.0 / at["tp"] / at["pp"] + 1 + kept * 6 * at["mbs"] / at["tp"]) / 10)
    encoding = Encoding(space.knobs, space.feasible.codes)
    memory = PeakBelief(encoding)
    told = rng.choice(len(y), 20, replace=False)
    assert 4 < (y[told] > 0).sum() < 16
    for row in told[:12]:
        memory.tell(encoding.rows(space.feasible.codes[[row]]), told_of(float(y[row])))
    memory.fit()
    others = np.setdiff1d(np.arange(len(y)), told)
    memory.watch(encoding.rows(space.feasible.codes[others]))
    for row in told[12:]:  # taken in without a fit
        memory.tell(encoding.rows(space.feasible.codes[[row]]), told_of(float(y[row])))
    chance, fits = memory.chance(), y[others] < 0
    assert isinstance(chance, np.ndarray)
    sure = (chance < 0.1) | (chance > 0.9)
    assert sure.mean() > 0.5
    assert ((chance > 0.5) == fits)[sure].mean() > 0.95
    assert ((chance > 0.5) == fits).mean() > 0.85


def test_ranks_fill_as_the_analytic_model_says():
    space, attributes = JobSpace.of_job(MIXED), attributes_of(MIXED)
    for row in range(0, len(space.feasible), 9973):
        configuration = space.feasible.configuration(row)
        columns = {n: np.array([v]) for n, v in {**attributes, **configuration.knobs}.items() if n != "degrees"}
        ranks = ranks_gib(attributes, configuration)
        assert len(ranks) == sum(int(configuration.knobs[kind]) for kind in space.capacities)
        assert max(ranks) == pytest.approx(Analytic("a100").predict(columns).value[0])


@pytest.mark.thorough
def test_a_job_s_landscape_reports_peaks_and_the_search_fails_less_for_it():
    small = SpaceLimits(fix={"a40": 0, "ddp_bucket": 128, "overlap_param": False, "cp": 1})
    land = landscape(msgspec.structs.replace(MIXED, space=small))
    ok = np.flatnonzero(np.isfinite(land.truth))
    for row in ok[:: len(ok) // 20]:
        told = land.measure(int(row), land.space.feasible.configuration(int(row)), 0.02, 0)
        assert len(told.rank_memory_gib) == 8
        assert max(told.rank_memory_gib) == told.metrics["peak_memory_gib"]
        assert fullness(land.space, told) < 0.03  # noise; what it needs beside is part of the room
    by_peaks = [run(land, "autoscout", seed, BenchSettings(budget=60))[0].failures for seed in range(6)]
    land.space.capacities, land.space.objective = {}, Objective(minimize="step_time_s")
    by_failures = [run(land, "autoscout", seed, BenchSettings(budget=60))[0].failures for seed in range(6)]
    assert sum(by_peaks) < sum(by_failures)


def test_a_session_tells_the_search_the_peaks_that_were_measured(tmp_path, monkeypatch):
    text = Path("fixtures/jobs/smallest-cpu.toml").read_text()
    recorded = Path("fixtures/recorded/smallest-cpu.jsonl").resolve()
    job = tmp_path / "replay.toml"
    bounded = 'minimize = "step_time_s"\nconstraints = ["peak_memory_gib <= 8"]'
    text = text.replace("[launch]", f'[launch]\nlauncher = "replay"\nrecorded = "{recorded}"')
    job.write_text(text.replace('minimize = "step_time_s"', bounded))
    heard: list[float] = []
    tell = PeakBelief.tell
    monkeypatch.setattr(PeakBelief, "tell", lambda self, row, y, *m: (heard.append(y), tell(self, row, y, *m))[1])
    ended = []
    session.tune(
        load_job(str(job)), tmp_path / "kb.duckdb", session.SessionOptions(), ended.append, lambda _: None, Stop()
    )
    peaks = [e.measurement.metrics["peak_memory_gib"] for e in ended if isinstance(e, ExperimentEnded)]
    assert heard
    assert set(np.round(heard, 9)) <= {round(math.log(peak / 8), 9) for peak in peaks}
