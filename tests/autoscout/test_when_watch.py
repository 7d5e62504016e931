"""`when --watch`: what it says once, how often it errs, and what it writes for whoever collects it."""

import math
from pathlib import Path

import msgspec
import numpy as np
import pytest
from prometheus_client.openmetrics.parser import text_string_to_metric_families
from test_served_load import Server

from autoscout.deploy.moved import BandWatch
from autoscout.deploy.watch_load import CALM, EVERY_S, LogWatch, ServerWatch
from autoscout.deploy.when import Winner
from autoscout.importing.served_load import reading
from autoscout.targets.jobs import JobSpace, load_job
from kb.records import Measurement
from tui.printing.openmetrics import openmetrics, written

BAND = math.log(1.2)


def winner(path: str, **traffic: object) -> Winner:
    """The reference of a job, for a step of 0.1 s."""
    job = load_job(path)
    job = msgspec.structs.replace(job, traffic=msgspec.structs.replace(job.traffic, **traffic))
    first = JobSpace.of_job(job).reference
    run = Measurement(configuration=first, name="w", context="", status="ok", metrics={"step_time_s": 0.1})
    return Winner(job=job, name="w", configuration=first, measured=[run], spent_s=600.0)


def test_false_alarms_are_as_rare_as_is_said_at_the_edge_of_the_band():
    """Each stream's mean, given the past, is at the edge, where alarms are likeliest; one's noise comes in bursts."""
    rng, runs, calm = np.random.default_rng(51), [], 50
    for _ in range(60):
        moved, burst = BandWatch(["a", "b"], BAND, calm), 0.1
        while moved.seen < 6 * calm:
            burst = rng.choice([0.1, 0.6]) if rng.random() < 0.05 else burst
            if moved.see({"a": BAND + burst * rng.choice([-1.0, 1.0]), "b": 0.5 * rng.standard_normal() - BAND}):
                break
        runs.append(moved.seen)
    # Means of at most 6 `calm` each, so a mean over 60 runs of a law that meets the bound lies above 0.8 of it.
    assert np.mean(runs) > 0.8 * calm


def test_a_doubled_load_is_told_within_ten_minutes_and_since_when():
    rng, moved = np.random.default_rng(5), BandWatch(["rate", "tokens"], BAND, CALM)
    for _ in range(300):
        assert not moved.see({"rate": 0.2 * rng.standard_normal(), "tokens": 0.2 * rng.standard_normal()})
    alarm = next(
        i
        for i in range(1000)
        if moved.see({"rate": 0.2 * rng.standard_normal(), "tokens": math.log(2) + 0.2 * rng.standard_normal()})
    )
    assert alarm * EVERY_S < 600
    assert abs(moved.since - 300) <= 5


def test_a_load_that_is_a_seventh_is_told_in_half_the_readings_of_one_that_is_a_half():
    """The trace of code has a seventh of the answers' tokens of that of conversations."""

    def readings(log: float) -> int:
        moved = BandWatch(["rate", "input", "output"], BAND, CALM)
        return next(i for i in range(1, 1000) if moved.see({"rate": 0.0, "input": 0.0, "output": log}))

    assert readings(-math.log(7)) <= 17
    assert readings(-math.log(7)) < 0.55 * readings(-math.log(2))


def test_a_server_whose_load_changes_is_told_of_once_and_its_restart_is_no_change(tmp_path: Path):
    server, now = Server(), 0.0
    watch = ServerWatch(
        winner("fixtures/jobs/llama-3-8b-serve.toml", input_len=96, output_len=24), tmp_path / "kb.duckdb", 60.0
    )
    told = []

    def minutes(count: float, prompt: int) -> None:
        nonlocal now
        for _ in range(round(count * 60 / EVERY_S)):
            server.serve([prompt] * 30, [24] * 30)
            now += EVERY_S
            if found := watch.see(reading(server.read(), "here"), now):
                told.append((now, found))

    minutes(30, 96)
    assert [found.kind for _, found in told] == ["still right"]
    server = Server()
    minutes(30, 96)
    assert (len(told), watch.restarts) == (1, 1)
    minutes(30, 192)
    assert len(told) == 2
    at, found = told[1]
    assert 3600 < at < 3600 + 600
    assert found.kind != "still right"
    assert found.changes[0].now == pytest.approx(192, rel=0.02)
    minutes(30, 96)
    assert told[-1][1].kind == "still right"
    assert (len(told), watch.changes) == (3, 2)
    families = {f.name: f for f in text_string_to_metric_families(openmetrics(watch, "s").decode())}
    states = {s.labels["autoscout_when_answer"]: s.value for s in families["autoscout_when_answer"].samples}
    assert states == {"still right": 1.0, "probably not": 0.0, "not known": 0.0}
    assert families["autoscout_when_changes"].samples[0].value == 2
    assert families["autoscout_when_restarts"].samples[0].value == 1
    assert b"_created" not in openmetrics(watch, "s")
    written(watch, "s", tmp_path / "when.prom")
    assert [path.name for path in tmp_path.glob("when*")] == ["when.prom"]


def test_steps_of_a_log_are_told_of_when_they_slow_down_and_a_new_log_is_no_news():
    rng = np.random.default_rng(2)
    watch = LogWatch(winner("fixtures/jobs/smallest-cpu.toml"))
    log = list(0.1 * np.exp(0.02 * rng.standard_normal(2000)))
    told = [watch.see(log[:n]) for n in range(10, 2001, 10)]
    assert [found.kind for found in told if found] == ["still right"]
    log = log[:500]
    assert watch.see(log) is None
    assert watch.restarts == 1
    slow = [*log, *(0.112 * np.exp(0.02 * rng.standard_normal(400)))]
    told = [found for n in range(510, 901, 10) if (found := watch.see(slow[:n]))]
    assert len(told) == 1
    assert told[0].kind == "probably not"
    assert told[0].changes[0].now == pytest.approx(0.112, rel=0.01)
