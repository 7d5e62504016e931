"""The winner of a serving job to run elsewhere: `vllm serve` as a command, YAML file, Slurm script or Kubernetes
manifest."""

import json
import shlex
from typing import TYPE_CHECKING

from kb.records import Configuration, Job, Value

if TYPE_CHECKING:
    from autoscout.export import Launch

MODEL = "MODEL"  # where the job has random weights only
PORT = 8000
IMAGE = "vllm/vllm-openai"


def parts(job: Job, configuration: Configuration) -> tuple[str, dict[str, Value], dict[str, str], int, list[str]]:
    """(model, flags of `vllm serve`, environment, devices, what only the person knows)."""
    from autoscout.profile import vllm

    flags = vllm.flags(vllm.engine_arguments(job, configuration))
    missing = [] if job.launch.model_path else [f"the model in place of {MODEL}"]
    if not _on_gpus(job):
        missing.append("for Kubernetes an image with vLLM for CPUs in place of IMAGE")
    return (
        job.launch.model_path or MODEL,
        flags,
        vllm.environment_variables(job),
        vllm.world_size(configuration),
        missing,
    )


def image(job: Job) -> str:
    from autoscout.space.knob import load_catalog

    return f"{IMAGE}:v{load_catalog('vllm').version}" if _on_gpus(job) else "IMAGE"


def command(found: "Launch") -> str:
    lines = [*_heads(found), *[f"export {name}={shlex.quote(value)}" for name, value in found.environment.items()]]
    return "\n".join(lines) + "\n" + _serve(found) + "\n"


def yaml(found: "Launch") -> str:
    """For `vllm serve --config FILE.yaml`. JSON scalars are YAML scalars."""
    lines = [*_heads(found), *[f"# needs in the environment: {k}={v}" for k, v in found.environment.items()]]
    lines.append(f"model: {json.dumps(found.model)}")
    for flag, value in found.arguments.items():
        name = flag.removeprefix("--")
        off = value is True and name.startswith("no-")
        lines.append(f"{name.removeprefix('no-')}: false" if off else f"{name}: {json.dumps(value)}")
    return "\n".join(lines) + "\n"


def slurm(found: "Launch") -> str:
    gpus = [f"#SBATCH --gpus-per-node={found.devices}"] if found.image != "IMAGE" else []
    lines = [
        "#!/bin/bash",
        f"#SBATCH --job-name={found.job}",
        "#SBATCH --nodes=1",
        "#SBATCH --ntasks=1",
        *gpus,
        *_heads(found),
        "set -euo pipefail",
        *[f"export {name}={shlex.quote(value)}" for name, value in found.environment.items()],
        f"srun {_serve(found)}",
    ]
    return "\n".join(lines) + "\n"


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
    heads = [f"# {found.job}: {found.name}", f"# {found.evidence}"]
    return heads + ([f"# add: {'; '.join(found.missing)}"] if found.missing else [])


def _on_gpus(job: Job) -> bool:
    return all(node.device != "cpu" for node in job.cluster.nodes)
