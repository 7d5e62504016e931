"""The winner as something to run elsewhere: Megatron-LM's own command line, or `vllm serve` (export_serving.py), as
shell, JSON, YAML, a Slurm script or a Kubernetes manifest."""

import json
import math
import shlex
from pathlib import Path
from typing import Literal

import msgspec

from autoscout.targets.vllm import formats
from kb import door
from kb.records import AutoscoutError, Configuration, Job, Value, shape

Format = Literal["command", "json", "yaml", "slurm", "k8s"]
SCRIPT = "pretrain_gpt.py"  # of Megatron-LM
_FP32_BYTES = 4


class Launch(msgspec.Struct, frozen=True, kw_only=True):
    """`arguments` of the training script, flags without a value carry True; what the person has to add (data,
    checkpoints, the tokenizer) is in `missing`."""

    job: str
    name: str
    devices: int
    nodes: int
    environment: dict[str, str]
    arguments: dict[str, Value]
    missing: list[str]
    evidence: str
    model: str = ""  # a serving job's: a name or a folder
    image: str = ""  # and its container's


def of_session(kb: Path, session: str, assignments: list[str]) -> Launch:
    """The winner of a session, or that winner with other values for some knobs (then nothing was measured of it).

    Errors: AutoscoutError (exit 2) for an invalid configuration, (exit 1) for a session without a result.
    """
    # Here, not above: the screens draw launches too, and must not wait for numpy and networkx.
    from autoscout.deploy.recommendation import best_of_session
    from autoscout.space.explain import completed, parse
    from autoscout.space.graph import Space
    from autoscout.tuning.session import session_started

    found = best_of_session(kb, session)
    job = session_started(kb, session).job
    winner, space = Configuration(found.best.configuration), Space.of_job(job)
    if not assignments:
        return launch(job, winner, space.name(winner), found.evidence)
    other = completed(space, parse(space, assignments), winner)
    return launch(job, other, space.name(other), "not the winner: asked for with --config")


def checked(kb: Path, session: str, found: Launch, form: Format) -> float:
    """Seconds until the exported server was ready on this machine. Errors: AutoscoutError (exit 2) for what is no
    serving job, (exit 1) for one that does not start or does not answer, with the cause."""
    from autoscout.targets.vllm.check import check
    from autoscout.tuning.session import session_started

    if not found.model:
        raise AutoscoutError("--check starts servers; a training job has no data here to start with", 2)
    return check(session_started(kb, session).job, found, form)


def launch(job: Job, configuration: Configuration, name: str, evidence: str) -> Launch:
    """Errors: AutoscoutError (exit 2) for a target that has no launch command yet."""
    if job.target == "vllm":
        return _serving(job, configuration, name, evidence)
    if job.target != "megatron":
        raise AutoscoutError(f"there is no export for target = '{job.target}' yet; `autoscout best` shows its knobs", 2)
    return Launch(
        job=job.name,
        name=name,
        devices=_devices(job, configuration),
        nodes=len(job.cluster.nodes),
        environment=_environment(configuration),
        arguments={**_model(job), **_traffic(job), **_knobs(job, configuration.knobs)},
        missing=_missing(configuration),
        evidence=evidence,
    )


def render(found: Launch, form: Format) -> str:
    """Errors: AutoscoutError (exit 2) for a training job as a Kubernetes manifest."""
    if form == "json":
        return json.dumps(msgspec.to_builtins(found), indent=2)
    if found.model:
        return {
            "command": formats.command,
            "yaml": formats.yaml,
            "slurm": formats.slurm,
            "k8s": formats.k8s,
        }[form](found)
    if form == "k8s":
        raise AutoscoutError("--format k8s is for serving jobs; a training job goes as command or slurm", 2)
    if form == "yaml":
        return _yaml(found)
    if form == "slurm":
        return _slurm(found)
    return _command(found)


def _serving(job: Job, configuration: Configuration, name: str, evidence: str) -> Launch:
    parts = formats.parts(job, configuration)
    return Launch(
        job=job.name,
        name=name,
        devices=parts.devices,
        nodes=parts.nodes,
        environment=parts.environment,
        arguments=parts.flags,
        missing=parts.missing,
        evidence=evidence,
        model=parts.model,
        image=formats.image(job),
    )


def _environment(configuration: Configuration) -> dict[str, str]:
    """Communication must be enqueued before the GEMM that it overlaps with: Megatron-LM insists."""
    knobs = configuration.knobs
    grouped = int(knobs.get("tp", 1)) > 1 or int(knobs.get("cp", 1)) > 1
    return {"CUDA_DEVICE_MAX_CONNECTIONS": "1"} if grouped else {}


def _missing(configuration: Configuration) -> list[str]:
    """What only the person knows, or what has no flag."""
    missing = ["--data-path or --mock-data", "--tokenizer-type and its model", "--train-iters", "--lr", "--save"]
    if "tp_comm" in configuration.knobs:
        missing.append(f"--tp-comm-overlap-cfg FILE with num_sm: {configuration.knobs['tp_comm']} for each GEMM")
    return missing


def _devices(job: Job, configuration: Configuration) -> int:
    """Those that the configuration uses: a mixed cluster may leave a kind out."""
    used = math.prod(int(configuration.knobs.get(n, 1)) for n in ("tp", "pp", "cp", "dp"))
    return used or job.devices


