"""Metrics against hand-computed numbers and numpy; the load generator against a server that streams."""

import asyncio
import json
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from serving_bench import PYTHON, needs_vllm, serving_job

from autoscout.job.objective import request_limits
from autoscout.running import processes
from autoscout.targets.vllm import load_plan
from autoscout.targets.vllm.load_plan import Pass, TimedRequest
from kb.records import AutoscoutError, Objective, Sessions

WORKER = Path(load_plan.__file__).parent / "worker"


def test_metrics_of_a_pass_computed_by_hand() -> None:
    """Two requests: 3 tokens at 0.2, 0.3, 0.5 s after sending at 0.1; 1 token at 1.0 s, sent at 0.5 s."""
    measured = Pass(2.0, 0.7, [TimedRequest(0.1, [0.3, 0.4, 0.6], 3, 10), TimedRequest(0.5, [1.0], 1, 20)])
    found = load_plan.of_pass(measured, {"ttft": 300.0})
    assert found["ttft_mean_ms"] == pytest.approx((200 + 500) / 2)
    assert found["ttft_p90_ms"] == pytest.approx(200 + 0.9 * 300)
    assert found["tpot_mean_ms"] == pytest.approx(150)  # (500 − 200) / 2; one token has none
    assert found["itl_mean_ms"] == pytest.approx(150)
    assert found["itl_p50_ms"] == pytest.approx(150)
    assert found["e2el_p99_ms"] == pytest.approx(500)
    assert found["requests_per_s"] == pytest.approx(1.0)
    assert found["goodput_rps"] == pytest.approx(0.5)
    assert found["output_tokens_per_s"] == pytest.approx(2.0)
    assert found["total_tokens_per_s"] == pytest.approx(17.0)


def test_chunks_of_several_tokens_count_them_all() -> None:
    """As servers send them under load: two chunks, seven tokens."""
    found = load_plan.of_pass(Pass(1.0, 0.0, [TimedRequest(0.0, [0.1, 0.7], 7, 1)]), {})
    assert found["tpot_mean_ms"] == pytest.approx(100)
    assert found["itl_mean_ms"] == pytest.approx(600)
    assert found["output_tokens_per_s"] == 7


def test_failed_requests_count_nowhere_and_are_told() -> None:
    passes = [Pass(1.0, 0.0, [TimedRequest(0.0, [0.5], 1, 4), TimedRequest(0.0, [], 0, 4, "HTTP 500: broken")])]
    assert load_plan.of_pass(passes[0], {})["requests_per_s"] == 1.0
    assert load_plan.failed(passes) == "1 of 2 requests failed: HTTP 500: broken"
    assert load_plan.of_pass(Pass(1.0, 0.0, [TimedRequest(0.0, [], 0, 4, "no")]), {})["ttft_p99_ms"] == 0.0


@given(
    st.lists(
        st.tuples(st.floats(0, 5), st.lists(st.floats(0.001, 2.0), min_size=1, max_size=6)), min_size=1, max_size=8
    )
)
def test_latencies_hang_together(asked: list[tuple[float, list[float]]]) -> None:
    requests = [TimedRequest(sent, (sent + np.cumsum(gaps)).tolist(), len(gaps), 5) for sent, gaps in asked]
    found = load_plan.of_pass(Pass(10.0, 0.0, requests), {"e2el": 1e9})
    for what in ("ttft", "tpot", "itl", "e2el"):
        steps = [found[f"{what}_{at}_ms"] for at in ("p50", "p90", "p95", "p99")]
        assert steps == sorted(steps)
        assert min(steps) >= 0
    assert found["e2el_mean_ms"] >= found["ttft_mean_ms"] - 1e-9
    assert found["goodput_rps"] == found["requests_per_s"]
    assert found["total_tokens_per_s"] == pytest.approx(found["output_tokens_per_s"] + 5 * len(requests) / 10)


