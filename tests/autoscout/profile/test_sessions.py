"""Sessions as traffic: what goes on from what, who waits for whom, and that a real cache finds it again."""

import sys
from pathlib import Path

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from serving_bench import needs_vllm, serving_job

from autoscout.job.sessions import longest, talks
from autoscout.job.trace import BLOCK, lengths
from autoscout.simulate.serving.simulator import ServingSimulator
from autoscout.targets.jobs import JobSpace, load_job, profiler_of
from autoscout.targets.vllm import load_plan
from kb.records import AutoscoutError, Job, Sessions, Traffic

sys.path.insert(0, "autoscout/targets/vllm/worker")
import driving  # type: ignore[import-not-found]
import prompts  # type: ignore[import-not-found]

AGENTS = Sessions(turns=[1, 3, 5], groups=2, sub_calls=2, think_s=0.5)


def job(**changes) -> Job:
    usual = {"concurrency": 3, "input_len": [8, 16, 24], "output_len": 4, "shared_prefix": 32, "sessions": AGENTS}
    return serving_job(**{**usual, **changes})


@given(st.integers(1, 6), st.integers(0, 3), st.integers(1, 4), st.integers(1, 60))
def test_every_prompt_goes_on_from_all_that_was_said(turns: int, sub_calls: int, groups: int, count: int) -> None:
    traffic = Traffic(concurrency=2, input_len=[4, 12], output_len=[1, 6], shared_prefix=10)
    sessions = Sessions(turns=turns, groups=groups, sub_calls=sub_calls)
    found = talks(traffic, sessions, count, np.random.default_rng(0))
    assert len(found) >= count
    assert len(found) % (turns + (turns - 1) * sub_calls) == 0  # whole sessions
    for i, on in enumerate(found.on.tolist()):
        if on < 0:
            assert found.input_len[i] == traffic.shared_prefix + found.own[i]
        else:
            assert on < i
            assert found.session[on] == found.session[i]
            assert found.stage[on] < found.stage[i]
            assert found.input_len[i] == found.input_len[on] + found.output_len[on] + found.own[i]
    assert found.input_len.max() <= longest(traffic, sessions)


def test_an_engine_is_made_for_the_longest_session() -> None:
    whole = job()
    inputs, outputs = lengths(whole)
    assert max(inputs) == 32 + 5 * 24 + 4 * 4
    attributes = JobSpace.of_job(whole).attributes
    assert attributes["longest"] == max(inputs) + max(outputs)
    assert max(load_plan.plan(whole)["input_len"]) <= max(inputs)
    assert attributes["shares"]


def played(requests: list, concurrency: int) -> list[tuple[float, int]]:
    """(when, which) as an engine that answers each request in one second sends them."""
    order, sent, running = driving.DriveOrder(requests, concurrency), [], {}
    now = 0.0
    while order.left or running:
        while (due := order.due(now)) is not None:
            sent.append((now, due[0]))
            running[due[0]] = now + 1.0
        now = min([*running.values()]) if running else order.next_at()
        for i in [i for i, end in running.items() if end <= now]:
            del running[i]
            order.ended(i, now)
    return sent


@pytest.mark.parametrize("load", [{"concurrency": 3}, {"rate": 2.0}])
def test_a_stage_waits_for_the_one_before_and_a_user_for_their_session(load: dict) -> None:
    plan = load_plan.plan(job(**load, requests=30))
    requests = prompts.of_pass(plan, 0)
    sent = played(requests, plan["concurrency"])
    assert sorted(i for _, i in sent) == list(range(len(requests)))
    at = {i: when for when, i in sent}
    for i, request in enumerate(requests):
        if request.on >= 0:
            before = [j for j, r in enumerate(requests) if r.session == request.session and r.stage < request.stage]
            assert at[i] >= max(at[j] for j in before) + 1.0 + request.think_s - 1e-9
    if plan["concurrency"]:
        spans = {}
        for i, request in enumerate(requests):
            start, end = spans.get(request.session, (1e9, 0.0))
            spans[request.session] = (min(start, at[i]), max(end, at[i] + 1.0))
        busy = [sum(start <= t < end for start, end in spans.values()) for t in np.arange(0, max(at.values()), 0.25)]
        assert max(busy) == 3