def _model(job: Job) -> dict[str, Value]:
    m = shape(job.model)
    arguments: dict[str, Value] = {
        "--num-layers": m.layers,
        "--hidden-size": m.hidden,
        "--num-attention-heads": m.heads,
        "--kv-channels": m.head_dim,
        "--ffn-hidden-size": m.ffn,
        "--vocab-size": m.vocab,
        "--position-embedding-type": {"rope": "rope", "learned": "learned_absolute"}[m.position],
        "--normalization": {"layernorm": "LayerNorm", "rmsnorm": "RMSNorm"}[m.norm],
        "--transformer-impl": "transformer_engine" if job.launch.transformer_engine else "local",
    }
    if m.kv_heads != m.heads:
        arguments |= {"--group-query-attention": True, "--num-query-groups": m.kv_heads}
    if m.gated:
        arguments["--swiglu"] = True
    if not m.bias:
        arguments["--disable-bias-linear"] = True
    if not m.tied:
        arguments["--untie-embeddings-and-output-weights"] = True
    if m.dtype == "bf16":
        arguments["--bf16"] = True
    if m.experts:
        arguments |= {
            "--num-experts": m.experts,
            "--moe-router-topk": m.topk,
            "--moe-ffn-hidden-size": m.expert_ffn,
        }
    return arguments


def _traffic(job: Job) -> dict[str, Value]:
    seq_len = job.traffic.seq_len
    return {
        "--seq-length": seq_len,
        "--max-position-embeddings": seq_len,
        "--global-batch-size": job.traffic.global_batch,
    }


def _knobs(job: Job, knobs: dict[str, Value]) -> dict[str, Value]:
    arguments: dict[str, Value] = {"--micro-batch-size": knobs["mbs"]}
    for knob, flag in _DEGREES.items():
        if knob in knobs:
            arguments[flag] = knobs[knob]
    for knob, flag in _SWITCHES.items():
        if knobs.get(knob):
            arguments[flag] = True
    if int(knobs.get("vpp", 1)) > 1:
        arguments["--num-virtual-stages-per-pipeline-rank"] = knobs["vpp"]
        if not knobs.get("overlap_p2p"):
            arguments["--no-overlap-p2p-communication"] = True
    if knobs.get("ar", "none") != "none":
        arguments["--recompute-granularity"] = knobs["ar"]
    if knobs.get("ar") == "full":
        arguments["--recompute-method"] = knobs.get("ar_method", "uniform")
        arguments["--recompute-num-layers"] = knobs.get("ar_layers", 1)
    if "ddp_bucket" in knobs:
        arguments["--ddp-bucket-size"] = int(float(knobs["ddp_bucket"]) * 2**20 / _FP32_BYTES)
    if "dispatcher" in knobs:
        arguments["--moe-token-dispatcher-type"] = knobs["dispatcher"]
    return arguments


_DEGREES = {
    "pp": "--pipeline-model-parallel-size",
    "tp": "--tensor-model-parallel-size",
    "cp": "--context-parallel-size",
    "ep": "--expert-model-parallel-size",
    "etp": "--expert-tensor-parallel-size",
}
_SWITCHES = {
    "sp": "--sequence-parallel",
    "tp_comm_overlap": "--tp-comm-overlap",
    "distopt": "--use-distributed-optimizer",
    "overlap_grad": "--overlap-grad-reduce",
    "overlap_param": "--overlap-param-gather",
}


def _command(found: Launch) -> str:
    per_node = found.devices // found.nodes if found.devices % found.nodes == 0 else found.devices
    lines = comments(f"{found.job}: {found.name}", found.evidence, f"add: {', '.join(found.missing)}")
    lines += [f"export {name}={shlex.quote(value)}" for name, value in found.environment.items()]
    flags = [f"  {' '.join(shlex.quote(w) for w in pair)}" for pair in _pairs(found)]
    head = f"torchrun --nproc-per-node {per_node} --nnodes {found.nodes} {SCRIPT}"
    return "\n".join(lines) + "\n" + " \\\n".join([head, *flags]) + "\n"


def comments(*texts: str) -> list[str]:
    """Each text as one comment line: a name from elsewhere must not begin a line of its own."""
    return [f"# {door.plain(text)}" for text in texts]


def _pairs(found: Launch) -> list[list[str]]:
    return [[flag] if value is True else [flag, str(value)] for flag, value in found.arguments.items()]


def _yaml(found: Launch) -> str:
    """JSON scalars are YAML scalars."""
    lines = [*comments(f"{found.job}: {found.name}", found.evidence), "environment:"]
    lines += [f"  {name}: {json.dumps(value)}" for name, value in found.environment.items()] or ["  {}"]
    lines.append("arguments:")
    lines += [f"  {flag.removeprefix('--')}: {json.dumps(value)}" for flag, value in found.arguments.items()]
    return "\n".join(lines) + "\n"


def _slurm(found: Launch) -> str:
    per_node = max(1, found.devices // found.nodes)
    lines = [
        "#!/bin/bash",
        f"#SBATCH --job-name={door.plain(found.job)}",
        f"#SBATCH --nodes={found.nodes}",
        "#SBATCH --ntasks-per-node=1",
        f"#SBATCH --gpus-per-node={per_node}",
        *comments(f"{found.name}: {found.evidence}", f"add: {', '.join(found.missing)}"),
        "set -euo pipefail",
        *[f"export {name}={shlex.quote(value)}" for name, value in found.environment.items()],
        'head=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)',
        f"srun torchrun --nnodes {found.nodes} --nproc-per-node {per_node} \\",
        f'  --rdzv-backend c10d --rdzv-endpoint "$head:29500" {SCRIPT} \\',
        " \\\n".join(f"  {' '.join(shlex.quote(w) for w in pair)}" for pair in _pairs(found)),
    ]
    return "\n".join(lines) + "\n"
