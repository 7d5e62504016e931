"""Prompts read by one server and answered by another: what may be had, what is written, what is refused."""

import http.client
import json
import subprocess
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import msgspec
import numpy as np
import pytest

from autoscout.deploy.rendering import render
from autoscout.simulate.ensemble import Simulators
from autoscout.space.explain import explain, parse
from autoscout.targets.jobs import JobSpace, load_job, profiler_of
from autoscout.targets.target import target_of
from autoscout.targets.vllm import router
from kb.records import AutoscoutError, Cluster, Configuration, Job, Node, SpaceLimits


def job_on(gpus: int = 8, nodes: int = 1, **limits) -> Job:
    job = load_job("fixtures/jobs/llama-3-8b-serve.toml")
    cluster = Cluster(nodes=[Node(device="h100", count=gpus)] * nodes)
    return msgspec.structs.replace(job, cluster=cluster, space=SpaceLimits(**{"allow": ["prefill"], **limits}))


def configuration(job: Job, *given: str) -> Configuration:
    space = JobSpace.of_job(job)
    found = explain(space, parse(space, given), space.reference)
    assert found.configuration is not None, found.violations
    return found.configuration


@pytest.mark.parametrize(
    ("given", "rule"),
    [
        (("prefill=8",), "VX1"),
        (("prefill=2", "prefill_tp=4", "tp=2", "dp=3"), "VX1"),
        (("prefill=4", "tp=2", "pp=2"), "VX2"),
        (("prefill=4", "spec=ngram"), "VX6"),
    ],
)
def test_what_no_pair_can_be_is_named(given, rule):
    space = JobSpace.of_job(job_on())
    found = explain(space, parse(space, given), space.reference)
    assert rule in [v.rule for v in found.violations]
    assert found.nearest is not None


def test_the_devices_of_both_servers_are_those_of_the_job():
    space = JobSpace.of_job(job_on())
    rng = np.random.default_rng(0)
    for row in space.sample_many(200, rng).tolist():
        knobs = space.of_codes(row).knobs
        prefill = int(knobs["prefill"])
        assert int(knobs["tp"]) * int(knobs["pp"]) * int(knobs["dp"]) == 8 - prefill
        assert ("prefill_tp" in knobs) == (prefill > 0)
    assert space.domain("prefill") == (0, 1, 2, 4)
    assert space.domain("dp", {"prefill": 2}) == (3, 6)


def test_it_is_off_unless_allowed_and_on_one_node_only():
    assert "prefill" in JobSpace.of_job(job_on(allow=[])).closed
    assert JobSpace.of_job(job_on(nodes=2)).active()["prefill"] is False


def test_both_servers_and_the_router_are_written():
    job = job_on()
    launch = target_of(job).launch(job, configuration(job, "prefill=4", "prefill_tp=2", "tp=4"))
    script = launch.files["disaggregated.sh"]
    reads, answers = (line for line in script.splitlines() if "vllm serve" in line)
    assert reads.startswith("CUDA_VISIBLE_DEVICES=0,1,2,3 ")
    assert "--tensor-parallel-size 2" in reads
    assert "--data-parallel-size 2" in reads
    assert '"kv_role": "kv_producer"' in reads
    assert answers.startswith("CUDA_VISIBLE_DEVICES=4,5,6,7 ")
    assert "--tensor-parallel-size 4" in answers
    assert '"kv_role": "kv_consumer"' in answers
    for form in ("command", "slurm"):
        text = render(target_of(job), launch, form)
        assert subprocess.run(["bash", "-n"], input=text, text=True).returncode == 0
        assert "router.py 8000 8100 8200" in text
    for form in ("yaml", "k8s"):
        with pytest.raises(AutoscoutError, match="use --format command or slurm"):
            render(target_of(job), launch, form)


def test_a_session_refuses_before_it_starts():
    jobs = [job_on(allow=[knob]) for knob in ("prefill", "router")]
    jobs += [job_on(fix=fixed, allow=[]) for fixed in ({"prefill": 4}, {"router": "cache_aware"})]
    for job in jobs:
        with pytest.raises(AutoscoutError, match=r"is written .* not started") as refused:
            profiler_of(job)
        assert refused.value.exit_code == 2