def test_requests_of_no_session_are_sent_as_ever() -> None:
    plan = load_plan.plan(serving_job(concurrency=2, requests=6))
    assert [i for _, i in played(prompts.of_pass(plan, 0), 2)] == [0, 1, 2, 3, 4, 5]
    assert "talks" not in plan


def test_sessions_are_another_workload_and_old_ones_keep_their_ids() -> None:
    plain = serving_job()
    assert job().id != msgspec.structs.replace(job(), traffic=msgspec.structs.replace(job().traffic, sessions=None)).id
    assert "sessions" not in msgspec.json.encode(plain.traffic).decode()


def test_a_trace_of_hashes_says_what_prompts_have_in_common(tmp_path: Path) -> None:
    trace = tmp_path / "trace.jsonl"
    trace.write_text(
        '{"timestamp": 0, "input_length": 1100, "output_length": 5, "hash_ids": [1, 2, 3]}\n'
        '{"timestamp": 1500, "input_length": 1030, "output_length": 7, "hash_ids": [1, 2]}\n'
    )
    traced = serving_job(trace=str(trace), concurrency=0, shared_prefix=0)
    plan = load_plan.plan(
        msgspec.structs.replace(traced, launch=msgspec.structs.replace(traced.launch, measure_s=10.0))
    )
    one, other = prompts.of_pass(plan, 0)
    assert (len(one.prompt), len(other.prompt)) == (1100, 1030)
    assert one.prompt[: 2 * BLOCK] == other.prompt[: 2 * BLOCK]
    assert one.prompt[2 * BLOCK : 1030] != other.prompt[2 * BLOCK :]
    assert plan["arrival_s"] == [0.0, 1.5]
    assert JobSpace.of_job(traced).attributes["shares"]
    trace.write_text('{"timestamp": 0, "input_length": 100, "output_length": 5, "hash_ids": [1, 2, 3]}\n')
    with pytest.raises(AutoscoutError, match=r"line 1: input_length 100, output_length 5 and 3 hash_ids"):
        load_plan.plan(traced)


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("turns = 0", "traffic.sessions.turns = 0 must be at least 1"),
        (
            "turns = 2\ngroups = 3",
            r"the sessions of a group share a prefix \(traffic.sessions.groups\); set its length in traffic.shared",
        ),
        ("turn = 2", "the key traffic.sessions.turn is unknown; did you mean 'turns'"),
    ],
)
def test_what_is_wrong_is_one_sentence(line: str, said: str, tmp_path: Path) -> None:
    file = tmp_path / "job.toml"
    text = Path("fixtures/jobs/tiny-llama-serve-cpu.toml").read_text()
    head, rest = text.split("[cluster]")
    head = "\n".join(x for x in head.splitlines() if not x.startswith("shared_prefix"))
    file.write_text(f"{head}\n[traffic.sessions]\n{line}\n[cluster]{rest}")
    with pytest.raises(AutoscoutError, match=said) as refused:
        load_job(file)
    assert refused.value.exit_code == 2


def test_the_serving_model_knows_them() -> None:
    """It refused what a session says; conversations are simulated with the blocks that they share."""
    columns = {"layers": 2, "hidden": 8, "heads": 2, "vocab": 9, "gpu": "h100", "traffic": job().traffic}
    assert ServingSimulator("output_tokens_per_s").applies(columns) == ""


@pytest.mark.engine
@needs_vllm
def test_a_real_cache_finds_again_what_was_said(tmp_path: Path) -> None:
    """On one CPU rank, of which the processor's time is told: half of it is prompts that the cache had."""
    whole = job(input_len=48, output_len=8, shared_prefix=256, sessions=Sessions(turns=4), requests=16, iterations=2)
    space, profiler = JobSpace.of_job(whole), profiler_of(whole)
    base = space.reference.knobs
    first = {}
    try:
        for on in (True, False):
            found = space.nearest({**base, "prefix_caching": on}, firm={"prefix_caching": on})
            assert found is not None
            measured = profiler.run(found, space.name(found), tmp_path / str(on))
            assert measured.status == "ok", measured.evidence
            first[on] = measured
    finally:
        profiler.close()
    assert first[True].losses == first[False].losses
    assert first[True].metrics["ttft_mean_ms"] * 1.5 < first[False].metrics["ttft_mean_ms"]