@pytest.mark.engine
@needs_vllm
def test_metrics_are_those_that_vllm_bench_serve_computes() -> None:
    rng = np.random.default_rng(3)
    requests = []
    for sent in rng.uniform(0, 3, 60):
        chunks = sent + np.cumsum(rng.exponential(0.03, rng.integers(1, 12)))
        requests.append(TimedRequest(float(sent), chunks.tolist(), len(chunks) + int(rng.integers(0, 3)), 17))
    slo = {"ttft": 40.0, "tpot": 30.0, "e2el": 400.0}
    given = {"duration_s": 4.0, "requests": msgspec.to_builtins(requests), "goodput": slo}
    script = Path(__file__).with_name("vllm_metrics.py")
    theirs = subprocess.run([PYTHON, script], input=json.dumps(given).encode(), capture_output=True, timeout=1800)
    ours = load_plan.of_pass(Pass(4.0, 0.0, requests), slo)
    said = json.loads(theirs.stdout.splitlines()[-1])
    assert len(said) == 24
    assert said == pytest.approx({name: ours[name] for name in said})


def test_what_the_kv_cache_should_hold() -> None:
    """Two requests of 10 + 2 and 20 + 3 tokens overlap, a third one of 30 + 4 comes when they have gone."""
    one, two = TimedRequest(0.0, [0.5, 1.0], 2, 10), TimedRequest(0.9, [1.5, 2.0], 3, 20)
    third = TimedRequest(2.0, [3.0], 4, 30)
    assert load_plan.kv_needed_tokens([Pass(3.0, 0.0, [one, two, third])]) == 35.0
    assert load_plan.kv_needed_tokens([Pass(1.0, 0.0, [TimedRequest(0.0, [], 0, 5, "failed")])]) == 0.0


def test_the_median_pass_counts() -> None:
    passes = [Pass(seconds, 0.0, [TimedRequest(0.0, [0.1], 1, 1)]) for seconds in (1.0, 2.0, 50.0)]
    assert load_plan.metrics(passes, serving_job())["requests_per_s"] == 0.5


def test_limits_are_the_latency_constraints() -> None:
    objective = Objective(maximize="goodput_rps", constraints=["ttft_p99_ms <= 500", "ttft_mean_ms <= 100"])
    job = msgspec.structs.replace(serving_job(), objective=objective)
    assert request_limits(job.objective) == {"ttft": 100.0}


def test_plans_of_the_kinds_of_traffic(tmp_path: Path) -> None:
    closed = load_plan.plan(serving_job(concurrency=8, input_len=[10, 20, 90], output_len=7))
    assert (closed["concurrency"], closed["arrival_s"], len(closed["input_len"])) == (8, [], 32)
    assert min(closed["input_len"]) >= 10
    assert max(closed["input_len"]) <= 90
    rated = load_plan.plan(serving_job(rate=10.0, input_len=5, output_len=7, measure_s=20.0))
    assert len(rated["arrival_s"]) == 200
    assert 10 < rated["arrival_s"][-1] < 40
    trace = tmp_path / "trace.csv"
    rows = [f"{i * 0.5},{i + 1},{2 * i + 1}" for i in range(100)]
    trace.write_text("arrival_s,input_tokens,output_tokens\n" + "\n".join(rows))
    recorded = load_plan.plan(serving_job(trace=str(trace), measure_s=20.0))
    assert len(recorded["arrival_s"]) == 41
    assert recorded["arrival_s"][4] == 2.0
    assert (recorded["input_len"][4], recorded["output_len"][4]) == (5, 9)


def test_a_trace_with_negative_lengths_is_one_sentence(tmp_path: Path) -> None:
    trace = tmp_path / "trace.csv"
    trace.write_text("arrival_s,input_tokens,output_tokens\n0,5,5\n1,-3,5\n")
    with pytest.raises(AutoscoutError, match="line 3") as told:
        load_plan.plan(serving_job(trace=str(trace)))
    assert told.value.exit_code == 2


def test_saturation_is_noticed_in_an_open_loop_only() -> None:
    arrivals = [0.1 * i for i in range(100)]
    keeps_up = Pass(10.1, 0.0, [TimedRequest(t, [t + 0.05], 1, 1) for t in arrivals])
    falls_behind = Pass(30.0, 0.0, [TimedRequest(t, [3 * t + 0.05], 1, 1) for t in arrivals])
    assert load_plan.saturation([keeps_up], arrivals) == ""
    assert "10 requests per second arrive, but 3.33 are answered" in load_plan.saturation([falls_behind], arrivals)
    assert load_plan.saturation([falls_behind], []) == ""


