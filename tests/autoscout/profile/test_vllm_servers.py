"""Mode (a) against servers that misbehave: each is a class and one sentence, and nothing of them stays.

The interpreter that the job names is real; only `-m vllm…` is answered by a small server of ours, so that it can die,
hang or answer nonsense on command.
"""

import json
import sys
from pathlib import Path

import msgspec
import psutil
import pytest
from serving_bench import serving_job

from autoscout.targets.vllm import arguments as vllm
from autoscout.targets.vllm.profiler import VllmProfiler
from kb.records import AutoscoutError, Cluster, Configuration, Job, Measurement, Node, SpaceLimits

pytest.importorskip("aiohttp", reason="the load generator's client is not installed here (the dev extra)")

INTERPRETER = """#!/bin/sh
case "$*" in
  *probe.py*) echo '{"python": "3.11", "vllm": "0.32.0", "device": "x", "devices": "2"PACKAGES}' ;;
  *vllm.entrypoints*) exec PYTHON FOLDER/server.py "$@" ;;
  *) exec PYTHON "$@" ;;
esac
"""
SERVER = """
import json, os, sys, time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

HOW = Path(__file__).with_name("how").read_text()
starts = Path(__file__).with_name("starts")
starts.write_text(starts.read_text() + "x" if starts.exists() else "x")
if HOW == "taken" and len(starts.read_text()) == 1:
    sys.exit("OSError: [Errno 98] error while attempting to bind on address: address already in use")
if HOW == "flag":
    sys.exit("usage: vllm serve\\nvllm: error: unrecognized arguments: --max-num-seqs 4")
if HOW == "never":
    print("Loading weights took forever", flush=True)
    time.sleep(600)
answered = 0

class Handler(BaseHTTPRequestHandler):
    def log_message(self, *args): pass
    def do_GET(self):
        told = HOW == "tells" and self.path.startswith("/server_info")
        self.send_response(200 if told or self.path == "/health" else 404)
        self.send_header("Content-Type", "application/json")
        self.end_headers()
        if told:  # the parts and names of vLLM 0.32
            scheduler = {"max_num_seqs": 4, "max_num_batched_tokens": 2048, "enable_chunked_prefill": True}
            cache = {"block_size": 16, "num_gpu_blocks": 500, "enable_prefix_caching": False}
            parts = {"scheduler_config": scheduler, "cache_config": cache, "speculative_config": None}
            self.wfile.write(json.dumps({"vllm_config": parts}).encode())
    def do_POST(self):
        global answered
        answered += 1
        Path(__file__).with_name(f"asked-{os.getpid()}").write_text(str(answered))
        if HOW == "dies" and answered > 6:
            print("RuntimeError: the worker is gone", flush=True)
            os._exit(1)
        asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))["max_tokens"]
        self.send_response(200)
        self.end_headers()
        if HOW == "garbage":
            self.wfile.write(b"data: <html>busy</html>\\n\\n")
            return
        for i in range(asked):
            self.wfile.write(b'data: {"choices": [{"token_ids": [%d]}]}\\n\\n' % i)
        self.wfile.write(b'data: {"choices": [], "usage": {"completion_tokens": %d}}\\n\\ndata: [DONE]\\n\\n' % asked)

ThreadingHTTPServer.request_queue_size = 64
ThreadingHTTPServer(("127.0.0.1", int(sys.argv[sys.argv.index("--port") + 1])), Handler).serve_forever()
"""
ROUTER = """#!PYTHON
import http.client, itertools, sys
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

words = sys.argv[1:]
turns = itertools.cycle(word.removeprefix("http://") for word in words if word.startswith("http://"))

class Handler(BaseHTTPRequestHandler):
    def log_message(self, *args): pass
    def do_GET(self):
        self.send_response(200 if self.path == "/health" else 405)
        self.end_headers()
    def do_POST(self):
        server = http.client.HTTPConnection(next(turns))
        body = self.rfile.read(int(self.headers["Content-Length"]))
        try:
            server.request("POST", self.path, body)
            answer = server.getresponse()
        except OSError:
            return self.send_error(503)
        self.send_response(answer.status)
        self.end_headers()
        self.wfile.write(answer.read())

ThreadingHTTPServer.request_queue_size = 64
ThreadingHTTPServer(("127.0.0.1", int(words[words.index("--port") + 1])), Handler).serve_forever()
"""
FLEET = {"max_num_seqs": 4, "dp": 2, "tp": 1, "pp": 1, "router": "round_robin"}


