"""What holds of what the simulators are handed: traces give their own arrivals or are refused, peaks correct the
memory model, decisions are counted."""

from pathlib import Path

import numpy as np
import pytest
from autoscout_stack import bill

from autoscout.job import requests
from autoscout.simulate import encode
from autoscout.simulate.encode import FittedColumns
from autoscout.simulate.ensemble import memory_of
from autoscout.simulate.serving import serving_device
from autoscout.simulate.training.inputs import complete
from autoscout.simulate.training.memory import ERROR, Memory
from autoscout.simulate.validation import against
from autoscout.simulate.validation.measured import MeasuredRows, read
from autoscout.targets.jobs import JobSpace, load_job
from kb.records import AutoscoutError, Measurement, Status, Traffic

JOBS = Path(__file__).parents[2] / "fixtures" / "jobs"


def test_arrivals_of_a_trace(tmp_path: Path):
    timed, plain = tmp_path / "timed.csv", tmp_path / "plain.csv"
    timed.write_text("arrival_s,input_tokens,output_tokens\n0,10,1\n0.5,20,2\n2,30,3\n")
    plain.write_text("input_tokens,output_tokens\n10,1\n20,2\n30,3\n")
    own = requests.of_traffic(Traffic(trace=str(timed)))
    assert own.arrival_s.tolist() == [0, 0.5, 2]
    assert own.input_len.tolist() == [10, 20, 30]
    assert requests.of_traffic(Traffic(trace=str(timed)), requests=2).output_len.tolist() == [1, 2]
    with pytest.raises(AutoscoutError, match=r"has no column arrival_s; give traffic\.rate or traffic\.concurrency"):
        requests.of_traffic(Traffic(trace=str(plain)))
    at_rate = requests.of_traffic(Traffic(trace=str(plain), rate=4.0))
    assert sorted(at_rate.input_len.tolist()) == [10, 20, 30]
    assert at_rate.arrival_s[[0, -1]] == pytest.approx([0, 0.5])  # two gaps of a quarter of a second in the mean
    users = requests.of_traffic(Traffic(trace=str(timed), concurrency=2, shared_prefix=5))
    assert (users.concurrency, users.shared_prefix, users.arrival_s.tolist()) == (2, 5, [0, 0, 0])
    assert requests.poisson(3.0, 1, np.random.default_rng(0)).tolist() == [0]
    assert len(requests.fixed_batch(4, 7, 9)) == 4


def test_measured_peaks_correct_the_memory_model():
    """One row of twice the prediction moves the level by half of log 2: the prior counts as a row."""
    job = load_job(JOBS / "llama-3.2-3b.toml")
    space = JobSpace.of_job(job)
    one = space.any()

    def row(status: Status = "ok", **metrics: float) -> Measurement:
        return Measurement(configuration=one, name="n", context="c", status=status, metrics=metrics)

    before = memory_of(job, space, [])
    assert before is not None
    assert before.margin == 0
    unmeasured = memory_of(job, space, [row("error", step_time_s=1.0)])
    assert unmeasured is not None
    assert unmeasured.margin == 0
    columns = {**encode.of_job(job), **encode.of_configurations(space, [one])}
    assert before.filled(columns)[0] > 1
    ran = memory_of(job, space, [row(step_time_s=1.0)])  # though it was not to fit
    assert ran is not None
    assert ran.margin == pytest.approx(-2 * ERROR)
    predicted = float(before.predict(columns).value[0])
    after = memory_of(job, space, [row(peak_memory_gib=2 * predicted)])
    assert after is not None
    fresh = Memory()
    fresh.fit(columns, np.array([2 * predicted]))
    assert after.margin == pytest.approx(fresh.margin)
    assert after.margin > 0.2


def test_decisions_are_counted():
    """13B parameters and 16 bytes each do not fit on one device, 100 M do. Of job a both kinds ran."""
    large = {"layers": np.array([2, 40, 2, 40, 2, 40.0]), "hidden": np.array([1024, 5120.0] * 3)}
    columns = {**large, "heads": 16, "seq_len": 1024, "global_batch": 8, "gpus": 8, "dp": 8, "mbs": 1, "gpu": "a100"}
    died = np.array([1.0, np.inf, 1.0, np.inf, 1.0, np.inf])
    job = np.array(["a", "a", "b", "c", "b", "c"])
    found = against._decisions(MeasuredRows("pretrain", "peak_memory_gib", columns, died, {}, job))
    assert (found.runs, found.died, found.right, found.false_fits) == (6, 3, 1.0, 0.0)
    assert found.favourites == (1, 0)
    assert [(s.least, s.most, s.runs, s.died) for s in found.calibration] == [(0.0, 0.02, 3, 0.0), (0.95, 1.0, 3, 1.0)]
    wrong = against._decisions(MeasuredRows("pretrain", "peak_memory_gib", columns, died[::-1], {}, job[::-1]))
    assert (wrong.right, wrong.false_fits) == (0.0, 0.5)
    assert wrong.favourites == (1, 1)


def test_the_first_row_outside_is_named():
    seen = FittedColumns({"pp": np.array([1, 4])})
    assert seen.why_outside({"pp": np.array([8, 1])}) == "pp 8 (seen 1 to 4)"
    assert seen.why_outside({"pp": np.array([2, 8])}) == ""


def test_what_is_refused_ends_with_exit_code_2(tmp_path: Path):
    """Wrong input is the user's to mend: exit code 2, and a sentence that names it."""
    table, plain = tmp_path / "t.csv", tmp_path / "plain.csv"
    table.write_text("model,gpu,iteration_time_s\nmine,a100,-1\n")
    plain.write_text("input_tokens,output_tokens\n10,1\n")
    for refused, words in (
        (lambda: complete({"layers": 1}), "an analytic model needs the columns hidden, heads, seq_len"),
        (
            lambda: complete({"layers": 1, "hidden": 1, "heads": 1, "seq_len": 1, "ar": "x"}),
            "column ar: 'x' is none of",
        ),
        (
            lambda: read(table),
            f"{table}: none of its 1 rows can be predicted; the table has no metric that can be predicted (iteration_",
        ),
        (lambda: bill.device("h1000"), "device 'h1000'"),
        (lambda: requests.of_traffic(Traffic(trace=str(plain))), f"{plain} has no column arrival_s"),
        (lambda: serving_device.device("h1000"), "the serving model has no constants for 'h1000'"),
    ):
        with pytest.raises(AutoscoutError) as error:
            refused()
        assert str(error.value).startswith(words)
        assert error.value.exit_code == 2