# ---- the requests, as the workers make them ---------------------------------------------------------------


@pytest.fixture
def prompts(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(str(processes.WORKER))  # what all workers share
    monkeypatch.syspath_prepend(str(WORKER))
    import prompts  # pyright: ignore[reportMissingImports]

    return prompts


def test_requests_have_the_plans_lengths_and_share_their_beginning(prompts: Any) -> None:
    plan = load_plan.plan(serving_job(concurrency=4, input_len=[10, 60], output_len=3, shared_prefix=16))
    first, again, second = (prompts.of_pass(plan, number) for number in (0, 0, 1))
    assert first == again
    assert [len(r.prompt) for r in first] == plan["input_len"]
    assert len({tuple(r.prompt[:10]) for r in [*first, *second]}) == 1
    assert not {tuple(r.prompt) for r in first if len(r.prompt) > 20} & {tuple(r.prompt) for r in second}
    assert all(10 <= token < plan["vocab"] for r in first for token in r.prompt)
    longest, answer = max(plan["input_len"]), max(plan["output_len"])
    assert all(len(r.prompt) <= longest and r.output_len <= answer for r in prompts.guarded(plan))


# ---- the load generator against a server that streams -----------------------------------------------------


class Server(ThreadingHTTPServer):
    """Answers token by token, `gap_s` apart, after `first_s`; notes how many it answers at once."""

    daemon_threads = True
    request_queue_size = 128
    first_s, gap_s, breaks_after, longest, garbage = 0.02, 0.01, 10**9, 10**9, False

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.lock = threading.Lock()
        self.now = self.most = self.answered = 0
        self.asked: list[dict[str, Any]] = []


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True  # or tokens wait for each other
    server: Server  # type: ignore[assignment]

    def log_message(self, format: str, *args: Any) -> None:
        """Nothing on the screen."""

    def do_GET(self) -> None:
        self.send_response(404)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        with self.server.lock:
            self.server.now += 1
            self.server.answered += 1
            self.server.most = max(self.server.most, self.server.now)
            self.server.asked.append(body)
            broken = self.server.answered > self.server.breaks_after
        try:
            self._answer(body, broken)
        finally:
            with self.server.lock:
                self.server.now -= 1

    def _answer(self, body: dict[str, Any], broken: bool) -> None:
        if broken:
            self.send_response(500)
            self.send_header("Content-Length", "6")
            self.end_headers()
            self.wfile.write(b"broken")
            return
        self.send_response(200)
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        if self.server.garbage:
            self._chunk(b"data: this is no JSON\n\n")
            self._chunk(b"")
            return
        answered = min(body["max_tokens"], self.server.longest)
        for i in range(answered):
            time.sleep(self.server.gap_s if i else self.server.first_s)
            self._send({"choices": [{"text": "w", "token_ids": [i]}]})
        self._send({"choices": [], "usage": {"completion_tokens": answered}})
        self._chunk(b"data: [DONE]\n\n")
        self._chunk(b"")

    def _send(self, content: dict[str, Any]) -> None:
        self._chunk(f"data: {json.dumps(content)}\n\n".encode())

    def _chunk(self, content: bytes) -> None:
        self.wfile.write(f"{len(content):x}\r\n".encode() + content + b"\r\n")
        self.wfile.flush()


@pytest.fixture
def server() -> Iterator[Server]:
    pytest.importorskip("aiohttp", reason="the load generator's client is not installed here (the dev extra)")
    server = Server()
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield server
    server.shutdown()
    server.server_close()


def drive(server: Server, folder: Path, **changes: Any) -> dict[str, Any]:
    plan = load_plan.plan(serving_job(**changes)) | {"passes": 2}
    experiment = folder / "experiment.json"
    experiment.write_text(json.dumps({"plan": plan, "served_name": "tiny", "known": {}}))
    url = f"http://127.0.0.1:{server.server_address[1]}"
    subprocess.run([sys.executable, str(WORKER / "client.py"), str(experiment), url, "0"], check=True, timeout=1800)
    return json.loads((folder / "rank-0.json").read_bytes()) | {"plan": plan}


def test_a_closed_loop_keeps_as_many_in_flight_as_it_has_users(server: Server, tmp_path: Path) -> None:
    found = drive(server, tmp_path, concurrency=6, input_len=12, output_len=4, requests=18, shared_prefix=5)
    assert server.most == 6
    passes = msgspec.convert(found["passes"], list[Pass])
    assert load_plan.failed(passes) == ""
    assert [len(p.requests) for p in passes] == [18, 18]
    measured = load_plan.metrics(passes, serving_job())
    # The server makes a request wait 20 ms and then 3 × 10 ms; a busy machine adds to that.
    assert measured["ttft_p50_ms"] >= 20
    assert measured["tpot_p50_ms"] >= 9.5
    assert measured["e2el_p50_ms"] >= 50
    assert measured["output_tokens_per_s"] == pytest.approx(4 * measured["requests_per_s"])
    assert found["guard"] == [[0, 1, 2, 3]] * 4
    assert all(body["ignore_eos"] and body["temperature"] == 0.0 for body in server.asked)
    prompts = [tuple(body["prompt"]) for body in server.asked[4:]]
    assert len(set(prompts)) == len(prompts)
    assert len(prompts) in (3 * 18, 4 * 18)  # warm-up, longer where its times fall, and two passes


def test_sessions_go_on_from_what_was_answered(server: Server, tmp_path: Path) -> None:
    sessions = Sessions(turns=3, sub_calls=1)
    found = drive(
        server, tmp_path, concurrency=2, input_len=6, output_len=3, requests=10, shared_prefix=5, sessions=sessions
    )
    passes = msgspec.convert(found["passes"], list[Pass])
    assert load_plan.failed(passes) == ""
    assert server.most == 2  # a call beside a turn has nobody beside it
    prompts = [body["prompt"] for body in server.asked]
    first = [p for p in prompts if len(p) == 5 + 6]
    later = [p for p in prompts if len(p) == 5 + 6 + 3 + 6]
    assert len(later) == 3 * 2  # warm-up and two passes, of two sessions
    for prompt in later:  # the server answers 0, 1, 2
        assert prompt[:11] in first
        assert prompt[11:14] == [0, 1, 2]
    assert all(r.count == (3 if r.asked in (11, 20, 29) else 1) for r in passes[0].requests)
    assert sorted(r.asked for r in passes[0].requests) == [11, 11, 15, 15, 20, 20, 24, 24, 29, 29]
    assert "tokens" not in found["passes"][0]["requests"][0] or not found["passes"][0]["requests"][0]["tokens"]


def test_an_open_loop_sends_when_the_plan_says(server: Server, tmp_path: Path) -> None:
    found = drive(server, tmp_path, rate=60.0, input_len=8, output_len=2, requests=40)
    sent = [r["sent"] for r in found["passes"][0]["requests"]]
    late = np.array(sent) - np.array(found["plan"]["arrival_s"])
    assert late.min() >= -0.001
    assert np.median(late) < 0.2


def test_a_load_that_has_told_enough_is_dropped(server: Server, tmp_path: Path) -> None:
    """Whatever was known of a rate, all 200 requests of its load were sent and waited for."""
    server.first_s = 0.2
    limits = Objective(maximize="max_rate_rps", constraints=["ttft_p99_ms <= 20"])
    plan = load_plan.plan(msgspec.structs.replace(serving_job(rate=20.0, input_len=8, output_len=4), objective=limits))
    experiment = tmp_path / "experiment.json"
    given = {"plan": plan, "served_name": "tiny", "known": {}, "limit_s": 60.0}
    experiment.write_text(json.dumps(given))
    url = f"http://127.0.0.1:{server.server_address[1]}"
    subprocess.run([sys.executable, str(WORKER / "client.py"), str(experiment), url, "0"], check=True, timeout=100)
    found = json.loads((tmp_path / "rank-0.json").read_bytes())
    assert found["max_rate"] == 0.0
    assert len(server.asked) < 200
    assert load_plan.failed(msgspec.convert(found["passes"], list[Pass])) == "", "what was dropped did not fail"


def test_a_server_that_breaks_is_a_failure_with_its_words(server: Server, tmp_path: Path) -> None:
    server.breaks_after = 20
    found = drive(server, tmp_path, concurrency=4, input_len=8, output_len=2, requests=16)
    assert load_plan.failed(msgspec.convert(found["passes"], list[Pass])).endswith("requests failed: HTTP 500: broken")


def test_a_server_that_answers_garbage_is_a_failure(server: Server, tmp_path: Path) -> None:
    server.garbage = True
    found = drive(server, tmp_path, concurrency=4, input_len=8, output_len=2, requests=8)
    assert "JSONDecodeError" in load_plan.failed(msgspec.convert(found["passes"], list[Pass]))


def test_an_answer_that_is_cut_off_is_a_failure(server: Server, tmp_path: Path) -> None:
    """The speed of a lighter load stood under the job's: `--generation-config FOLDER` makes max_new_tokens a limit."""
    server.longest = 3
    found = drive(server, tmp_path, concurrency=4, input_len=8, output_len=5, requests=8)
    failed = load_plan.failed(msgspec.convert(found["passes"], list[Pass]))
    assert "requests failed: the answer has 3 tokens, but 5 were requested" in failed


def test_nobody_there_is_a_failure(tmp_path: Path) -> None:
    pytest.importorskip("aiohttp", reason="the load generator's client is not installed here (the dev extra)")
    plan = load_plan.plan(serving_job(concurrency=2, input_len=4, output_len=2))
    (tmp_path / "experiment.json").write_text(json.dumps({"plan": plan, "served_name": "x", "known": {}}))
    command = [sys.executable, str(WORKER / "client.py"), str(tmp_path / "experiment.json"), "http://127.0.0.1:9", "0"]
    assert subprocess.run(command, timeout=1800, stderr=subprocess.DEVNULL).returncode == 1
    assert "ClientConnectorError" in (tmp_path / "rank-0.error.json").read_text()


async def answered(requests: list[Any], concurrency: int, ids: bool) -> tuple[float, list[dict[str, Any]]]:
    records = [
        {"sent": 0.0, "chunks": [0.1], "tokens": [7] if ids else [], "count": 1, "asked": 4, "error": ""}
        for _ in requests
    ]
    return 0.1, records


def test_the_clock_of_an_engine_that_computes_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Others that hold the processor (here: sleep) do not show, nor does waiting for a request last."""
    monkeypatch.syspath_prepend(str(processes.WORKER))  # what all workers share
    monkeypatch.syspath_prepend(str(WORKER))
    import driving  # pyright: ignore[reportMissingImports]

    clock, wall = driving.Busy(), time.perf_counter()
    time.sleep(0.2)
    assert clock.now() < 0.15
    clock.skip(60.0)
    assert 60.0 <= clock.now() < 60.2
    assert time.perf_counter() - wall < 60  # it did not wait for what it skipped
    clock.skip(-5.0)
    assert clock.now() >= 60.0


def test_a_slow_engine_is_measured_at_least_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(processes.WORKER))  # what all workers share
    monkeypatch.syspath_prepend(str(WORKER))
    import driving  # pyright: ignore[reportMissingImports]

    plan = load_plan.plan(serving_job(concurrency=2, input_len=4, output_len=1)) | {"measure_s": 0.0, "passes": 5}
    found = asyncio.run(driving.drive(plan, answered))
    assert len(found["passes"]) == 1
    assert found["passes"][0]["duration_s"] == 0.1
    assert found["warmup"] == plan["warmup"]


def test_passes_are_warm_up_while_they_fall(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(processes.WORKER))  # what all workers share
    monkeypatch.syspath_prepend(str(WORKER))
    import driving  # pyright: ignore[reportMissingImports]

    took = iter([0.1, 0.1, 9.0, 4.0, 1.0, 1.05, 0.95, 1.0, 1.0])  # guard, warm-up, passes

    async def falling(requests: list[Any], concurrency: int, ids: bool) -> tuple[float, list[dict[str, Any]]]:
        seconds = next(took)
        records = (await answered(requests, concurrency, ids))[1]
        return seconds, [{**r, "chunks": [seconds]} for r in records]

    plan = load_plan.plan(serving_job(concurrency=2, input_len=4, output_len=1)) | {"passes": 4, "warmup": 1}
    found = asyncio.run(driving.drive(plan, falling))
    assert [p["duration_s"] for p in found["passes"]] == [1.0, 1.05, 0.95, 1.0]
    assert found["warmup"] == 3
