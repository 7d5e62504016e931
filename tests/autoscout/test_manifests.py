"""The launch line of a container in a manifest or a compose file."""

import pytest
from test_serve_lines import made

from autoscout.machine.starting import job_file
from kb.records import AutoscoutError

DEPLOYMENT = """
kind: Service
---
kind: Deployment
spec:
  template:
    spec:
      initContainers:
      - {name: weights, image: busybox, command: [sh, -c, "sleep 1"]}
      containers:
      - name: server
        image: vllm/vllm-openai:v0.32.0
        args: ["--model", "$(MODEL)", "--tensor-parallel-size", "4", "--max-model-len=32k"]
        env:
        - {name: MODEL, value: Qwen/Qwen3-32B}
        - {name: HF_TOKEN, valueFrom: {secretKeyRef: {name: a, key: b}}}
"""


SCRIPTED = DEPLOYMENT.replace(
    'args: ["--model", "$(MODEL)", "--tensor-parallel-size", "4", "--max-model-len=32k"]',
    'command: ["/bin/sh", "-c"]\n        args: ["export A=1\\nvllm serve Qwen/Qwen3-32B -tp 4"]',
)


COMPOSE = (
    "services:\n  a:\n    image: vllm/vllm-openai\n    command: --model Qwen/Qwen3-32B -tp 4\n    environment: [A=1]\n"
)


@pytest.mark.parametrize(
    ("text", "line", "variables"),
    [
        (
            DEPLOYMENT,
            "vllm serve --model Qwen/Qwen3-32B --tensor-parallel-size 4 --max-model-len=32k",
            {"MODEL": "Qwen/Qwen3-32B"},
        ),
        (SCRIPTED, "vllm serve Qwen/Qwen3-32B -tp 4", {"MODEL": "Qwen/Qwen3-32B", "A": "1"}),
        (COMPOSE, "vllm serve --model Qwen/Qwen3-32B -tp 4", {"A": "1"}),
    ],
    ids=["args", "a shell's", "compose"],
)
def test_the_container_of_a_manifest_is_a_launch(tmp_path, text, line, variables):
    (tmp_path / "m.yaml").write_text(text)
    job, notes = made(tmp_path, str(tmp_path / "m.yaml"))
    assert job["launch"]["current"] == line
    assert job["launch"]["environment"] == variables
    assert job["cluster"]["nodes"][0]["count"] == 4
    assert any("the container's image is vllm/vllm-openai" in note for note in notes)


RESERVED = """
    deploy:
      resources:
        reservations:
          devices:
          - {driver: nvidia, %s, capabilities: [gpu]}
"""
LIMITED = """
        resources: {limits: {nvidia.com/gpu: 2}}
      nodeSelector: {nvidia.com/gpu.product: NVIDIA-A100-80GB-PCIe}
"""


@pytest.mark.parametrize(
    ("text", "node"),
    [
        (COMPOSE + RESERVED % "count: 2", {"device": "GPU", "count": 2}),
        (COMPOSE + RESERVED % "device_ids: ['0', '3', '5']", {"device": "GPU", "count": 3}),
        (COMPOSE + RESERVED % "count: all", {"device": "GPU", "count": 4}),
        (COMPOSE + "    gpus: all\n", {"device": "GPU", "count": 4}),
        (COMPOSE + "    runtime: nvidia\n", {"device": "GPU", "count": 4}),
        (COMPOSE + "    deploy: {replicas: 1}\n", {"device": "GPU", "count": 4}),
        (DEPLOYMENT.rstrip() + LIMITED, {"device": "a100-pcie", "count": 2}),
        (DEPLOYMENT.rstrip() + "\n        resources: {limits: {amd.com/gpu: 8}}\n", {"device": "GPU", "count": 4}),
    ],
    ids=["count", "ids", "all", "gpus", "runtime", "none", "kubernetes", "amd"],
)
def test_the_gpus_of_a_container_are_the_jobs(tmp_path, text, node):
    """They became CPU ranks, though the file says that they are GPUs, and how many. Of eight, `-tp 4` uses four."""
    (tmp_path / "m.yaml").write_text(text)
    job, _ = made(tmp_path, str(tmp_path / "m.yaml"))
    assert job["cluster"]["nodes"] == [node]


