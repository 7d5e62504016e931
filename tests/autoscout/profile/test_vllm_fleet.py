"""Fleets on one clock: vLLM's own engines, dealt requests as a router deals them. With round times of steps, each does
what it would do alone."""

from typing import Any

import msgspec
import pytest
import verbs
from serving_bench import PYTHON, needs_vllm
from test_vllm_shadow import KNOBS, gpu_job, question

from autoscout.simulate.serving.fleet_router import EngineLoad, FleetRouter, beginnings
from autoscout.simulate.shadow.served import EngineCounts, ServedTrace
from autoscout.targets.tracing import ShadowAsked
from autoscout.targets.vllm import fleet_servers, load_plan
from autoscout.targets.vllm import serving_shadow as shadows
from kb.records import AutoscoutError, Configuration, Sessions

engine = [pytest.mark.engine, needs_vllm, pytest.mark.timeout(400)]
OPEN = {"rate": 20.0, "requests": 40, "input_len": [20, 90, 150], "output_len": [4, 30, 60], "shared_prefix": 0}
TALKS = {
    "rate": 4.0,
    "requests": 36,
    "input_len": 40,
    "output_len": 8,
    "sessions": Sessions(turns=4, think_s=0.2),
}


def asked(load: dict[str, Any], dp: int, router: str, lose: tuple[tuple[float, int], ...] = ()) -> dict[str, Any]:
    found = question(load, router=router) | {"lose": lose}
    found["groups"][0]["count"] = dp
    return found


def asked_apart(
    load: dict[str, Any], readers: int, dp: int, link: tuple[float, float], blocks: int = 1000
) -> dict[str, Any]:
    found = question(load, blocks, prefill=readers, prefill_tp=1)
    for group, count in zip(found["groups"], (readers, dp), strict=True):
        group |= {"count": count, "link": link}
    return found


def every_second(asked: dict[str, Any]) -> dict[str, Any]:
    lists = ("input_len", "output_len", "arrival_s")
    return {**asked, "plan": asked["plan"] | {name: asked["plan"][name][::2] for name in lists}}


ASKED = {
    "in turn": asked(OPEN, 2, "round_robin"),
    "half of it": every_second(asked(OPEN, 1, "engine")),
    "talks in turn": asked(TALKS, 3, "round_robin"),
    "talks kept": asked(TALKS, 3, "consistent_hash"),
    "talks found": asked(TALKS, 3, "cache_aware"),
    "one lost": asked(OPEN, 2, "engine", ((0.5, 1),)),
    "none lost": asked(OPEN, 2, "engine"),
    "apart": asked_apart({**OPEN, "rate": 2.0}, 1, 1, link=(0.5, 0.001)),
    "starved": asked_apart({**OPEN, "rate": 200.0, "input_len": 600, "output_len": 4}, 1, 2, link=(0.0, 0.0)),
    "short of blocks": asked_apart(OPEN, 1, 1, link=(0.01, 0.0), blocks=20),
    "a giant": asked({**OPEN, "rate": 40.0, "input_len": [20] * 30 + [3000]}, 2, "engine"),
}


CROWD = {**OPEN, "rate": 40.0, "requests": 80, "input_len": [20, 90, 300], "output_len": [4, 60, 333]}
BOTH_WAYS = {
    f"{name}, {'' if overlapped else 'not '}overlapped": asked(CROWD, 2, router) | {"overlapped": overlapped}
    for name, router in (("in turn", "round_robin"), ("least load", "engine"), ("prefixes", "cache_aware"))
    for overlapped in (False, True)
} | {name: ASKED[name] for name in ("talks found", "one lost", "a giant", "short of blocks")}
for each in BOTH_WAYS.values():
    for group in each["groups"] if "overlapped" in each else ():
        group["arguments"]["async_scheduling"] = each["overlapped"]


@pytest.fixture(scope="module")
def told() -> dict[str, ServedTrace]:
    return dict(zip(ASKED, shadows.ask(list(ASKED.values()), [str(PYTHON)], 300.0), strict=True))


def requests(said: ServedTrace) -> list[load_plan.TimedRequest]:
    assert said.verdict == "starts", said.message
    return msgspec.convert(said.passes[-1]["requests"], list[load_plan.TimedRequest])


