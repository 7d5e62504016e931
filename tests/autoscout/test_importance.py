"""Where the gain comes from: a path of valid configurations from the default to the best, and shares of variance."""

import math
from pathlib import Path

import msgspec
import numpy as np
import pytest

from autoscout.targets.jobs import JobSpace, load_job
from autoscout.tuning.importance import _effects, importance
from kb import journal as journals
from kb.journal import Confirmed, ExperimentEnded
from kb.records import Configuration, Measurement
from tui.draw.comparing import ablation

JOB = load_job("fixtures/jobs/smallest-cpu.toml")
SPACE = JobSpace.of_job(JOB)
DEFAULT = SPACE.reference
ROWS = [
    e.measurement
    for e in journals.events(Path("fixtures/recorded/smallest-cpu.jsonl"))
    if isinstance(e, ExperimentEnded)
]


def measured(configuration: Configuration, seconds: float) -> Measurement:
    return Measurement(
        configuration=configuration,
        name=SPACE.name(configuration),
        context="",
        status="ok",
        metrics={"step_time_s": seconds},
    )


def path(found, default: Configuration) -> list[Configuration]:
    here, walked = default, []
    for step in found.steps[1:]:
        changed = {**here.knobs, **dict(zip(step.knobs, step.after, strict=True))}
        here = Configuration({name: value for name, value in changed.items() if value is not None})
        walked.append(here)
    return walked


@pytest.mark.thorough
def test_the_path_is_valid_ends_at_the_best_and_its_gains_multiply_to_the_whole():
    found = importance(JOB, SPACE, ROWS, DEFAULT)
    walked = path(found, DEFAULT)
    assert all(SPACE.is_valid(c) for c in walked)
    gains = [step.gain for step in found.steps if step.gain is not None]
    values = [step.value or math.nan for step in found.steps]
    assert math.prod(gains) == pytest.approx(values[0] / values[-1])
    assert found.steps[-1].measured
    assert values[-1] == min(v for v, step in zip(values, found.steps, strict=True) if step.measured)


def test_what_was_not_measured_is_called_predicted():
    """Only the two ends were measured, and they differ in more than one knob."""
    other = max(
        (c for c in SPACE.configurations() if c.knobs.get("pp") == DEFAULT.knobs.get("pp")),
        key=lambda c: (sum(c.knobs.get(k) != DEFAULT.knobs.get(k) for k in {**c.knobs, **DEFAULT.knobs}), c.id),
    )
    found = importance(JOB, SPACE, [measured(DEFAULT, 1.0), measured(other, 0.5)], DEFAULT)
    assert path(found, DEFAULT)[-1] == other
    assert found.steps[0].measured
    assert found.steps[-1].measured
    assert not any(step.measured for step in found.steps[1:-1])


def test_a_knob_that_alone_decides_has_the_whole_variance():
    """Measured times that depend on the micro batch only."""
    rows = [measured(m.configuration, 1.0 / float(m.configuration.knobs["mbs"])) for m in ROWS]
    found = importance(JOB, SPACE, rows, DEFAULT)
    assert next(iter(found.effects)) == "mbs"
    assert found.effects["mbs"] > 0.7


def test_nothing_that_ran_has_no_path():
    assert importance(JOB, SPACE, [], DEFAULT).steps == []


def test_what_nothing_predicts_is_one_step():
    """Its steps were nan: no simulator has constants for serving on CPUs, and two rows fit none."""
    job = load_job("fixtures/jobs/tiny-llama-serve-cpu.toml")
    space = JobSpace.of_job(job)
    best = space.nearest({**space.reference.knobs, "block_size": 32, "max_num_batched_tokens": 512})
    assert best is not None
    rows = [
        Measurement(
            configuration=c, name="", context="", status="ok", metrics={"output_tokens_per_s": rate, "ttft_p99_ms": 1.0}
        )
        for c, rate in ((space.reference, 100.0), (best, 150.0))
    ]
    found = importance(job, space, rows, space.reference)
    assert [(set(step.knobs), step.measured, step.value) for step in found.steps] == [
        (set(), True, 100.0),
        ({"block_size", "max_num_batched_tokens"}, True, 150.0),
    ]
    assert found.steps[1].gain == pytest.approx(1.5)


def test_predictions_that_are_all_the_same_give_no_knob_a_share():
    """Of rounding errors each knob, even one of a single value, had 100 %."""

    class Same:
        def predictor(self):
            return lambda codes: np.full(len(codes), 7.7)

    assert _effects(SPACE, Same()) == {}  # type: ignore[arg-type]


def confirmed(winner: Configuration, value: float, over: Configuration, at: float) -> Confirmed:
    return Confirmed(
        winner=winner,
        name=SPACE.name(winner),
        value=value,
        default_name=SPACE.name(over),
        default_value=at,
        gain=at / value,
        low=None,
        high=None,
        pairs=2,
    )


def test_the_ends_are_what_the_final_rounds_told():
    """`best` told those, and `why` the medians of all runs, from hours in which the machine was slower."""
    other = next(c for c in SPACE.configurations() if c != DEFAULT)
    rows = [measured(DEFAULT, 1.5), measured(other, 0.9)]
    found = importance(JOB, SPACE, rows, DEFAULT, confirmed(other, 0.5, DEFAULT, 1.0))
    assert (found.steps[0].value, found.steps[-1].value) == (1.0, 0.5)
    assert math.prod(step.gain for step in found.steps if step.gain is not None) == pytest.approx(2.0)


def test_a_default_that_did_not_run_is_not_where_the_gain_begins():
    """It was nan; a gain is over the recipe that ran."""
    recipe, best = [c for c in SPACE.configurations() if c != DEFAULT][:2]
    failed = msgspec.structs.replace(measured(DEFAULT, 1.0), status="oom", metrics={})
    rows = [failed, measured(recipe, 1.0), measured(best, 0.5)]
    found = importance(JOB, SPACE, rows, DEFAULT, confirmed(best, 0.5, recipe, 1.0))
    assert (found.steps[0].value, found.steps[0].measured, path(found, recipe)[-1]) == (1.0, True, best)


def test_what_did_not_run_and_is_not_predicted_has_no_number():
    job = load_job("fixtures/jobs/tiny-llama-serve-cpu.toml")
    space = JobSpace.of_job(job)
    best = next(c for c in space.configurations() if c != space.reference)
    rows = [msgspec.structs.replace(measured(best, 1.0), metrics={"output_tokens_per_s": 150.0, "ttft_p99_ms": 1.0})]
    found = importance(job, space, rows, space.reference)
    assert [(step.value, step.gain) for step in found.steps] == [(None, None), (150.0, None)]
    told = ablation(msgspec.to_builtins(found), 100, False).plain
    assert "it did not run" in told
    assert "nan" not in told


def test_a_step_of_many_knobs_is_told_whole():
    names = [f"a_long_name_{i}" for i in range(8)]
    step = {"knobs": names, "before": [False] * 8, "after": [True] * 8, "value": 0.5, "measured": True, "gain": 2.0}
    first = {"knobs": [], "before": [], "after": [], "value": 1.0, "measured": True, "gain": None}
    told = ablation({"steps": [first, step], "error": 0.1}, 100, False).plain
    assert all(f"{name} off → on" in told for name in names)
    assert max(map(len, told.splitlines())) <= 100