@pytest.mark.parametrize(
    ("text", "sentence"),
    [("a: [", "is not YAML"), ("a: 1", "no container in it has a command or args"), ("", "no container in it")],
)
def test_a_manifest_that_says_nothing_is_one_sentence(tmp_path, text, sentence):
    (tmp_path / "m.yaml").write_text(text)
    with pytest.raises(AutoscoutError, match=sentence):
        job_file([str(tmp_path / "m.yaml")], tmp_path)


DEPLOYED = """
kind: DynamoGraphDeployment
spec:
  services:
    Frontend:
      extraPodSpec:
        mainContainer: {image: vllm-runtime, command: [python3, -m, dynamo.frontend]}
    Worker:
      resources: {limits: {gpu: "2"}}
      extraPodSpec:
        mainContainer: {image: vllm-runtime, command: [vllm, serve, Qwen/Qwen3-8B, -tp, "2"]}
"""


@pytest.mark.parametrize("name", ["google.com/tpu", "huawei.com/Ascend910"])
def test_a_server_on_another_accelerator_is_no_job_of_gpus(tmp_path, name):
    limits = "args: ['--model', x/Llama-3.1-8B]\n        resources: {limits: {NAME: 8}}".replace("NAME", name)
    given = DEPLOYMENT.replace(
        'args: ["--model", "$(MODEL)", "--tensor-parallel-size", "4", "--max-model-len=32k"]', limits
    )
    (tmp_path / "m.yaml").write_text(given)
    with pytest.raises(
        AutoscoutError, match=f"a container gets {name}, but only GPUs and CPU ranks can be tuned"
    ) as refused:
        job_file([str(tmp_path / "m.yaml")], tmp_path)
    assert refused.value.exit_code == 2


def test_what_a_chart_fills_in_is_asked_for(tmp_path):
    """It was refused: the name is no JSON."""
    named = '"--served-model-name", "{{ .Spec.Model.Name }}", "--max-model-len=32k"'
    (tmp_path / "m.yaml").write_text(DEPLOYMENT.replace('"--max-model-len=32k"', named))
    job, notes = made(tmp_path, str(tmp_path / "m.yaml"))
    assert job["launch"]["current"].endswith("--served-model-name '{{ .Spec.Model.Name }}' --max-model-len=32k")
    assert "launch.current: replace {{ .Spec.Model.Name }} by the value; no shell fills it in" in notes


def test_a_router_without_gpus_is_not_the_server(tmp_path):
    """The first container of an engine's image was the job, though the deployment gives it no GPU."""
    (tmp_path / "m.yaml").write_text(DEPLOYED)
    job, notes = made(tmp_path, str(tmp_path / "m.yaml"))
    assert job["launch"]["current"] == "vllm serve Qwen/Qwen3-8B -tp 2"
    assert job["cluster"]["nodes"] == [{"device": "GPU", "count": 2}]
    assert not any("containers that serve" in note for note in notes)


def test_a_server_over_two_pods_is_one_over_two_nodes(tmp_path):
    """A LeaderWorkerSet's leader has eight GPUs, its line 16 ranks: one node of eight was written."""
    text = DEPLOYED.replace('-tp, "2"', '-tp, "8", -pp, "2"').replace('gpu: "2"', 'nvidia.com/gpu: "8"')
    (tmp_path / "m.yaml").write_text(text)
    assert [node["count"] for node in made(tmp_path, str(tmp_path / "m.yaml"))[0]["cluster"]["nodes"]] == [8, 8]
