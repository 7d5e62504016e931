"""`trace` and `when`: a vLLM's /metrics, and the log of a training job."""

import json
from pathlib import Path

import msgspec
import pytest
import verbs
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

from autoscout.deploy import when
from autoscout.importing.served_load import load_between, reading, traffic_of
from autoscout.targets.jobs import load_job
from kb.records import AutoscoutError, Configuration

ENDS = [1.0, 2.0, 5.0, 10.0, 20.0, 50.0, 100.0, 200.0, 500.0, 1000.0]  # vLLM's buckets of lengths
REPLAY = "smallest-cpu-replay"


class Server:
    """Prints what a vLLM prints, under its names."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        labels = {"model_name": "m", "engine": "0"}

        def histogram(name: str, ends: list[float]) -> Histogram:
            made = Histogram(f"vllm:{name}", "", list(labels), buckets=ends, registry=self.registry)
            return made.labels(**labels)

        self.prompts, self.answers = (
            histogram("request_prompt_tokens", ENDS),
            histogram("request_generation_tokens", ENDS),
        )
        self.first = histogram("time_to_first_token_seconds", [0.01, 0.1, 1.0])
        self.queries = Counter("vllm:prefix_cache_queries", "", list(labels), registry=self.registry).labels(**labels)
        self.hits = Counter("vllm:prefix_cache_hits", "", list(labels), registry=self.registry).labels(**labels)
        self.running = Gauge("vllm:num_requests_running", "", list(labels), registry=self.registry).labels(**labels)

    def serve(self, prompts: list[int], answers: list[int]) -> None:
        for prompt, answer in zip(prompts, answers, strict=True):
            self.prompts.observe(prompt)
            self.answers.observe(answer)
            self.first.observe(0.05)
            self.queries.inc(prompt)
            self.hits.inc(prompt / 2)

    def read(self) -> str:
        return generate_latest(self.registry).decode()


def test_lengths_rate_and_prefix_are_those_of_the_time_between():
    server = Server()
    server.serve([900] * 50, [1] * 50)  # before anybody looked
    first = reading(server.read(), "here")
    server.serve([150] * 100, [20] * 50 + [400] * 50)
    load = load_between(first, reading(server.read(), "here"), 50.0)
    assert (load.requests, load.rate) == (100, 2.0)
    # Buckets from 100 to 200, from 10 to 20 and from 200 to 500, and exact means.
    assert sum(load.input_len) / len(load.input_len) == pytest.approx(150, abs=1)
    assert sum(load.output_len) / len(load.output_len) == pytest.approx(210, abs=1)
    assert load.output_len[5] == pytest.approx(16, abs=5)
    assert load.shared == pytest.approx(0.5)
    assert load.ttft_ms is not None
    assert 10 <= load.ttft_ms[0] <= 100
    assert load.tpot_ms is None
    traffic = traffic_of(load)
    assert traffic.rate == 2.0
    assert 0 < traffic.shared_prefix < load.input_len[0]


def test_answers_of_one_token_have_no_time_for_another():
    """vLLM counts 0 s for each (findings/vllm-tpot-of-one-token.sh), and the median of all answers was shown."""
    server = Server()
    made = Histogram("vllm:request_time_per_output_token_seconds", "", registry=server.registry, buckets=[0.01, 0.05])
    made.observe(0.04)
    first = reading(server.read(), "here")
    server.serve([100] * 100, [1] * 60 + [20] * 40)
    for seconds in [0.0] * 60 + [0.04] * 40:
        made.observe(seconds)
    load = load_between(first, reading(server.read(), "here"), 50.0)
    assert load.tpot_ms is not None
    assert 10 <= load.tpot_ms[0] <= 50
    first = reading(server.read(), "here")
    server.serve([100] * 100, [1] * 100)
    for _ in range(100):
        made.observe(0.0)
    assert load_between(first, reading(server.read(), "here"), 50.0).tpot_ms is None


@pytest.mark.parametrize("since", [30, 300])
def test_a_server_that_was_started_again_or_answers_nobody_is_said(since):
    """Also where it has answered more than before already."""
    before, after = Server(), Server()
    before.serve([100] * 50, [10] * 50)
    first = reading(before.read(), "here")
    after.serve([100] * since, [10] * since)
    with pytest.raises(AutoscoutError, match="restarted"):
        load_between(first, reading(after.read(), "here"), 10.0)
    with pytest.raises(AutoscoutError, match="0 requests were answered in 10 s"):
        load_between(first, first, 10.0)


@pytest.mark.parametrize("text", ["<html>", "sglang:num_running_reqs 3\n", ""])
def test_metrics_of_something_else_are_refused(text):
    with pytest.raises(AutoscoutError) as refused:
        reading(text, "http://here/metrics")
    assert str(refused.value).startswith("http://here/metrics: ")
    assert refused.value.exit_code == 2


@pytest.fixture(scope="module")
def tuned(tmp_path_factory):
    kb = tmp_path_factory.mktemp("when") / "kb.duckdb"
    done = verbs.run("tune", REPLAY, "--profiles", "2", "--no-tui", "--json", "--kb", kb)
    return kb, json.loads(done.stdout)["session"]["session"]


def test_a_log_is_held_against_what_was_measured(tuned, tmp_path: Path):
    kb, session = tuned
    winner = when.winner_of(kb, session)
    job = winner.job
    launch = {"metrics": {"step_time_ms": r"([\d.]+) ms"}}

    job = msgspec.structs.replace(job, launch=msgspec.structs.replace(job.launch, **launch))
    winner = msgspec.structs.replace(winner, job=job)
    usual = sorted(m.metrics["step_time_s"] for m in winner.measured)[len(winner.measured) // 2]

    def log(slower: float) -> Path:
        path = tmp_path / f"{slower}.log"
        path.write_text("".join(f"step {i}: {1000 * slower * usual:.4f} ms\n" for i in range(100)))
        return path

    assert when.of_log(winner, log(1.0)).kind == "still right"
    late = when.of_log(winner, log(1.5))
    assert (late.kind, "50 % longer" in late.sentence) == ("probably not", True)
    with pytest.raises(AutoscoutError, match="has 0 step times"):
        when.of_log(winner, Path("/dev/null"))


def test_what_cannot_be_looked_at_is_said(tuned):
    kb, session = tuned
    for words, said in [
        (["when", session, "/no/log"], "is neither a URL nor a file"),
        (["when", "nobody", "/no/log"], "there is no session nobody"),
        (["when", session, "http://127.0.0.1:9"], "cannot be read"),
    ]:
        done = verbs.run(*words, "--kb", kb)
        assert done.returncode in (1, 2)
        assert said in done.stderr
        assert "Traceback" not in done.stderr


def test_steps_are_held_against_steps_whatever_a_job_maximizes(tuned, tmp_path: Path):
    kb, session = tuned
    winner = when.winner_of(kb, session)
    objective = msgspec.structs.replace(winner.job.objective, minimize="", maximize="tokens_per_s")
    launch = msgspec.structs.replace(winner.job.launch, metrics={"step_time_s": r"([\d.]+) s"})
    job = msgspec.structs.replace(winner.job, objective=objective, launch=launch)
    usual = sorted(m.metrics["step_time_s"] for m in winner.measured)[len(winner.measured) // 2]
    (tmp_path / "log").write_text(f"{usual:.9f} s\n" * 50)
    assert when.of_log(msgspec.structs.replace(winner, job=job), tmp_path / "log").kind == "still right"


def test_a_job_of_users_keeps_them_under_todays_lengths(tuned):
    server, kb = Server(), tuned[0]
    first = reading(server.read(), "here")
    server.serve([100] * 40, [20] * 40)
    load = load_between(first, reading(server.read(), "here"), 10.0)
    job = load_job("fixtures/jobs/tiny-llama-serve-cpu.toml")
    winner = msgspec.structs.replace(when.winner_of(*tuned), job=job, configuration=Configuration({}))
    found = when.of_load(winner, load, kb)
    assert [change.name for change in found.changes] == ["input tokens", "output tokens"]
