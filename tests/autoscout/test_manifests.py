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
    ("own", "shown"),
    [("A=1", "0,3,5"), ("CUDA_VISIBLE_DEVICES=1,2", "3,5"), ("CUDA_VISIBLE_DEVICES=GPU-8a", "GPU-8a")],
)
def test_the_devices_that_a_compose_file_names_are_the_ones_that_run(tmp_path, own, shown):
    """Outside the container, the line took the first three of the machine."""
    text = COMPOSE.replace("[A=1]", f"['{own}']") + RESERVED % "device_ids: ['0', '3', '5']"
    (tmp_path / "m.yaml").write_text(text)
    job, _ = made(tmp_path, str(tmp_path / "m.yaml"))
    assert job["launch"]["environment"]["CUDA_VISIBLE_DEVICES"] == shown


def test_a_default_in_a_compose_file_is_the_value(tmp_path):
    """The values were asked for, though the file has them, and no shell expands them."""
    given = COMPOSE.replace("-tp 4", "-tp ${TP:-4} --max-model-len ${LENGTH-16384} --port ${PORT}")
    (tmp_path / "m.yaml").write_text(given)
    job, notes = made(tmp_path, str(tmp_path / "m.yaml"))
    assert job["launch"]["current"].endswith("-tp 4 --max-model-len 16384 --port '${PORT}'")
    assert [note for note in notes if "replace $PORT with" in note]


@pytest.mark.parametrize(
    ("text", "sentence"),
    [("a: [", "is not YAML"), ("a: 1", "no container has a command or args"), ("", "no container has")],
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
        AutoscoutError, match=f"a container requests {name}, but AutoScout tunes only GPUs and CPU ranks"
    ) as refused:
        job_file([str(tmp_path / "m.yaml")], tmp_path)
    assert refused.value.exit_code == 2


def test_what_a_chart_fills_in_is_asked_for(tmp_path):
    """It was refused: the name is no JSON."""
    named = '"--served-model-name", "{{ .Spec.Model.Name }}", "--max-model-len=32k"'
    (tmp_path / "m.yaml").write_text(DEPLOYMENT.replace('"--max-model-len=32k"', named))
    job, notes = made(tmp_path, str(tmp_path / "m.yaml"))
    assert job["launch"]["current"].endswith("--served-model-name '{{ .Spec.Model.Name }}' --max-model-len=32k")
    assert (
        "launch.current: replace {{ .Spec.Model.Name }} with the value, because no shell expands variables here"
        in notes
    )


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


SKY = """
resources: {accelerators: H100:8}
num_nodes: 2
envs: {MODEL: meta-llama/Llama-3.1-8B, TOKEN: }
setup: pip install -r requirements.txt
run: |
  torchrun --nnodes=$SKYPILOT_NUM_NODES --nproc_per_node=$SKYPILOT_NUM_GPUS_PER_NODE --node_rank=$SKYPILOT_NODE_RANK \\
    train.py --model_name_or_path $MODEL
"""
TORCH = """
kind: PyTorchJob
spec:
  pytorchReplicaSpecs:
    Master: {replicas: 1, template: &t {spec: {nodeSelector: {node.kubernetes.io/instance-type: p4d.24xlarge},
      containers: [{image: i, command: [torchrun, train.py], resources: {limits: {nvidia.com/gpu: 8}}}]}}}
    Worker: {replicas: 3, template: *t}
"""
RAY = """
kind: RayJob
spec:
  entrypoint: python -m verl.trainer.main_ppo trainer.n_gpus_per_node=8 trainer.nnodes=3
  rayClusterSpec:
    headGroupSpec: {template: {spec: {containers: [{image: r, resources: {limits: {cpu: 8}}}]}}}
    workerGroupSpecs:
    - {replicas: 3, template: {spec: {containers: [{image: r, resources: {limits: {nvidia.com/gpu: 8}}}],
      affinity: {matchExpressions: [{key: nvidia.com/gpu.product, operator: In, values: [NVIDIA-H20]}]}}}}
"""


def test_a_task_without_accelerators_has_the_ranks_of_its_line(tmp_path):
    """It could not be read: "not enough values to unpack"."""
    (tmp_path / "m.yaml").write_text("resources: {cpus: 4}\nrun: torchrun --nproc-per-node 2 train.py --bsz 2\n")
    job = made(tmp_path, str(tmp_path / "m.yaml"))[0]
    assert job["launch"]["current"] == "torchrun --nproc-per-node 2 train.py --bsz 2"
    assert job["cluster"]["nodes"] == [{"device": "cpu", "count": 2}]


@pytest.mark.parametrize(
    ("text", "nodes", "line"),
    [
        (SKY, [("h100", 8)] * 2, "torchrun --nnodes=2 --nproc_per_node=8 '--node_rank=$SKYPILOT_NODE_RANK' train.py"),
        (TORCH, [("a100-40g", 8)] * 4, "torchrun train.py"),
        (RAY, [("h20", 8)] * 3, "python -m verl.trainer.main_ppo trainer.n_gpus_per_node=8"),
        (SKY.replace("H100:8", "{L40S:8, A100:8}"), [("GPU", 8)] * 2, "torchrun --nnodes=2"),
    ],
    ids=["SkyPilot", "PyTorchJob", "RayJob", "one of two kinds"],
)
def test_who_starts_the_pods_says_how_many_and_of_which_gpus(tmp_path, text, nodes, line):
    """Two had "no container in it", four nodes were one, and an instance's type named no GPU."""
    (tmp_path / "m.yaml").write_text(text)
    job, notes = made(tmp_path, str(tmp_path / "m.yaml"))
    assert [(node["device"], node["count"]) for node in job["cluster"]["nodes"]] == nodes
    assert job["launch"]["current"].startswith(line)
    assert not any("no container" in note for note in notes)


def test_an_instance_without_gpus_names_no_kind(tmp_path):
    limited = LIMITED.replace(
        "nvidia.com/gpu.product: NVIDIA-A100-80GB-PCIe", "node.kubernetes.io/instance-type: m5.large"
    )
    (tmp_path / "m.yaml").write_text(DEPLOYMENT.rstrip() + limited)
    assert made(tmp_path, str(tmp_path / "m.yaml"))[0]["cluster"]["nodes"] == [{"device": "GPU", "count": 2}]


def test_a_worker_that_joins_a_server_is_no_other_server(tmp_path):
    worker = DEPLOYMENT.replace("Qwen/Qwen3-32B", "x").replace(
        'args: ["--model", "$(MODEL)", "--tensor-parallel-size", "4", "--max-model-len=32k"]',
        'command: [sh, -c, "bash multi-node-serving.sh worker"]',
    )
    gpus = "\n        resources: {limits: {nvidia.com/gpu: 4}}\n"
    (tmp_path / "m.yaml").write_text(f"{DEPLOYMENT.rstrip()}{gpus}---{worker.rstrip()}{gpus}")
    assert not any("containers that serve" in note for note in made(tmp_path, str(tmp_path / "m.yaml"))[1])
