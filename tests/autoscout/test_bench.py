"""The bench counts every real evaluation once, scores by noise-free values, and can be killed and run again."""

import json
import subprocess
import sys
import time
from pathlib import Path

import msgspec
import numpy as np
import psutil
import pytest
import verbs
from scipy.stats import spearmanr

from autoscout import Study
from autoscout.job.objective import cost, costs
from autoscout.space.graph import Space
from autoscout.studies.bench.curves import curves, text
from autoscout.studies.bench.every import fingerprint, run_all
from autoscout.studies.bench.job_landscape import landscape
from autoscout.studies.bench.landscape import Landscape
from autoscout.studies.bench.run import BenchRun, BenchSettings, run
from autoscout.studies.bench.summary import summarize
from autoscout.studies.bench.variants import usable, variant
from autoscout.targets.jobs import load_job
from kb.records import AutoscoutError, Objective, SpaceLimits


def toy(name: str = "toy", shift: int = 0, n: int = 12) -> Landscape:
    """144 configurations, a bowl with one optimum; the corner fails."""
    rows = [{"mode": mode, "x": x, "y": y} for mode in ("a", "b") for x in range(n // 2) for y in range(n)]
    space = Space.from_table(rows, ["mode"], ["x", "y"], Objective(minimize="seconds"))
    at = space.feasible.columns()
    x, y = at["x"].astype(float), at["y"].astype(float)
    truth = 1 + (at["mode"] == "b") + 0.1 * (x - 2 - shift) ** 2 + 0.05 * (y - 7) ** 2
    truth[(x == 0) & (y > 8)] = np.nan
    return Landscape(
        name=name,
        space=space,
        metric="seconds",
        goal="min",
        truth=truth,
        status=np.where(np.isnan(truth), "oom", "ok").astype(object),
        cost=np.full(len(truth), 2.0),
        simulators={"guess": truth * 1.3},
        group={"size": 1 + shift},
    )


@pytest.mark.parametrize("name", ["autoscout", "paper", "random", "udo"])
def test_every_evaluation_counts_once_and_the_score_is_noise_free(name):
    land = toy()
    result, told = run(land, name, 0, BenchSettings(budget=60, noise=0.05))
    assert result.evaluations == len(told) <= 60
    assert result.cost_total == pytest.approx(2.0 * result.evaluations)
    assert result.best in land.truth
    assert all(value in land.truth for _, value in result.curve)
    assert any(cost is not None and cost not in land.truth for _, cost in told)
    assert result.best_at["200"] is None  # beyond the budget nobody knows
    assert (best := result.best_at["50"]) is not None
    assert result.regret_at["50"] == pytest.approx(best / land.optimum - 1)


def test_evaluations_to_the_target_are_those_of_the_curve():
    result, _ = run(toy(), "random", 3, BenchSettings(budget=144))
    at = {value: int(n) for n, value in result.curve}
    assert result.evaluations == 144
    assert result.evaluations_to_target == at[result.optimum]
    assert result.evaluations_to_5pct in range(1, at[result.optimum] + 1)
    assert result.recommended is not None
    assert result.recommended.regret == 0


@pytest.mark.parametrize("noise", [0.02, pytest.param(0.0, marks=pytest.mark.thorough)])
def test_a_run_is_what_a_session_does_on_the_same_landscape(noise, tmp_path):
    """The same configurations in the same order, the reference again when it is due, the same end, the same rounds."""
    land = msgspec.structs.replace(toy(), simulators={})
    study = Study(land.space, minimize="seconds", kb=tmp_path / "kb.db", profiles=70, seed=2)
    times: dict[int, int] = {}
    asked = []
    with study:
        while study.wants_more():
            for configuration in study.ask():
                row = land.space.feasible.index(configuration)
                assert row is not None
                measured = land.measure(row, configuration, noise, 2, times.get(row, 0))
                times[row] = times.get(row, 0) + 1
                asked.append(configuration.id)
                if measured.status == "ok":
                    study.tell(configuration, measured.metrics)
                else:
                    study.tell(configuration, failed="oom")
        best, default = study.best(), study._engine.started.default
    land = msgspec.structs.replace(land, default=default)
    result, told = run(land, "autoscout", 2, BenchSettings(budget=70, noise=noise, as_sessions=True))
    assert [c.id for c, _ in told] == list(dict.fromkeys(asked))
    assert result.evaluations < 70
    assert result.closing == len(asked) - len(set(asked)) > 0
    assert result.recommended is not None
    assert result.recommended.knobs == best.configuration


def test_what_is_recommended_costs_no_evaluation():
    result, _ = run(toy(), "random", 1, BenchSettings(budget=40, noise=0.02))
    assert result.evaluations == 40
    assert result.closing >= 4
    assert run(toy(), "random", 1, BenchSettings(budget=40, noise=0.02, whole=False))[0].recommended is None


def test_strategy_paper_asks_simulators_for_free():
    land = toy()
    alone = msgspec.structs.replace(land, simulators={})
    with_, _ = run(land, "paper", 0, BenchSettings(budget=30))
    without, _ = run(alone, "paper", 0, BenchSettings(budget=30))
    assert (with_.regret_at["10"] or 0.0) <= (without.regret_at["10"] or 0.0)


def test_runs_are_the_same_again_and_resumed_runs_are_not_run_again(tmp_path):
    lands = [toy()]

    def scores(runs: list[BenchRun]) -> list[tuple]:
        return [(r.strategy, r.seed, r.evaluations_to_target, r.curve) for r in runs]

    first = run_all(lands, ["random", "ants"], 3, BenchSettings(budget=30, noise=0.02), tmp_path, workers=2)
    again = run_all(lands, ["random", "ants"], 3, BenchSettings(budget=30, noise=0.02), workers=1)
    assert scores(first) == scores(again)
    lines = (tmp_path / "runs.jsonl").read_bytes().splitlines(keepends=True)
    assert len(lines) == 6
    (tmp_path / "runs.jsonl").write_bytes(b"".join(lines[:4]) + lines[4][:50])  # killed while writing
    resumed = run_all(lands, ["random", "ants"], 3, BenchSettings(budget=30, noise=0.02), tmp_path)
    assert scores(resumed) == scores(first)
    assert (tmp_path / "runs.jsonl").read_bytes().startswith(b"".join(lines[:4]))
    other = run_all(lands, ["random"], 1, BenchSettings(budget=20, noise=0.02), tmp_path)
    assert other[0].evaluations == 20  # other settings are other runs


def test_transfer_hands_earlier_groups_to_later_ones():
    lands = [toy("first", 0), toy("second", 0)]
    lands = [msgspec.structs.replace(land, simulators={}) for land in lands]
    settings = BenchSettings(budget=40, transfer=True)
    runs = run_all(lands, ["autoscout"], 3, settings)
    cold = [r.evaluations_to_target for r in runs if r.landscape == "first"]
    warm = [r.evaluations_to_target for r in runs if r.landscape == "second"]
    assert max(warm) <= min(cold)


def finished(strategy: str, seed: int, to_target: int | None) -> BenchRun:
    result, _ = run(toy(), "random", seed, BenchSettings(budget=3))
    return msgspec.structs.replace(result, strategy=strategy, evaluations_to_target=to_target)


def test_a_summary_counts_unsolved_runs_as_one_more_than_the_budget():
    runs = [finished("a", s, n) for s, n in enumerate((10, 20, 30))]
    runs += [finished("b", s, n) for s, n in enumerate((40, 40, None))]
    summary = summarize(runs, budget=100, target=0.01)
    a, b = summary.strategies
    assert (a.evaluations_to_target.median, a.solved) == (20, 3)
    assert (b.evaluations_to_target.median, b.evaluations_to_target.q3, b.solved) == (40, 70.5, 2)
    (pair,) = summary.pairs
    assert pair.ratio == pytest.approx(0.5)
    assert pair.low <= 0.5 <= pair.high
    assert summary.unsolved_as == 101


def test_a_shuffled_landscape_has_the_same_outcomes_elsewhere():
    land = toy()
    land.peaks = lambda row, configuration: np.array([float(row), float(str(configuration.knobs["y"]))])
    other = land.shuffled()
    assert other.name == "toy, shuffled"
    assert sorted(other.truth[other.status == "ok"]) == sorted(land.truth[land.status == "ok"])
    assert (other.truth != land.truth).sum() > 100
    assert (np.isnan(other.truth) == (other.status == "oom")).all()
    np.testing.assert_equal(other.simulators["guess"], land.simulators["guess"])
    assert other.peaks is not None
    moved = [other.peaks(row, land.space.feasible.configuration(row)) for row in range(len(land.truth))]
    assert sorted(int(row) for row, _ in moved) == list(range(len(land.truth)))
    for now, (row, y) in enumerate(moved):
        np.testing.assert_equal(other.truth[now], land.truth[int(row)])
        assert y == land.space.feasible.configuration(int(row)).knobs["y"]
    assert (land.shuffled().truth[:9] == other.truth[:9]).all()


@pytest.mark.thorough
def test_nothing_is_found_sooner_than_by_chance_where_outcomes_are_shuffled():
    """By chance the best of 144 is found after 72 in the median."""
    settings = BenchSettings(budget=72, whole=False)
    found = [run(toy().shuffled(seed), "autoscout", seed, settings)[0].evaluations_to_target for seed in range(6)]
    plain = [run(toy(), "autoscout", seed, settings)[0].evaluations_to_target for seed in range(6)]
    assert np.median([72 if n is None else n for n in plain]) < 30
    assert np.median([72 if n is None else n for n in found]) > 30


def test_shuffled_landscapes_are_summed_up_apart():
    lands = [toy("one"), toy("two", 1)]
    runs = run_all([*lands, *(land.shuffled() for land in lands)], ["random"], 2, BenchSettings(budget=20), workers=1)
    pooled = {row.landscape: row.seeds for row in summarize(runs, 20, 0.01).strategies}
    assert pooled == {
        "one": 2, "two": 2, "one, shuffled": 2, "two, shuffled": 2, "all": 4, "all, shuffled": 4,
    }  # fmt: skip


def test_curves_show_every_strategy():
    runs = run_all([toy()], ["random", "ants"], 2, BenchSettings(budget=30))
    drawn = text(curves(runs, 30), 30)
    assert "A random" in drawn
    assert "B ants" in drawn


def test_variants_and_what_cannot_run_here():
    assert variant("paper:k=7")[1].k == 7
    for wrong, sentence in (
        ("papr", "did you mean 'paper'"),
        ("paper:kk=7", "did you mean 'k'"),
        ("udo:k=1", "has no"),
    ):
        with pytest.raises(AutoscoutError, match=sentence):
            variant(wrong)
    chosen, left_out = usable(["random", "expert"], [toy()])
    assert chosen == ["random"]
    assert "expert" in left_out
    with pytest.raises(AutoscoutError, match="expert"):
        usable(["expert"], [toy()])


def test_a_job_is_a_landscape_whose_simulators_are_wrong_as_they_say():
    job = load_job("fixtures/jobs/llama-3.2-3b.toml")
    job = msgspec.structs.replace(job, space=SpaceLimits(fix={"a40_layers": 0}))  # wrong constants misjudge depths more
    land = landscape(job, ["good", "biased", "good+80"])
    ok = np.isfinite(land.truth)
    assert 0 < np.isnan(land.truth).mean() < 1
    rho = {}
    for name, predicted in land.simulators.items():
        both = ok & np.isfinite(predicted)
        rho[name] = float(np.asarray(spearmanr(land.truth[both], predicted[both]))[0])
    assert rho["good"] >= 0.9 > rho["biased"] >= 0.7 > rho["good+80"]
    assert land.default is not None
    assert land.space.feasible.index(land.default) is not None
    limited = landscape(msgspec.structs.replace(job, space=SpaceLimits(fix={"tp": 1, "cp": 1, "a40_layers": 0})))
    for i in range(0, len(limited.truth), 997):  # a configuration is worth the same in every space
        row = land.space.feasible.index(limited.space.feasible.configuration(i))
        assert land.truth[row] == pytest.approx(limited.truth[i], nan_ok=True)


def bench(*arguments: str) -> subprocess.CompletedProcess[str]:
    return verbs.run("bench", *arguments)


@pytest.fixture
def table(tmp_path) -> Path:
    path = tmp_path / "kernels.csv"
    rows = [
        f"{m},{x},{y},{1 + m + (x - 2) ** 2 + (y - 3) ** 2 / 2}" for m in (0, 1) for x in range(5) for y in range(6)
    ]
    path.write_text("\n".join(["m,x,y,time_ms", *rows]) + "\n")
    return path


def test_a_run_is_kept_for_the_memory_that_it_heard_of():
    job = load_job("fixtures/jobs/llama-3.2-3b.toml")
    small = msgspec.structs.replace(job, space=SpaceLimits(fix={"a40": 0, "cp": 1, "pp": 1, "mbs": 1}))
    land = landscape(small)
    assert land.peaks is not None
    heard = land.peaks
    same, other = landscape(small), landscape(small)
    other.peaks = lambda row, c: 1.01 * heard(row, c)
    assert fingerprint(same, BenchSettings(), []) == fingerprint(land, BenchSettings(), [])
    assert fingerprint(other, BenchSettings(), []) != fingerprint(land, BenchSettings(), [])


def test_a_bound_on_memory_is_part_of_a_cpu_job_s_landscape():
    """No device's memory limits there, so no peaks are told: what breaks the bound fails in the landscape."""
    job = load_job("fixtures/jobs/smallest-cpu.toml")
    bound = msgspec.structs.replace(job.objective, constraints=["peak_memory_gib <= 30"])
    land = landscape(msgspec.structs.replace(job, objective=bound))
    row = int(np.flatnonzero(land.status == "ok")[0])
    assert cost(land.space.objective, land.measure(row, land.space.feasible.configuration(row), 0.0, 0)) is not None


def test_bench_prints_one_json_document(table):
    options = ["--table", str(table), "--metric", "time_ms", "--goal", "min", "--seeds", "2", "--budget", "40"]
    done = bench(*options, "--strategies", "autoscout,random,botorch", "--json")
    assert done.returncode == 0, done.stderr
    document = json.loads(done.stdout)
    assert [(r["strategy"], r["seed"]) for r in document["runs"]] == [
        (s, i) for s in ("autoscout", "random") for i in (0, 1)
    ]
    for entry in document["runs"]:
        assert entry["landscape"] == "kernels"
        assert entry["evaluations_to_target"] is None or entry["evaluations_to_target"] <= 40
        assert set(entry["best_at"]) == set(entry["regret_at"]) == {"10", "20", "50", "100", "200"}
        assert entry["engine_ms_per_step"] >= 0
    assert document["summary"]["pairs"][0]["low"] <= document["summary"]["pairs"][0]["high"]
    assert document["left_out"]["botorch"]


def test_nothing_outlives_a_bench_that_is_killed(table, tmp_path):
    options = ["--table", str(table), "--metric", "time_ms", "--goal", "min", "--strategies", "bayes", "--seeds", "500"]
    command = [sys.executable, "-m", "tui.cli", "bench", *options, "--budget", "60", "--out", str(tmp_path)]
    process = subprocess.Popen(command, stderr=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
    runs = tmp_path / "runs.jsonl"
    while not runs.exists():
        time.sleep(0.05)
    children = psutil.Process(process.pid).children()
    assert children
    process.kill()
    process.wait()
    _, alive = psutil.wait_procs(children, timeout=1800)
    assert alive == []


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["--metric", "time_ms", "--goal", "min", "--strategies", "autoscot"], "did you mean 'autoscout'"),
        (["--metric", "time", "--goal", "min"], "did you mean 'time_ms'"),
        (["--metric", "time_ms"], "--table needs --goal"),
        ([], "--table needs --metric and --goal"),
        (["--metric", "time_ms", "--goal", "min", "--job", "x.toml"], "give exactly one of"),
    ],
)
def test_bench_says_what_is_wrong(table, arguments, sentence):
    done = bench("--table", str(table), *arguments)
    assert done.returncode == 2
    assert sentence in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.thorough
