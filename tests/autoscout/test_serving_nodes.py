"""Servers over several nodes, in lines and in the simulator; devices whose links are another's; what is not here."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from autoscout.line.launch_line import Line
from autoscout.machine.preflight import preflight
from autoscout.machine.starting import job_file
from autoscout.simulate.encode import of_job
from autoscout.simulate.hardware.device import shipped
from autoscout.simulate.serving.all_reduce import all_reduce_us
from autoscout.simulate.serving.engine_shapes import engine
from autoscout.simulate.serving.serving_device import device
from autoscout.simulate.serving.setup import columns_of_job
from autoscout.simulate.serving.simulator import ServingSimulator
from autoscout.simulate.serving.steps import communication_s
from autoscout.space.explain import explain
from autoscout.targets.jobs import JobSpace, load_job
from autoscout.targets.target import target_of
from autoscout.targets.vllm.serving_line import job_of_server
from autoscout.tuning.predict import predict
from kb.records import AutoscoutError, Cluster, Job, Model, Node, Objective, Traffic

LLAMA_70B: dict[str, Any] = {"layers": 80, "hidden": 8192, "heads": 64, "kv_heads": 8, "head_dim": 128, "ffn": 28672}


def messages_s(tokens: float = 32.0, gpu: str = "a100", **columns: Any) -> float:
    e = engine({**LLAMA_70B, "vocab": 128256, **columns}, device(gpu), 1)
    return float(communication_s(e, np.array([tokens]))[0])


def test_an_all_reduce_over_two_nodes_crosses_the_network():
    """It was priced as among NVLink's eight: two nodes were recommended as one engine of 16."""
    inside, across = messages_s(tp=8.0), messages_s(tp=16.0)
    network = shipped("a100").network
    assert across >= 160 * 2e-6 * network.latency_us > 2 * inside
    assert messages_s(tp=8.0, per_node=4.0) > 2 * inside, "nodes of four: eight are two of them"
    moved = 2 * (1 - 1 / 16) * 4096 * 8192 * 2
    assert messages_s(4096.0, tp=16.0) > 160 * moved / (1e9 * network.node_gb_s)


def test_stages_on_other_nodes_are_handed_over_through_the_network():
    inside, across = messages_s(2048.0, gpu="a40", pp=4.0), messages_s(2048.0, gpu="a40", tp=1.0, pp=8.0)
    network = shipped("a40").network
    bytes_handed = 2048 * 8192 * 2
    once = bytes_handed / (1e9 * network.node_gb_s * network.efficiency) + 1e-6 * network.latency_us
    assert across == pytest.approx(2 * inside + once, rel=0.01), "one of seven borders lies between nodes of four"


def test_engines_of_a_mixture_that_span_nodes_meet_over_the_network():
    mixture: dict[str, Any] = {"experts": 128.0, "topk": 8.0, "expert_ffn": 1536.0}
    assert messages_s(**mixture, dp=16.0) > messages_s(**mixture, dp=8.0) + 80 * 60e-6
    assert messages_s(dp=16.0) == 0, "dense engines never meet"


def serving(count: int) -> Job:
    return Job(
        name="chat",
        task="serve",
        target="vllm",
        model=Model(layers=80, hidden=8192, heads=64, kv_heads=8, head_dim=128, ffn=28672, vocab=128256, gated=True),
        traffic=Traffic(concurrency=64, input_len=1024, output_len=256),
        cluster=Cluster(nodes=[Node(device="a100", count=count), Node(device="a100", count=count)]),
        objective=Objective(maximize="output_tokens_per_s"),
    )


def test_a_job_says_how_many_devices_its_nodes_have():
    """Eight in two nodes of four are slower than the eight of one."""
    degrees = {"tp": np.array([8.0]), "dp": 1.0}
    of = {count: {**columns_of_job(serving(count)), **of_job(serving(count)), **degrees} for count in (4, 8)}
    four, eight = (float(ServingSimulator("output_tokens_per_s").predict(of[count]).value[0]) for count in (4, 8))
    assert four < 0.8 * eight


@pytest.mark.parametrize(("card", "links"), [("a100-pcie", "a40"), ("a10g", "l40s")])
def test_cards_without_nvlink_switches_have_no_links_of_those_that_have(card: str, links: str):
    """A100 of PCIe had the all-reduces of SXM, whose kernels they have; A10G the bridges of A40."""
    assert device(card).all_reduce == device(links).all_reduce
    pair, size = np.array([4.0]), np.array([2.0**20])
    assert all_reduce_us(device("a100-pcie"), pair, size) > 2 * all_reduce_us(device("a100"), pair, size)


