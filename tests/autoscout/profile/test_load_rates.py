"""The search for the highest request rate that keeps its limits, and what is counted by device and by dollar."""

import asyncio
import math
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from serving_bench import serving_job

from autoscout.space.explain import completed
from autoscout.targets.jobs import JobSpace, load_job
from autoscout.targets.vllm import load_plan
from autoscout.targets.vllm.first_rate import FirstRate
from autoscout.targets.vllm.load_plan import Pass
from kb.records import Cluster, Configuration, Job, Node, Objective

WORKER = Path(load_plan.__file__).parent / "worker"


def search_job(limits: list[str], **traffic: Any) -> Job:
    objective = Objective(maximize="max_rate_rps", constraints=limits)
    return msgspec.structs.replace(serving_job(**({"rate": 1.0} | traffic)), objective=objective)


class Clock:
    """Of the stand-in engines: seconds that all loads took, and requests that were answered."""

    def __init__(self) -> None:
        self.now, self.answered = 0.0, 0


def watched(requests: list[Any], records: list[dict[str, Any]], watch: Any, clock: Clock) -> float:
    """Plays what an engine would do until the watch ends it: when each answer ends, it looks."""
    ends = sorted(r["chunks"][-1] for r in records)
    over = math.inf
    began = clock.now
    for now in ends[:: max(1, len(ends) // 50)] if watch else ends[-1:]:
        clock.now = began + now
        sent = [r for r in records if r["sent"] <= now]
        seen = [
            load_watch().SentRequest(
                r["sent"], *((at if at <= now else None) for at in (r["chunks"][0], r["chunks"][-1])), r["count"]
            )
            for r in sent
        ]
        if watch and watch.ends(now, seen):
            over = now
            break
    clock.now = began + min(over, ends[-1])
    for r in records:
        r |= {"dropped": True} if r["chunks"][-1] > over else {}
    clock.answered += sum(not r.get("dropped") for r in records)
    return min(over, ends[-1])


def load_watch() -> Any:
    import load_watch  # pyright: ignore[reportMissingImports]

    return load_watch


def queue(capacity: float, seed: int, clock: Clock | None = None) -> Any:
    """A server that takes 1 / capacity seconds a request, one at a time, give or take."""
    rng = np.random.default_rng(seed)
    clock = clock or Clock()

    async def answer(
        requests: list[Any], concurrency: int, ids: bool, watch: Any = None
    ) -> tuple[float, list[dict[str, Any]]]:
        free, records = 0.0, []
        for r in requests:
            free = max(free, r.arrival_s) + rng.uniform(0.8, 1.2) / capacity
            records.append(
                {"sent": r.arrival_s, "chunks": [free], "tokens": [1] * ids, "count": 1, "asked": 4, "error": ""}
            )
        return watched(requests, records, watch, clock), records

    return answer


@pytest.mark.parametrize("start", [1.0, 40.0, 900.0])
def test_the_search_ends_near_the_highest_rate_that_keeps_the_limits(
    start: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One request takes 20 ms. Waiting 50 ms at the median of an M/D/1 queue is a load of about 0.83."""
    monkeypatch.syspath_prepend(str(WORKER))
    import driving  # pyright: ignore[reportMissingImports]

    job = search_job(["e2el_p50_ms <= 50"], rate=start, requests=400)
    plan = load_plan.plan(job)
    assert plan["arrival_s"][-1] == pytest.approx(399.0)  # of rate 1
    found = asyncio.run(driving.drive(plan, queue(50.0, 1)))
    assert 0.75 * 50 < found["max_rate"] < 0.95 * 50
    lost = min(step["rate"] for step in found["tried"] if not step["kept"])
    assert found["max_rate"] < lost <= 1.05 * found["max_rate"]
    assert sum(step["loads"] for step in found["tried"]) <= 26
    metrics = load_plan.metrics(msgspec.convert(found["passes"], list[Pass]), job)
    assert metrics["e2el_p50_ms"] <= 50


def many_at_once(places: int, seconds: float) -> Any:
    """A server that answers so many requests at a time, each in the same time."""

    async def answer(
        requests: list[Any], concurrency: int, ids: bool, watch: Any = None
    ) -> tuple[float, list[dict[str, Any]]]:
        free, records = [0.0] * places, []
        for r in requests:
            first = min(range(places), key=free.__getitem__)
            free[first] = max(free[first], r.arrival_s) + seconds
            chunks = [free[first] - seconds / 2, free[first]]
            records.append(
                {"sent": r.arrival_s, "chunks": chunks, "tokens": [1, 1], "count": 2, "asked": 4, "error": ""}
            )
        return watched(requests, records, watch, Clock()), records

    return answer


@pytest.mark.parametrize("start", [1.0, 40.0, 5000.0])
def test_a_burst_is_no_rate(start: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """128 places and answers of 5 s: 25.6 requests a second. Of loads of 200, twice as many were said to keep the
    limit: few of them had to wait."""
    monkeypatch.syspath_prepend(str(WORKER))
    import driving  # pyright: ignore[reportMissingImports]

    job = search_job(["e2el_p99_ms <= 12000"], rate=start, requests=200)
    found = asyncio.run(driving.drive(load_plan.plan(job), many_at_once(128, 5.0)))
    assert 0.85 * 25.6 < found["max_rate"] < 1.2 * 25.6


def test_a_limit_that_no_rate_keeps_says_how_near(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(WORKER))
    import driving  # pyright: ignore[reportMissingImports]

    job = search_job(["ttft_p99_ms <= 10"], requests=50)
    found = asyncio.run(driving.drive(load_plan.plan(job), queue(50.0, 1)))
    assert found["max_rate"] == 0.0
    metrics = load_plan.metrics(msgspec.convert(found["passes"], list[Pass]), job)
    said = load_plan.of_search(found, metrics)
    assert said.startswith("no request rate meets the latency limits: of requests that were alone on the server")
    assert "ttft_p99_ms 2" in said


SLOW = 0.3  # requests a second


@pytest.mark.parametrize("start", [0.05, 0.28, 5.5, 80.0])
def test_a_slow_configuration_has_a_low_rate_and_ends_in_time(start: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each load sent 200 requests, eleven minutes of one that answers 0.3 a second: no search ended in its time."""
    monkeypatch.syspath_prepend(str(WORKER))
    import driving  # pyright: ignore[reportMissingImports]

    clock = Clock()
    plan = load_plan.plan(search_job(["ttft_p99_ms <= 20000"], rate=start))
    found = asyncio.run(driving.drive(plan, queue(SLOW, 1, clock), left=lambda: 840 - clock.now))
    assert clock.now < 840
    assert 0.3 * SLOW < found["max_rate"] < SLOW
    assert "the time limit allowed loads of" in found["note"]
    metrics = load_plan.metrics(msgspec.convert(found["passes"], list[Pass]), search_job([]))
    assert found["note"] in load_plan.of_search(found, metrics)


def test_with_hardly_any_time_no_rate_is_told_that_was_not_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(WORKER))
    import driving  # pyright: ignore[reportMissingImports]

    clock = Clock()
    plan = load_plan.plan(search_job(["ttft_p99_ms <= 8000"], rate=5.0))
    found = asyncio.run(driving.drive(plan, queue(SLOW, 1, clock), left=lambda: 120 - clock.now))
    assert clock.now < 120
    assert (found["max_rate"], found["early"]) == (0.0, True)
    metrics = load_plan.metrics(msgspec.convert(found["passes"], list[Pass]), search_job([]))
    said = load_plan.of_search(found, metrics)
    assert said.startswith(
        "the time limit ended the search before a request rate met the latency limits (raise launch.timeout_s): at the"
    )


def test_limits_that_requests_break_which_meet_no_other_end_the_search(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rates were halved until the loads were spent, each of which took twice as long as the one before."""
    monkeypatch.syspath_prepend(str(WORKER))
    import driving  # pyright: ignore[reportMissingImports]

    clock = Clock()
    plan = load_plan.plan(search_job(["ttft_p99_ms <= 1000"], rate=1.0))
    found = asyncio.run(driving.drive(plan, queue(SLOW, 1, clock), left=lambda: 3600 - clock.now))
    assert found["max_rate"] == 0.0
    assert clock.now < 400


def test_a_load_ends_when_its_limits_are_surely_broken_or_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(WORKER))
    import rates  # pyright: ignore[reportMissingImports]

    async def at_once(rate: float, limit: str, requests: int = 400) -> dict[str, Any]:
        """What of a load at a rate was answered."""
        answered = queue(50.0, 1)
        loads: list[dict[str, Any]] = []

        async def measure(asked: list[Any], watch: Any) -> dict[str, Any]:
            duration, records = await answered(asked, 0, False, watch)
            loads.append({"over": watch.over, "requests": [r for r in records if not r.get("dropped")]})
            return {"duration_s": duration, "wall_s": 0.0, **loads[-1]}

        plan = load_plan.plan(search_job([limit], rate=rate, requests=requests))
        plan["search"]["loads"] = 1
        await rates.highest(plan, measure)
        return loads[0]

    lost = asyncio.run(at_once(200.0, "ttft_p99_ms <= 100"))
    assert (lost["over"], len(lost["requests"]) < 40) == ("lost", True)
    kept = asyncio.run(at_once(10.0, "ttft_p90_ms <= 100"))
    assert (kept["over"], 200 <= len(kept["requests"]) < 210) == ("kept", True)
    assert asyncio.run(at_once(10.0, "ttft_p99_ms <= 100", 200))["over"] == "", "200 are too few to be sure of"


def test_clear_cases_take_one_load_and_doubtful_ones_three(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(WORKER))
    import rates  # pyright: ignore[reportMissingImports]

    def load_of(slow: int, of: int) -> dict[str, Any]:
        requests = [
            {"sent": float(i), "chunks": [i + (0.9 if i < slow else 0.1)], "count": 1, "error": ""} for i in range(of)
        ]
        return {"duration_s": of - 0.9, "requests": requests}

    limits = [["ttft_p90_ms", 500.0]]
    assert rates.verdict([load_of(0, 100)], limits, False) is True
    assert rates.verdict([load_of(30, 100)], limits, False) is False
    assert rates.verdict([load_of(9, 100)], limits, False) is None
    assert rates.verdict([load_of(9, 100)], limits, True) is True
    assert rates.verdict([load_of(11, 100)], limits, True) is False
    failed = load_of(0, 100)
    failed["requests"][3]["error"] = "HTTP 500"
    assert rates.verdict([failed], limits, False) is False


def test_a_search_begins_where_prediction_and_session_say() -> None:
    """Each began at traffic.rate, a dozen loads from where a slow configuration's lies."""
    job = load_job(Path("fixtures/jobs/llama-3.1-8b-serve-azure.toml"))
    space = JobSpace.of_job(job)
    reference = completed(space, {"tp": 4, "dp": 1}, space.reference)
    slow = Configuration({**reference.knobs, "max_num_seqs": 8})
    first = FirstRate(job)
    usual, little = first.of(reference), first.of(slow)
    assert usual is not None
    assert little is not None
    assert little < 0.8 * usual
    first.learn(reference, 0.5 * usual)
    assert first.of(slow) == pytest.approx(0.5 * little)
    unknown = FirstRate(load_job(Path("fixtures/jobs/tiny-llama-azure-cpu.toml")))
    assert unknown.of(reference) is None


# ---- by device and by dollar ------------------------------------------------------------------------------


def test_cost_and_throughput_by_what_is_used() -> None:
    nodes = [Node(device="a100", count=8, price_per_hour=36.0), Node(device="a40", count=4, price_per_hour=4.0)]
    job = msgspec.structs.replace(serving_job(), cluster=Cluster(nodes=nodes))
    found = {"output_tokens_per_s": 12000.0}
    everything = load_plan.per_device(found, job, Configuration({"a100": 8, "a40": 4}))
    assert everything == {
        "devices": 12,
        "output_tokens_per_s_per_gpu": 1000.0,
        "usd_per_million_output_tokens": pytest.approx(0.926, 1e-3),
    }
    small = load_plan.per_device(found, job, Configuration({"a100": 0, "a40": 4}))
    assert small == {
        "devices": 4,
        "output_tokens_per_s_per_gpu": 3000.0,
        "usd_per_million_output_tokens": pytest.approx(0.0926, 1e-3),
    }
    assert "usd_per_million_output_tokens" not in load_plan.per_device(found, serving_job(), Configuration({}))
