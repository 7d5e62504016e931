"""A person's own command through every verb: tune, best, why, predict, export and its check, resume."""

import json
import math
import tempfile
import threading

import pytest
from click.testing import CliRunner

from autoscout.running import early
from autoscout.running.cluster import slots
from autoscout.running.worker import ending
from autoscout.targets.jobs import load_job
from kb import journal, store
from kb.records import Configuration, Fidelity, Measurement, Objective
from tui.cli import cli


def call(*words: str):
    done = CliRunner().invoke(cli, list(words))
    assert done.exit_code == 0, (words, done.output, done.exception)
    return done


def test_every_verb_on_ones_own_command(write, tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))  # a lock of our own on the machine
    job, kb = write(), tmp_path / "kb" / "kb.duckdb"
    given = ("--kb", str(kb))
    tuned = json.loads(call("tune", str(job), *given, "--no-tui", "--json").stdout)
    assert tuned["best"]["configuration"]["fast"] is True
    assert tuned["gain"] > 1.2
    session = tuned["session"]["session"]
    known = [m for _, m in store.measurements(kb, job=load_job(job).id, short=True)]
    assert {m.fidelity for m in known} <= {"measured", "short"}
    assert all(m.losses for m in known)
    reasons = call("why", session, *given).stdout
    assert reasons.startswith(tuned["headline"])
    assert "from the reference" in reasons
    exported = call("export", session, *given, "--check")
    assert "--fast" in exported.stdout
    assert "2 iterations were run" in exported.stderr
    assert "not valid: mbs=3" in call("explain", str(job), "mbs=3", *given).stdout
    predicted = CliRunner().invoke(cli, ["predict", str(job), "mbs=1", *given])
    assert predicted.exit_code == 0 or "are too few" in str(predicted.exception)
    assert call("tune", "--resume", session, *given, "--no-tui").stdout
    assert "gain of" in call("check", str(job), *given).stdout
    # Nothing is measured twice: another session is answered, ended-early runs too.
    again = json.loads(call("tune", str(job), *given, "--no-tui", "--json", "--profiles", "3").stdout)
    events = journal.events(store.sessions_folder(kb) / again["session"]["session"] / "journal.jsonl")
    asked = {e.configuration.id for e in events if isinstance(e, journal.ExperimentStarted) and e.purpose == "search"}
    assert not asked & {m.configuration.id for m in known}