class TestOfAFleet:
    pytestmark = engine

    def test_steps_without_the_scheduler_change_nothing(self) -> None:
        """Where nothing is to be decided, tokens are scheduled many steps at a time. All moments and counts are, to the
        last digit, those of a scheduler that runs in each step."""
        questions = [{**q, "each_step": each_step} for q in BOTH_WAYS.values() for each_step in (False, True)]
        found = iter(shadows.ask(questions, [str(PYTHON)], 300.0))
        for name, (fast, whole) in zip(BOTH_WAYS, zip(found, found, strict=True), strict=True):
            assert requests(fast) == requests(whole), name
            counts = [msgspec.structs.replace(e, glided=0) for e in fast.engines]
            assert counts == [msgspec.structs.replace(e, glided=0) for e in whole.engines], name
            assert not any(e.glided for e in whole.engines), name
            if "overlapped" in name:
                assert all(2 * e.glided > e.steps for e in fast.engines), name

    def test_an_engine_does_what_it_does_alone(self, told: dict[str, ServedTrace]) -> None:
        """Dealt in turn, the first engine has every second request: alone with those it is at each moment where it is
        in the fleet."""
        own = [r for r in requests(told["in turn"]) if r.engine == 0]
        alone = requests(told["half of it"])
        assert [r.chunks for r in own] == [pytest.approx(r.chunks) for r in alone]
        assert told["in turn"].engines[0].steps == told["half of it"].engines[0].steps
        assert told["in turn"].engines[1].steps > 0

    def test_sessions_find_again_what_their_engine_has_read(self, told: dict[str, ServedTrace]) -> None:
        placed: dict[int, set[int]] = {}
        talks = ASKED["talks kept"]["plan"]["talks"]["session"]
        for session, request in zip(talks, requests(told["talks kept"]), strict=True):
            placed.setdefault(session, set()).add(request.engine)
        assert {len(engines) for engines in placed.values()} == {1}
        cached = {name: sum(e.cached for e in told[name].engines) for name in told}
        assert cached["talks kept"] > 1.5 * cached["talks in turn"]
        assert cached["talks found"] > 1.5 * cached["talks in turn"]

    def test_a_lost_engine_answers_nothing_more(self, told: dict[str, ServedTrace]) -> None:
        """What it had said nothing of goes to the other one, whose users wait longer; of what it had begun to say the
        user sees a failure."""
        found = requests(told["one lost"])
        assert len(found) == OPEN["requests"]
        assert [e.lost for e in told["one lost"].engines] == [False, True]
        failed = [r for r in found if r.error]
        assert failed
        assert all(r.error == "engine 1 was lost" and r.sent < 0.5 for r in failed)
        assert all(r.chunks[-1] <= 0.5 for r in found if r.engine == 1)
        assert all(len(r.chunks) == r.count for r in found if not r.error)
        assert max(r.chunks[-1] - r.sent for r in found if not r.error) > max(
            r.chunks[-1] - r.sent for r in requests(told["none lost"])
        )

    def test_one_giant_request_keeps_one_engine_only(self, told: dict[str, ServedTrace]) -> None:
        found = requests(told["a giant"])
        assert len(found) == OPEN["requests"]
        assert all(r.count and not r.error for r in found)
        giant = max(found, key=lambda r: r.asked)
        beside = [r for r in found if r is not giant and giant.sent < r.sent < giant.chunks[0]]
        assert {r.engine for r in beside} - {giant.engine}

    def test_prompts_are_read_here_and_answered_there(self, told: dict[str, ServedTrace]) -> None:
        """A prompt in steps of 64 tokens, of 14 ms each; half a second and a millisecond for each of its tokens on the
        way; then a step that computes its last token again."""
        reads, answers = told["apart"].engines
        assert (reads.role, answers.role) == ("reads", "answers")
        assert reads.begun == answers.begun == OPEN["requests"]
        first = min(requests(told["apart"]), key=lambda r: r.sent)
        steps = -(-first.asked // 64)
        least = steps * 0.014 + 0.5 + 0.001 * first.asked + 0.014
        assert first.chunks[0] - first.sent == pytest.approx(least)
        assert answers.received == sum(r.asked for r in requests(told["apart"]))
        assert answers.cached == 0
        assert {r.engine for r in requests(told["apart"])} == {1}

    def test_who_starves_whom_is_said(self, told: dict[str, ServedTrace]) -> None:
        assert "are idle, because the engines that read prompts" in shadows.starved(told["starved"])
        assert shadows.starved(told["apart"]).startswith("a prompt waits")
        assert shadows.starved(told["in turn"]) == ""

    def test_blocks_are_held_until_the_cache_was_sent(self, told: dict[str, ServedTrace]) -> None:
        """Twenty blocks of 16 tokens, for prompts of up to 150: all are answered, one after the other."""
        found = requests(told["short of blocks"])
        assert len(found) == OPEN["requests"]
        assert all(not r.error and r.count for r in found)

    def test_the_engines_are_told_one_by_one(self, tmp_path: Any) -> None:
        of = gpu_job(**OPEN)
        found = shadows.shadow(ShadowAsked(of, Configuration(KNOBS), "a", None, 300.0, losses=[(0.5, 1)]))
        assert [share.number for share in found.each] == [0, 1]
        assert sum(share.requests for share in found.each) == found.requests == OPEN["requests"]
        worst = max(found.each, key=lambda share: share.e2el_p99_ms)
        assert found.slowest == worst.number


class TestWithoutTheEngine:
    def test_an_engine_that_the_router_leaves_idle_is_named(self) -> None:
        def dealt(*begun: int, lost: int = -1) -> str:
            each = [
                EngineCounts(
                    steps=9,
                    preemptions=0,
                    asked=9,
                    cached=0,
                    most_running=1,
                    busy=0.5,
                    begun=n,
                    waited=0.2 * n,
                    lost=i == lost,
                )
                for i, n in enumerate(begun)
            ]
            return shadows.starved(ServedTrace(verdict="starts", engines=each))

        assert dealt(40, 0) == (
            "the router starves engine 1: it gets 0 of 40 requests (an even share is 20), "
            "and the requests of engine 0 wait 200 ms on average"
        )
        assert "engine 2" in dealt(20, 15, 5)
        assert dealt(20, 10, 10) == dealt(40) == dealt(40, 3, lost=1) == ""

    def test_engines_that_are_not_there_cannot_be_lost(self) -> None:
        with pytest.raises(AutoscoutError, match="--lose 2: the configuration has the engines 0 to 1"):
            shadows.question_of(gpu_job(), Configuration(KNOBS), [(1.0, 2)])
        with pytest.raises(
            AutoscoutError, match="--lose would end all 2 engines of one kind, but at least one engine that"
        ):
            shadows.question_of(gpu_job(), Configuration(KNOBS), [(1.0, 0), (2.0, 1)])

    @pytest.mark.parametrize("text", ["1", "1@", "@3", "1@-2", "-1@3", "1@inf", "1@nan", "one@3"])
    def test_losses_that_are_none(self, text: str) -> None:
        said = verbs.run("shadow", "fixtures/jobs/llama-3-8b-serve.toml", "--lose", text)
        assert said.returncode == 2
        assert f"--lose {text}: write the engine's number and the second, such as 1@30" in said.stderr

    def test_other_targets_have_no_engines_to_lose(self) -> None:
        said = verbs.run("shadow", "fixtures/jobs/tiny-moe-cpu.toml", "--lose", "1@3")
        assert said.returncode == 2
        assert "--lose ends engines of a server" in said.stderr


class TestOfRouters:
    def dealt(self, name: str, loads: list[tuple[int, int, float]], prompts: list[list[int]], sessions: list[int]):
        """Where requests go while the engines' loads stay: (in flight, waiting, used)."""
        router = FleetRouter(fleet_servers.policy(Configuration({"router": name})), len(loads))
        there = [EngineLoad(i, *load) for i, load in enumerate(loads)]
        begun = [beginnings(p, router.block) if router.block else [] for p in prompts]
        return [router.pick(there, b, s) for b, s in zip(begun, sessions, strict=True)], router

    def test_in_turn(self) -> None:
        dealt, _ = self.dealt("round_robin", [(0, 0, 0.0), (9, 9, 1.0), (0, 0, 0.0)], [[1]] * 6, [-1] * 6)
        assert dealt == [0, 1, 2, 0, 1, 2]

    def test_the_least_loaded_and_alike_ones_in_turn(self) -> None:
        assert self.dealt("engine", [(2, 0, 0.0), (1, 0, 0.0)], [[1]] * 3, [-1] * 3)[0] == [1, 1, 1]
        assert self.dealt("engine", [(1, 0, 0.0)] * 3, [[1]] * 4, [-1] * 4)[0] == [0, 1, 2, 0]

    def test_a_queue_before_a_full_cache_counts_more_often(self) -> None:
        """2 of 3 waiting for a full cache are as many as 3 + 2 × 6 × 0.5 = 9."""
        assert self.dealt("engine", [(3, 2, 1.0), (8, 0, 0.2)], [[1]], [-1])[0] == [1]
        assert self.dealt("engine", [(3, 2, 0.5), (8, 0, 0.2)], [[1]], [-1])[0] == [0]

    def test_two_choices_never_take_the_fullest_of_three(self) -> None:
        dealt, router = self.dealt("power_of_two", [(9, 0, 0.0), (1, 0, 0.0), (2, 0, 0.0)], [[1]] * 50, [-1] * 50)
        assert set(dealt) == {1, 2}
        assert router.sent == [0, dealt.count(1), dealt.count(2)]

    def test_beginnings_go_where_they_were_read_unless_loads_are_far_apart(self) -> None:
        one, other = list(range(64)), list(range(100, 164))
        loads = [(0, 0, 0.0), (1, 0, 0.0)]
        dealt, _ = self.dealt("cache_aware", loads, [one, other, [*one, 7], [*other, 8]], [-1] * 4)
        assert dealt[2] == dealt[0]
        assert dealt[3] == dealt[1]
        _, router = self.dealt("cache_aware", [(5, 0, 0.0), (9, 0, 0.0)], [one], [-1])
        begun = beginnings(one, router.block)
        assert router.pick([EngineLoad(0, 5, 0, 0.0), EngineLoad(1, 9, 0, 0.0)], begun, -1) == 0
        assert router.pick([EngineLoad(0, 90, 0, 0.0), EngineLoad(1, 9, 0, 0.0)], begun, -1) == 1

    def test_a_lost_engine_moves_its_own_sessions_only(self) -> None:
        sessions = list(range(60))
        before, router = self.dealt("consistent_hash", [(0, 0, 0.0)] * 4, [[1]] * 60, sessions)
        assert set(before) == {0, 1, 2, 3}
        left = [EngineLoad(i, 0, 0, 0.0) for i in (0, 1, 3)]
        after = [router.pick(left, [1], session) for session in sessions]
        assert all(a == b for a, b in zip(after, before, strict=True) if b != 2)
        assert 2 not in after
