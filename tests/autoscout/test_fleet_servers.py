"""Prompts read by one server and answered by another: what may be had, what is written, what is refused."""

import subprocess

import msgspec
import numpy as np
import pytest

from autoscout.deploy.rendering import render
from autoscout.simulate.ensemble import Simulators
from autoscout.space.explain import explain, parse
from autoscout.targets.jobs import JobSpace, load_job
from autoscout.targets.target import target_of
from autoscout.targets.vllm import fleet_servers
from kb.records import AutoscoutError, Cluster, Configuration, Job, Node, Objective, Sessions, SpaceLimits


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
    script = launch.files["fleet.sh"]
    reads, answers = (line for line in script.splitlines() if "vllm serve" in line)
    assert reads.startswith("CUDA_VISIBLE_DEVICES=0,1,2,3 ")
    assert "--tensor-parallel-size 2" in reads
    assert "--data-parallel-size 2" in reads
    assert '"kv_role": "kv_producer"' in reads
    assert answers.startswith("CUDA_VISIBLE_DEVICES=4,5,6,7 ")
    assert "--tensor-parallel-size 4" in answers
    assert '"kv_role": "kv_consumer"' in answers
    router = "--vllm-pd-disaggregation --prefill http://127.0.0.1:8100 --decode http://127.0.0.1:8101"
    for form in ("command", "slurm"):
        text = render(target_of(job), launch, form)
        assert subprocess.run(["bash", "-n"], input=text, text=True).returncode == 0
        assert router in text
    with pytest.raises(AutoscoutError, match="cannot contain both the servers that read prompts"):
        render(target_of(job), launch, "yaml")


def test_readers_and_writers_are_services_and_stateful_sets():
    """Each role's servers with their own GPUs and an address that others fetch blocks from; the router names both."""
    yaml = pytest.importorskip("yaml")
    job = job_on()
    launch = target_of(job).launch(job, configuration(job, "prefill=2", "prefill_tp=2", "tp=2"))
    services = yaml.safe_load(render(target_of(job), launch, "compose"))["services"]
    reads, answers, router = services.values()
    ids = [s["deploy"]["resources"]["reservations"]["devices"][0]["device_ids"] for s in (reads, answers)]
    assert ids == [["0", "1"], ["2", "3", "4", "5", "6", "7"]]
    for server in (reads, answers):
        assert server["entrypoint"][:2] == ["bash", "-c"]
        assert "$$(hostname -i)" in server["entrypoint"][2]
    named = [f"http://{name}:8000" for name in list(services)[:2]]
    assert [
        router["entrypoint"][router["entrypoint"].index(f"--{role}") + 1] for role in ("prefill", "decode")
    ] == named
    found = list(yaml.safe_load_all(render(target_of(job), launch, "k8s")))
    sets = {one["metadata"]["name"]: one["spec"] for one in found if one["kind"] == "StatefulSet"}
    assert [spec["replicas"] for spec in sets.values()] == [1, 1]
    for spec in sets.values():
        (address,) = (v for v in spec["template"]["spec"]["containers"][0]["env"] if v["name"].endswith("CHANNEL_HOST"))
        assert address["valueFrom"]["fieldRef"]["fieldPath"] == "status.podIP"
    (front,) = (one for one in found if one["kind"] == "Deployment")
    command = front["spec"]["template"]["spec"]["containers"][0]["command"]
    assert [command[command.index(f"--{role}") + 1] for role in ("prefill", "decode")] == [
        f"http://{name}-0.{name}:8000" for name in sets
    ]


def test_what_a_session_may_try_says_which_packages_it_needs():
    asked = [job_on(allow=["router"]), job_on(), job_on(allow=[], fix={"prefill": 4}), job_on(allow=[])]
    assert [fleet_servers.asked_for(job) for job in asked] == [{"router"}, *[{"router", "prefill"}] * 2, set()]


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
    assert " ".join(["--worker-urls", *(f"http://127.0.0.1:{port}" for port in ports)]) in router
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
    assert entry[4:8] == [f"http://{name}:8000" for name in list(services)[:4]]
    engines, heads, front, service = yaml.safe_load_all(render(target_of(job), launch, "k8s"))
    assert (engines["kind"], engines["spec"]["replicas"]) == ("StatefulSet", 4)
    assert heads["metadata"]["name"] == engines["spec"]["serviceName"]
    command = front["spec"]["template"]["spec"]["containers"][0]["command"]
    assert command[0] == "vllm-router"
    assert command[7] == f"http://{engines['metadata']['name']}-3.{heads['metadata']['name']}:8000"
    assert service["spec"]["selector"] == front["spec"]["selector"]["matchLabels"]
    one = yaml.safe_load(render(target_of(job), launch, "yaml"))
    assert one["tensor-parallel-size"] == 2


def test_conversations_that_stay_are_predicted_faster_than_dealt_in_turn():
    """Prompts of later turns are long, and what their engine has read it reads no more."""
    job = job_on(allow=["router"])
    traffic = msgspec.structs.replace(
        job.traffic, rate=6.0, concurrency=0, input_len=2000, output_len=50, requests=120, sessions=Sessions(turns=6)
    )
    job = msgspec.structs.replace(job, traffic=traffic, objective=Objective(minimize="ttft_mean_ms"))
    simulators = Simulators(job, JobSpace.of_job(job), [])
    turns, stays, found = (
        simulators.predict(configuration(job, "dp=8", f"router={name}"))[0]
        for name in ("round_robin", "consistent_hash", "cache_aware")
    )
    assert max(stays, found) < 0.7 * turns


def test_it_is_predicted_beside_engines_that_do_both():
    job = job_on()
    simulators = Simulators(job, JobSpace.of_job(job), [])
    assert 0 < simulators.predict(configuration(job, "prefill=4", "tp=4"))[0] < np.inf
    assert simulators.predict(configuration(job, "prefill=0"))[0] > 0


def test_a_server_behind_a_router_holds_all_experts():
    """8 × 7B in 16 bits (87 GiB) start on H100 of 80 GB if engines of one server share the experts, and only then."""
    job = job_on(allow=["router"])
    mixture = msgspec.structs.replace(job.model, experts=8, topk=2)
    space = JobSpace.of_job(msgspec.structs.replace(job, model=mixture))

    def rules(*given: str) -> list[str]:
        return [v.rule for v in explain(space, parse(space, given), space.reference).violations]

    assert "VK6" not in rules("dp=8", "tp=1", "router=engine")
    assert "VK6" in rules("dp=8", "tp=1", "router=round_robin")
    assert "VK6" not in rules("dp=4", "tp=2", "router=round_robin")
