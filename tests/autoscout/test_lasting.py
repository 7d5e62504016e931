"""The fluid of a lasting load at its edges, against the event simulation."""

from typing import Any

import msgspec
import numpy as np
import pytest
from test_serving_sim import LLAMA_3_8B

from autoscout.job.requests import of_traffic
from autoscout.simulate.serving.engine_run import EngineRun
from autoscout.simulate.serving.fluid import fluid
from autoscout.simulate.serving.latencies import metrics_of_run
from autoscout.simulate.serving.one_replica import engine_of, limits_of, open_run
from autoscout.simulate.serving.serving_device import device
from autoscout.simulate.serving.setup import Setup, setup
from autoscout.simulate.serving.simulator import exactly
from kb.records import Traffic


def both(traffic: Traffic, **columns: Any) -> tuple[dict[str, float], dict[str, float]]:
    """(the fluid's, the events') metrics of one configuration."""
    table = {**LLAMA_3_8B, "traffic": traffic, **{name: np.array([v]) for name, v in columns.items()}}
    s = setup(table, device("a100"), 1)
    return {name: float(v[0]) for name, v in fluid(s).items()}, exactly(table, s, 0)


@pytest.mark.parametrize("load", [{"rate": 0.005}, {"concurrency": 1}])
def test_a_step_that_answers_reads_the_context_of_one_request_at_least(load: dict[str, Any]) -> None:
    """Of a server that mostly waits, less than one runs on average: a token of 60,000 took 4.1 ms for 6.3."""
    traffic = Traffic(input_len=[50000, 60000, 70000], output_len=300, requests=100, **load)
    averaged, simulated = both(traffic, tp=4.0)
    assert averaged["tpot_mean_ms"] == pytest.approx(simulated["tpot_mean_ms"], rel=0.1)


@pytest.mark.parametrize("rate", [3.0, 8.0, 30.0])
def test_the_wait_of_a_queue_is_counted_once(rate: float) -> None:
    """More requests than are answered: a run lasted for them all and, after these, for the queue of the last one."""
    traffic = Traffic(input_len=[100, 900, 2000], output_len=[10, 200, 500], rate=rate)
    averaged, simulated = both(traffic)
    assert averaged["output_tokens_per_s"] == pytest.approx(simulated["output_tokens_per_s"], rel=0.12)


@pytest.mark.parametrize("load", [{"rate": 3.0}, {"concurrency": 16}])
def test_answers_of_one_token_have_no_time_between_tokens(load: dict[str, Any]) -> None:
    """They counted as others do, with all of their step that has a prompt: TPOT was 20.3 ms for 15.2."""
    averaged, simulated = both(Traffic(input_len=1000, output_len=[1, 1, 400], **load))
    assert averaged["tpot_mean_ms"] == pytest.approx(simulated["tpot_mean_ms"], rel=0.2)
    assert averaged["itl_mean_ms"] == pytest.approx(simulated["itl_mean_ms"], rel=0.2)
    names = ("tpot_mean_ms", "tpot_p99_ms", "itl_mean_ms", "itl_p50_ms")
    for found in both(Traffic(input_len=1000, output_len=1, **load)):
        assert [found[name] for name in names] == [0.0] * 4  # as an experiment reports it


@pytest.mark.parametrize("load", [{"rate": 3.0}, {"concurrency": 16}, {"concurrency": 16, "output_len": 200}])
def test_guessed_tokens_come_in_one_piece(load: dict[str, Any]) -> None:
    """A step that yields several tokens sends them together: there is no time between them, and ITL is a step's."""
    traffic = Traffic(**{"input_len": 1000, "output_len": [10, 200, 500], **load})
    plain = both(traffic)
    guessed = both(traffic, spec="ngram", spec_tokens=4.0, accepted=0.7)
    for slow, fast in zip(plain, guessed, strict=True):
        assert fast["tpot_mean_ms"] < 0.65 * slow["tpot_mean_ms"]
        assert fast["itl_p50_ms"] == pytest.approx(slow["itl_p50_ms"], rel=0.2)
    assert guessed[0]["itl_mean_ms"] == pytest.approx(guessed[1]["itl_mean_ms"], rel=0.2)