@pytest.mark.parametrize(
    ("degrees", "nodes"),
    [
        ("-tp 4", [4]),
        ("-tp 8 -pp 2", [8, 8]),
        ("-tp 8 -pp 2 --nnodes 4", [4, 4, 4, 4]),
        ("-tp 2 -dp 4 --data-parallel-size-local 2", [4, 4]),
        ("-tp 4 -dp 3", [12]),
    ],
)
def test_a_line_of_more_devices_than_a_node_has_is_of_several(degrees, nodes):
    """Two nodes of eight were one of 16."""
    made = job_of_server(Line(("vllm", "serve", "x/Llama-3.1-70B", *degrees.split())))
    assert made is not None
    assert made["devices"] == nodes


def test_a_server_that_is_not_here_is_said_beforehand(tmp_path):
    """bash, which starts it beside its load, was found."""
    text, _ = job_file(["trtllm-serve", "nvidia/Llama-3.1-405B-Instruct-FP8", "--tp_size", "8"], tmp_path)
    (tmp_path / "job.toml").write_text(text.replace('"GPU"', '"h100"'))
    job = load_job(tmp_path / "job.toml")
    notes = target_of(job).notes_on_job(job)
    assert "launch.command: 'trtllm-serve' cannot be run here; install it, or write its full path" in notes
    assert (
        "the answers of configurations are not compared with each other, so a configuration that computes something "
        "else goes unnoticed" in notes
    )


@pytest.mark.parametrize(("load", "told"), [("rate = 1.0", True), ("rate = 60.0", False), ("concurrency = 8", False)])
def test_check_says_where_the_load_and_not_the_server_decides(tmp_path, load, told):
    """Four layouts of a 70B were ranked by the third digit of what four requests a second ask for."""
    text = (
        Path("fixtures/jobs/llama-3.1-8b-serve-azure.toml").read_text().replace("max_rate_rps", "output_tokens_per_s")
    )
    assert "rate = 5.5" in text
    (tmp_path / "job.toml").write_text(text.replace("rate = 5.5", load))
    found = preflight(load_job(tmp_path / "job.toml"), tmp_path / "kb.duckdb")
    said = [f for f in found if f.subject == "load"]
    assert bool(said) == told
    assert all("is the maximum for any configuration" in f.found and "max_rate_rps" in f.remedy for f in said)


def test_engines_of_a_line_over_nodes_stay_within_a_node(tmp_path):
    """Of tp 4, pp 2 and dp 2 eight engines were started on each node; tp 4, pp 4 had no way to the other node."""
    line = "vllm serve x/Llama-3.1-70B -dp 16 -dpl 8 --data-parallel-hybrid-lb -dpa 10.0.0.4 -dpr 0"
    text, _ = job_file(line.split(), tmp_path)
    (tmp_path / "job.toml").write_text(text.replace('"GPU"', '"h200"'))
    job = load_job(tmp_path / "job.toml")
    space = JobSpace.of_job(job)
    two = explain(space, {"tp": 4, "pp": 2}, space.reference).configuration
    assert two is not None
    assert target_of(job).launch(job, two).arguments["--data-parallel-size-local"] == 1
    broken = explain(space, {"tp": 4, "pp": 4}, space.reference).violations
    assert any("one node's 8 devices" in violation.sentence for violation in broken)


@pytest.mark.parametrize(
    ("more", "says"),
    [
        ("--cpu-offload-gb 40", "no simulator models --cpu-offload-gb"),
        ("--kv-cache-dtype fp8_e5m2 --cpu-offload-gb 0", "the cost of an 8-bit KV cache is unknown on a100"),
    ],
)
def test_what_keeps_a_line_from_being_predicted_is_named(tmp_path, more, says):
    """Weights in host memory were priced as on the GPU, 13 times too fast, and a cache in fp8_e5m2 said nothing."""
    text, _ = job_file(f"vllm serve x/Llama-3.1-70B -tp 2 {more} --max-model-len 4096".split(), tmp_path)
    (tmp_path / "job.toml").write_text(text.replace('"GPU"', '"a100"'))
    space = JobSpace.of_job(load_job(tmp_path / "job.toml"))
    assert space.reference.knobs["tp"] == 2
    with pytest.raises(AutoscoutError, match=says):
        predict(space, {}, None)