def test_a_router_and_a_server_for_each_engine_are_written():
    """As many lines and services as engines, each with its own GPUs, and vllm-router that names them all."""
    job = job_on(allow=["router"])
    launch = target_of(job).launch(job, configuration(job, "dp=4", "tp=2", "router=cache_aware"))
    script = launch.files["fleet.sh"]
    servers = [line for line in script.splitlines() if " vllm serve " in line]
    assert [line.split()[0] for line in servers] == [f"CUDA_VISIBLE_DEVICES={2 * i},{2 * i + 1}" for i in range(4)]
    assert all("--tensor-parallel-size 2" in line and "--data-parallel-size" not in line for line in servers)
    ports = [line.split("--port ")[1].split()[0] for line in servers]
    router = next(line for line in script.splitlines() if line.startswith("vllm-router"))
    assert "--policy cache_aware" in router
    assert router.removesuffix(" &").endswith(" ".join(f"http://127.0.0.1:{port}" for port in ports))
    for form in ("command", "slurm"):
        text = render(target_of(job), launch, form)
        assert subprocess.run(["bash", "-n"], input=text, text=True).returncode == 0
    yaml = pytest.importorskip("yaml")
    services = yaml.safe_load(render(target_of(job), launch, "compose"))["services"]
    ids = [
        s["deploy"]["resources"]["reservations"]["devices"][0]["device_ids"] for s in services.values() if "deploy" in s
    ]
    assert ids == [["0", "1"], ["2", "3"], ["4", "5"], ["6", "7"]]
    (entry,) = (s["entrypoint"] for s in services.values() if "deploy" not in s)
    assert entry[-4:] == [f"http://{name}:8000" for name in list(services)[:4]]
    engines, heads, front, service = yaml.safe_load_all(render(target_of(job), launch, "k8s"))
    assert (engines["kind"], engines["spec"]["replicas"]) == ("StatefulSet", 4)
    assert heads["metadata"]["name"] == engines["spec"]["serviceName"]
    command = front["spec"]["template"]["spec"]["containers"][0]["command"]
    assert command[0] == "vllm-router"
    assert command[-1] == f"http://{engines['metadata']['name']}-3.{heads['metadata']['name']}:8000"
    assert service["spec"]["selector"] == front["spec"]["selector"]["matchLabels"]
    one = yaml.safe_load(render(target_of(job), launch, "yaml"))
    assert one["tensor-parallel-size"] == 2


def test_what_a_router_deals_is_predicted_as_engines_that_share_alike():
    job = job_on(allow=["router"])
    simulators = Simulators(job, JobSpace.of_job(job), [])
    alike = {simulators.predict(configuration(job, "dp=8", f"router={name}"))[0] for name in ("engine", "round_robin")}
    assert len(alike) == 1


def test_it_is_predicted_beside_engines_that_do_both():
    job = job_on()
    simulators = Simulators(job, JobSpace.of_job(job), [])
    assert 0 < simulators.predict(configuration(job, "prefill=4", "tp=4"))[0] < np.inf
    assert simulators.predict(configuration(job, "prefill=0"))[0] > 0


class Engine(BaseHTTPRequestHandler):
    """A server of completions that says where its cache is and what it was told of another's."""

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        said = {"asked": body, "kv_transfer_params": {"remote_port": self.connection.getsockname()[1]}}
        text = json.dumps(said).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.end_headers()
        self.wfile.write(text)

    def do_GET(self) -> None:
        self.send_response(200)
        self.end_headers()

    def log_message(self, format: str, *args: object) -> None: ...


def asked(port: int, method: str, path: str, body: dict | None = None) -> tuple[int, dict]:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=10)
    connection.request(method, path, None if body is None else json.dumps(body))
    answer = connection.getresponse()
    text = answer.read()
    connection.close()
    return answer.status, json.loads(text) if text.startswith(b"{") else {}


def test_the_router_hands_a_prompt_on_with_what_was_said_of_its_cache():
    engines = [ThreadingHTTPServer(("127.0.0.1", 0), Engine) for _ in range(2)]
    here = router.serve(0, *(engine.server_port for engine in engines))
    for server in (*engines, here):
        threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        assert asked(here.server_port, "GET", "/health")[0] == 200
        request = {"prompt": [1, 2], "max_tokens": 9, "stream": True, "stream_options": {"include_usage": True}}
        status, answer = asked(here.server_port, "POST", "/v1/completions", request)
        assert status == 200
        assert answer["asked"] == {**request, "kv_transfer_params": {"remote_port": engines[0].server_port}}
        read = router.prompt_only(request)
        assert (read["max_tokens"], read["stream"], read["kv_transfer_params"]["do_remote_decode"]) == (1, False, True)
        assert "stream_options" not in read
        engines[0].shutdown()
        engines[0].server_close()
        assert asked(here.server_port, "GET", "/health")[0] == 503
        assert asked(here.server_port, "POST", "/v1/completions", request)[0] == 503
    finally:
        for server in (engines[1], here):
            server.shutdown()
            server.server_close()