def test_bench_shows_tables_and_curves(table):
    done = bench(
        "--table", str(table), "--metric", "time_ms", "--goal", "min", "--seeds", "2", "--strategies", "udo,ants"
    )
    assert done.returncode == 0, done.stderr
    assert "60 configurations" in done.stdout
    assert "median regret after n evaluations" in done.stdout
    assert "evaluations of udo, relative to those of each strategy (unsolved" in done.stdout


def test_what_a_landscape_of_designs_tells_counts_whatever_else_the_job_wants():
    """Only one metric is told, so neither a second objective nor a bound on another metric may be asked of it."""
    job = load_job("fixtures/jobs/mpt-70b-stack.toml")
    assert job.objective.also
    assert job.objective.constraints
    small = msgspec.structs.replace(job.space, fix={**job.space.fix, "mbs": 1, "zero": 3, "chunks": 1})
    land = landscape(msgspec.structs.replace(job, space=small), ["closed"])
    ok = land.status == "ok"
    assert 0 < ok.mean() < 1  # the budget is part of the landscape
    assert (np.isfinite(land.truth) == ok).all()
    assert (np.isfinite(land.simulators["closed"]) == ok).all()
    for row in (int(np.argmax(ok)), int(np.argmin(ok))):
        told = land.measure(row, land.space.feasible.configuration(row), 0.0, 0)
        assert (costs(land.space.objective, told) is not None) == ok[row]
