"""`bench --paper`: what is run for which figure, and the tables that come of it."""

import pytest

from autoscout.studies.bench.job_landscape import landscape
from autoscout.studies.bench.paper_evaluation import SERVING, TRAINING, comparisons, evaluate, expert_value, job_of
from autoscout.studies.bench.paper_report import markdown
from autoscout.studies.bench.run import BenchSettings
from autoscout.targets.jobs import JobSpace


def test_every_figure_of_the_evaluation_is_run():
    figures = {c.figure for c in comparisons()}
    assert figures == {f"Figure {n}" for n in range(4, 12)}
    ks = [s for c in comparisons() if c.figure == "Figure 9" for s in c.strategies]
    assert ks == [f"paper:k={k}" for k in (0, 1, 5, 10, 20, 40)]


def test_spaces_grow_from_three_degrees_to_all_of_table_1():
    spaces = [JobSpace.of_job(job_of("qwen3-30b-a3b", scope)) for scope in ("3dp", "5dp", "full")]
    assert spaces[0].count < spaces[1].count < spaces[2].count
    assert {"ar", "distopt", "ddp_bucket", "tp_comm"} <= {k.name for k in spaces[2].knobs if len(k.values) > 1}


@pytest.mark.parametrize("name", [*TRAINING, *SERVING])
def test_every_job_has_an_expert(name):
    job = job_of(name, "3dp")
    land = landscape(job, [], name)
    value = expert_value(job, land, {"a40": 0} if "a40" in land.space.knob else {})
    assert land.optimum <= value < 10 * land.optimum


@pytest.mark.thorough
def test_a_figure_is_a_table_with_the_paper_s_numbers(tmp_path):
    settings = BenchSettings(budget=12)
    results = evaluate(1, settings, tmp_path, ["9"])
    report = markdown(results, "autoscout bench --paper --figures 9")
    assert "Figure 9: trees in the tournament" in report
    assert "| paper:k=40, full, linear |" in report
    again = evaluate(1, settings, tmp_path, ["9"])
    assert again.runs == results.runs  # from the folder, to the millisecond