def test_a_run_out_of_memory_keeps_what_it_lacked(write, tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setenv("END", "oom")
    job, kb = write(), tmp_path / "kb" / "kb.duckdb"
    CliRunner().invoke(cli, ["profile", str(job), "mbs=1", "--kb", str(kb)])
    known = [m for _, m in store.measurements(kb, job=load_job(job).id)]
    assert [(m.status, m.metrics) for m in known] == [("oom", {"memory_short_gib": 1.5})]


def test_a_machine_that_others_use_too_is_told_of_once(write, tmp_path, monkeypatch):
    """Every experiment waits for theirs, and each said so."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    ended = threading.Event()

    def others() -> None:
        while not ended.is_set():
            with slots.machine(lambda: None, ended.is_set):
                ended.wait(0.3)

    beside = threading.Thread(target=others)
    beside.start()
    try:
        done = call(
            "tune", str(write(("profiles = 6", "profiles = 2"))), "--kb", str(tmp_path / "kb.duckdb"), "--no-tui"
        )
    finally:
        ended.set()
        beside.join()
    (file,) = tmp_path.glob("sessions/*/journal.jsonl")
    assert sum(isinstance(e, journal.Waiting) and not e.over for e in journal.events(file)) > 2
    assert done.stderr.count("another AutoScout is measuring on this machine") == 1


def test_a_script_that_never_works_says_why(write, tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    job = write(("--mbs 2", "--mbs 2 --end silent"), ("profiles = 6", "profiles = 1"))
    done = CliRunner().invoke(cli, ["tune", str(job), "--kb", str(tmp_path / "kb.duckdb"), "--no-tui"])
    assert done.exit_code != 0
    said = f"{done.output} {done.exception}"
    assert "no line matches launch.metrics.step_time_ms; nearest: nothing worth reading" in said


@pytest.mark.parametrize(
    ("costs", "bar", "ended"),
    [
        ([1.5, 1.5, 1.5], early.Bar(1.0), True),
        ([1.5, 1.5], early.Bar(1.0), False),  # too few to say
        ([1.04, 1.04, 1.04], early.Bar(1.0, 0.001), False),  # drift may be as large
        ([1.1, 1.1, 1.1], early.Bar(1.0, 0.03), False),  # two runs of one configuration differ by so much
        ([1.1, 1.1, 1.1], early.Bar(1.0, 0.005), True),
        ([0.9, 3.0, 0.8, 3.2], early.Bar(1.0, 0.005), False),  # its own noise
        ([9.0, 9.0, 9.0], None, False),
    ],
)
def test_what_cannot_win_is_ended_and_what_may_is_not(costs, bar, ended):
    assert bool(early.hopeless(costs, bar)) is ended


def test_a_run_ends_when_its_interval_is_narrow_or_its_time_is_over():
    assert early.known_well([1.0, 1.001, 0.999, 1.0, 1.0], 5, 1.0, 8.0, None)
    assert not early.known_well([1.0, 2.0, 1.0, 2.0, 1.0], 5, 1.0, 8.0, None)
    assert early.known_well([1.0, 2.0], 5, 9.0, 8.0, None)
    assert not early.known_well([1.0], 5, 9.0, 8.0, None)


def test_a_run_ends_when_it_says_as_much_as_another_run_would():
    costs = [1.0, 1.05, 0.95, 1.0, 1.05]  # their mean is known within 4 %
    assert early.known_well(costs, 5, 1.0, 8.0, early.Bar(math.inf, 0.05))
    assert not early.known_well(costs, 5, 1.0, 8.0, early.Bar(math.inf, 0.03))
    assert not early.known_well(costs, 20, 1.0, 8.0, early.Bar(math.inf, 0.05))  # who asks for more gets them
    assert not early.known_well(
        [1.0, 1.6, 0.9, 1.0, 1.5], 5, 1.0, 8.0, early.Bar(math.inf, 0.5)
    )  # a machine that drifts
    assert not early.known_well([1.0, 1.01, 0.99], 5, 1.0, 8.0, early.Bar(math.inf, 0.05))  # too few for an interval
    assert ending.enough(costs, 10, 8.0, 0.05)
    assert not ending.enough(costs, 10, 8.0, 0.03)


@pytest.mark.parametrize(
    ("costs", "bar", "ended"),
    [
        ([1.0, 1.01], early.Bar(1.0, 0.03), True),
        ([1.0, 1.01], early.Bar(math.inf, 0.03), False),  # the reference and the final rounds
        ([1.0, 1.01], None, False),
        ([1.0, 1.05], early.Bar(1.0, 0.03), False),  # another run would say more
        ([1.0], early.Bar(1.0, 0.03), False),  # with the warm-up, three losses are compared with the reference's
    ],
)
def test_a_run_of_the_search_ends_after_two_iterations_that_agree(costs, bar, ended):
    assert bool(early.known_well(costs, 10, 1.0, 8.0, bar)) is ended
    few = {} if bar is None or bar.cost == math.inf else {"few": ending.SEARCHED}
    assert ending.enough(costs, 10, 8.0, bar.spread if bar else 0.0, **few) is ended
    assert not early.known_well(costs, 11, 1.0, 8.0, bar)  # who asks for more gets them


def test_the_bar_is_the_best_and_its_noise_that_of_repeats(tmp_path):
    def measured(knob: int, seconds: float, at: float, fidelity: Fidelity = "measured") -> Measurement:
        return Measurement(
            configuration=Configuration({"k": knob}),
            name="",
            context="",
            status="ok",
            fidelity=fidelity,
            metrics={"step_time_s": seconds},
            at=at,
        )

    objective = Objective(minimize="step_time_s")
    assert early.bar(objective, [], True) is None
    assert early.bar(objective, [measured(1, 2.0, 1), measured(2, 1.0, 1, "short")], True) == early.Bar(2.0)
    repeated = [measured(1, 1.0, 1), measured(1, 1.1, 2), measured(2, 3.0, 1)]
    found = early.bar(objective, repeated, True)
    assert found is not None
    assert (round(found.cost, 3), round(found.spread, 3)) == (1.05, 0.052)
    assert early.bar(objective, repeated, False) == early.Bar(math.inf, found.spread)
    drifts = [measured(1, seconds, at) for at, seconds in enumerate((1.0, 1.1, 1.2, 1.3, 1.4, 1.5))]
    steady = early.bar(objective, drifts, True)
    assert steady is not None
    assert steady.spread < 0.07  # one run after the other, not the first and the last
