"""The winner of a serving job to run elsewhere: `vllm serve` as a command, YAML file, Slurm script or Kubernetes
manifest."""

import json
import shlex
from typing import TYPE_CHECKING, NamedTuple

from kb import door
from kb.records import Configuration, Job, Value

if TYPE_CHECKING:
    from autoscout.deploy.export import Launch

MODEL = "MODEL"  # where the job has random weights only
PORT = 8000
IMAGE = "vllm/vllm-openai"
_RAY_PORT = 6379


class Parts(NamedTuple):
    """Of a launch. `missing`: what only the person knows."""

    model: str
    flags: dict[str, Value]
    environment: dict[str, str]
    devices: int
    nodes: int
    missing: list[str]


def parts(job: Job, configuration: Configuration) -> Parts:
    from autoscout.targets.vllm import arguments

    flags = arguments.flags(arguments.engine_arguments(job, configuration))
    missing = [] if job.launch.model_path else [f"the model in place of {MODEL}"]
    if not _on_gpus(job):
        missing.append("for Kubernetes an image with vLLM for CPUs in place of IMAGE")
    nodes = len(arguments.used_nodes(job, configuration)) if arguments.placement(job, configuration) else 1
    if nodes > 1:
        missing.append(f"a Ray cluster of {nodes} nodes (`ray start` on each, which the Slurm script does)")
    return Parts(
        model=job.launch.model_path or MODEL,
        flags=flags,
        environment=arguments.environment_variables(job),
        devices=arguments.world_size(configuration),
        nodes=nodes,
        missing=missing,
    )


def image(job: Job) -> str:
    from autoscout.space.knob import load_catalog

    return f"{IMAGE}:v{load_catalog('vllm').version}" if _on_gpus(job) else "IMAGE"


def command(found: "Launch") -> str:
    lines = [*_heads(found), *[f"export {name}={shlex.quote(value)}" for name, value in found.environment.items()]]
    return "\n".join(lines) + "\n" + _serve(found) + "\n"


def yaml(found: "Launch") -> str:
    """For `vllm serve --config FILE.yaml`. JSON scalars are YAML scalars."""
    lines = [
        *_heads(found),
        *[f"# needs in the environment: {k}={door.plain(v)}" for k, v in found.environment.items()],
    ]
    lines.append(f"model: {json.dumps(found.model)}")
    for flag, value in found.arguments.items():
        name = flag.removeprefix("--")
        off = value is True and name.startswith("no-")
        lines.append(f"{name.removeprefix('no-')}: false" if off else f"{name}: {json.dumps(value)}")
    return "\n".join(lines) + "\n"


def slurm(found: "Launch") -> str:
    gpus = [f"#SBATCH --gpus-per-node={found.devices // found.nodes}"] if found.image != "IMAGE" else []
    lines = [
        "#!/bin/bash",
        f"#SBATCH --job-name={door.plain(found.job)}",
        f"#SBATCH --nodes={found.nodes}",
        "#SBATCH --ntasks-per-node=1",
        *gpus,
        *_heads(found),
        "set -euo pipefail",
        *[f"export {name}={shlex.quote(value)}" for name, value in found.environment.items()],
        *(_ray(found.nodes) if found.nodes > 1 else []),
        f"srun --nodes=1 --ntasks=1 --overlap {_serve(found)}",
    ]
    return "\n".join(lines) + "\n"


def _ray(nodes: int) -> list[str]:
    """A Ray cluster over the nodes of the Slurm job, from which vLLM takes its workers."""
    others = f'srun --nodes={nodes - 1} --ntasks={nodes - 1} --overlap -x "$head"'
    alive = "ray list nodes --filter state=ALIVE --format=json | grep -c node_id"
    return [
        'head=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)',
        f'export RAY_ADDRESS="$head:{_RAY_PORT}"',
        f'srun --nodes=1 --ntasks=1 --overlap -w "$head" ray start --head --port={_RAY_PORT} --block &',
        f'{others} ray start --address="$RAY_ADDRESS" --block &',
        f'until [ "$({alive})" -ge {nodes} ]; do sleep 2; done',
    ]


def k8s(found: "Launch") -> str:
    """A Deployment and its Service. The engine's processes share memory through /dev/shm."""
    name = "".join(c if c.isalnum() else "-" for c in found.job.lower()).strip("-")
    words = ["serve", found.model, "--host", "0.0.0.0", "--port", str(PORT)]
    words += [word for pair in pairs(found) for word in pair]
    gpus = ["          resources:", f'            limits: {{ "nvidia.com/gpu": {found.devices} }}']
    env = [f"            - {{ name: {k}, value: {json.dumps(v)} }}" for k, v in found.environment.items()]
    lines = [
        *_heads(found),
        "apiVersion: apps/v1",
        "kind: Deployment",
        f"metadata: {{ name: {name} }}",
        "spec:",
        "  replicas: 1",
        f"  selector: {{ matchLabels: {{ app: {name} }} }}",
        "  template:",
        f"    metadata: {{ labels: {{ app: {name} }} }}",
        "    spec:",
        "      containers:",
        "        - name: vllm",
        f"          image: {json.dumps(found.image)}",
        '          command: ["vllm"]',
        "          args:",
        *[f"            - {json.dumps(word)}" for word in words],
        *(["          env:", *env] if env else []),
        f"          ports: [{{ containerPort: {PORT} }}]",
        f"          readinessProbe: {{ httpGet: {{ path: /health, port: {PORT} }}, periodSeconds: 5 }}",
        *(gpus if found.image != "IMAGE" else []),
        "          volumeMounts: [{ name: shm, mountPath: /dev/shm }]",
        "      volumes: [{ name: shm, emptyDir: { medium: Memory } }]",
        "---",
        "apiVersion: v1",
        "kind: Service",
        f"metadata: {{ name: {name} }}",
        f"spec: {{ selector: {{ app: {name} }}, ports: [{{ port: 80, targetPort: {PORT} }}] }}",
    ]
    return "\n".join(lines) + "\n"


def pairs(found: "Launch") -> list[list[str]]:
    return [[flag] if value is True else [flag, str(value)] for flag, value in found.arguments.items()]


def _serve(found: "Launch") -> str:
    flags = [f"  {shlex.join(pair)}" for pair in pairs(found)]
    return " \\\n".join([f"vllm serve {shlex.quote(found.model)}", *flags])


def _heads(found: "Launch") -> list[str]:
    heads = [f"{found.job}: {found.name}", found.evidence]
    heads += [f"add: {'; '.join(found.missing)}"] if found.missing else []
    return [f"# {door.plain(text)}" for text in heads]


def _on_gpus(job: Job) -> bool:
    return all(node.device != "cpu" for node in job.cluster.nodes)