@pytest.mark.parametrize(
    ("traffic", "knobs"),
    [
        (Traffic(input_len=[1, 1, 9000], output_len=[1, 3, 5], rate=1.0), {}),
        (Traffic(input_len=[100, 900, 2000], output_len=[10, 200, 500], rate=0.3), {"max_num_seqs": 1.0}),
        (Traffic(input_len=1000, output_len=200, rate=6.0), {}),
    ],
)
def test_all_that_varies_is_in_the_slowest_requests(traffic: Traffic, knobs: dict[str, float]) -> None:
    """Of spread answers the slowest requests had an ordinary wait: long prompts with short answers took 184 ms at p99,
    less than their first token (1083), for 1301."""
    averaged, simulated = both(traffic, **knobs)
    assert averaged["e2el_p99_ms"] == pytest.approx(simulated["e2el_p99_ms"], rel=0.2)
    assert averaged["e2el_p99_ms"] >= averaged["ttft_p99_ms"]


def test_near_what_can_be_answered_a_step_with_prompts_is_no_shorter_than_one_without() -> None:
    """Prompts were priced beside fewer answers than run in the end: less than no time, and a root of it."""
    traffic = Traffic(rate=26.8, input_len=[23, 204, 461, 1023, 3069], output_len=[28, 132, 235, 413, 896])
    knobs = {"tp": 2.0, "dp": 2.0, "max_num_seqs": 1024.0, "long_prefill": np.array([128.0, 256.0, 512.0, 2048.0])}
    table = {**LLAMA_3_8B, "traffic": traffic, **knobs, "max_num_batched_tokens": 4096.0, "graph_size": 128.0}
    with np.errstate(invalid="raise"):
        found = fluid(setup(table, device("a100"), 4))
    assert (found["itl_p99_ms"] >= found["itl_p50_ms"]).all()


def test_users_with_equal_requests_lose_step_little_by_little() -> None:
    """Where prompts fill half of an answer's time TTFT was a quarter longer for 26 tokens more."""
    table = {**LLAMA_3_8B, "input_len": np.linspace(1400, 2000, 24).round(), "output_len": 100.0, "requests": 400.0}
    found = fluid(setup({**table, "concurrency": 32.0, "length_spread": 0.0}, device("a100"), 24), ())
    assert np.abs(np.diff(np.log(found["ttft_mean_ms"]))).max() < 0.1


NEAR = [
    ({"input_len": 300, "output_len": 600}, {"max_num_seqs": 48.0, "max_num_batched_tokens": 2048.0}, 200),
    ({"input_len": 4000, "output_len": 50}, {"max_num_seqs": 256.0, "max_num_batched_tokens": 4096.0}, 400),
    ({"input_len": [50, 200, 1000], "output_len": [20, 200, 800]}, {"max_num_seqs": 64.0}, 400),
]


@pytest.mark.parametrize(("lengths", "knobs", "requests"), NEAR)
def test_near_what_can_be_answered_a_load_ends_before_its_queues_have_grown(
    lengths: dict[str, Any], knobs: dict[str, float], requests: int
) -> None:
    """At 95 % of the capacity TTFT was two to four times as long as in the events, and its 99 % quantile more."""
    traffic = Traffic(rate=1.0, requests=requests, **lengths)
    columns = {**LLAMA_3_8B, **knobs, "traffic": traffic}
    most = 1 / float(fluid(setup(columns, device("a100"), 1), ())["load"][0])
    traffic = msgspec.structs.replace(traffic, rate=0.95 * most)
    s = setup({**columns, "traffic": traffic}, device("a100"), 1)
    found, events = fluid(s), [metrics_of_run(drawn(traffic, s, seed)) for seed in range(6)]
    for metric, within in (("ttft_mean_ms", 1.8), ("ttft_p99_ms", 2.7), ("e2el_p50_ms", 1.15)):
        simulated = np.exp(np.mean([np.log(one[metric]) for one in events]))
        assert 1 / within < float(found[metric][0]) / simulated < within, metric


def drawn(traffic: Traffic, s: Setup, seed: int) -> EngineRun:
    front_end = float(s.front_end_s[0]), float(s.request_s[0])
    return open_run(engine_of(s, 0), limits_of(s, 0), of_traffic(traffic, seed), *front_end)