def experiment(
    folder: Path, how: str, timeout_s: float = 60.0, fleet: bool = False, packages: str = ', "vllm-router": "0.1"'
) -> Measurement:
    """`fleet`: two servers, with a router next to their interpreter. `packages`: what the interpreter has besides."""
    bench = folder / "bench"
    (bench / "model").mkdir(parents=True)
    interpreter = bench / "python"
    interpreter.write_text(
        INTERPRETER.replace("PYTHON", sys.executable).replace("FOLDER", str(bench)).replace("PACKAGES", packages)
    )
    interpreter.chmod(0o755)
    (bench / "vllm-router").write_text(ROUTER.replace("PYTHON", sys.executable))
    (bench / "vllm-router").chmod(0o755)
    (bench / "server.py").write_text(SERVER)
    (bench / "how").write_text(how)
    changes = {"launcher": "serve", "python": str(interpreter), "model_path": str(bench / "model"), "requests": 8}
    job: Job = serving_job(**changes, timeout_s=timeout_s)
    (bench / "model" / "config.json").write_text(json.dumps(vllm.model_config(job)))
    if fleet:
        job = msgspec.structs.replace(
            job, cluster=Cluster(nodes=[Node(device="cpu", count=2)]), space=SpaceLimits(allow=["router"])
        )
    profiler = VllmProfiler(job)
    measured = profiler.run(Configuration(FLEET if fleet else {"max_num_seqs": 4}), "tiny", folder / "0001")
    profiler.close()
    mine = [p for p in psutil.process_iter(["cmdline"]) if str(bench) in " ".join(p.info["cmdline"] or [])]
    assert mine == []
    assert "\n" not in measured.evidence
    return measured


def test_a_server_that_behaves_is_measured(tmp_path: Path) -> None:
    measured = experiment(tmp_path, "well")
    assert measured.status == "ok", measured.evidence
    assert measured.metrics["kv_needed_tokens"] >= 24 + 6


def test_what_a_server_made_of_its_arguments_is_read_back(tmp_path: Path) -> None:
    measured = experiment(tmp_path, "tells")
    assert measured.status == "ok", measured.evidence
    told = json.loads((tmp_path / "0001" / "effective.json").read_text())
    assert told["values"] == {
        "scheduler.max_num_seqs": 4,
        "scheduler.max_num_batched_tokens": 2048,
        "scheduler.enable_chunked_prefill": True,
        "cache.block_size": 16,
        "cache.enable_prefix_caching": False,
    }
    assert told["kv_cache_tokens"] == 8000


def test_a_port_that_somebody_took_meanwhile_is_not_the_configurations_fault(tmp_path: Path) -> None:
    assert experiment(tmp_path, "taken").status == "ok"
    assert (tmp_path / "bench" / "starts").read_text() == "xx"


def test_a_flag_that_this_version_does_not_have_is_named(tmp_path: Path) -> None:
    measured = experiment(tmp_path, "flag")
    assert measured.status == "invalid"
    assert "unrecognized arguments: --max-num-seqs 4" in measured.evidence


def test_a_server_that_never_becomes_ready_is_a_timeout(tmp_path: Path) -> None:
    measured = experiment(tmp_path, "never", timeout_s=3.0)
    assert measured.status == "timeout"
    assert "the server was not ready after 3 s; its last line: Loading weights took forever" in measured.evidence


def test_a_server_that_dies_under_load_says_why(tmp_path: Path) -> None:
    measured = experiment(tmp_path, "dies")
    assert measured.status == "error"
    assert "vLLM failed under load: RuntimeError: the worker is gone" in measured.evidence


def test_a_server_that_answers_garbage_measures_nothing(tmp_path: Path) -> None:
    measured = experiment(tmp_path, "garbage")
    assert measured.status == "error"
    assert "requests failed: JSONDecodeError" in measured.evidence
    assert measured.metrics == {}


def test_servers_behind_a_router_are_measured_as_one(tmp_path: Path) -> None:
    measured = experiment(tmp_path, "tells", fleet=True)
    assert measured.status == "ok", measured.evidence
    assert measured.environment["vllm-router"] == "0.1"
    each = [int(path.read_text()) for path in (tmp_path / "bench").glob("asked-*")]
    assert len(each) == 2
    assert abs(each[0] - each[1]) <= 1
    identity = json.loads((tmp_path / "0001" / "effective.json").read_text())["identity"]
    assert "round_robin" in identity  # another router is another experiment


def test_a_server_of_several_that_dies_is_named(tmp_path: Path) -> None:
    measured = experiment(tmp_path, "dies", fleet=True)
    assert measured.status == "error"
    assert "vLLM failed under load: RuntimeError: the worker is gone" in measured.evidence


def test_a_fleet_without_its_router_is_refused_before_it_starts(tmp_path: Path) -> None:
    with pytest.raises(
        AutoscoutError, match=r"\[space\] allows router, which needs the package vllm-router"
    ) as refused:
        experiment(tmp_path, "well", fleet=True, packages="")
    assert refused.value.exit_code == 2
