"""Interprets the columns of a serving configuration: engine shapes, scheduler limits, memory and load.

Knobs may have the names of AutoScout's catalog or vLLM's. The job or the row of a table gives the model's shape
(`layers hidden heads kv_heads head_dim ffn gated vocab tied experts topk expert_ffn shared_ffn dense_layers dtype`, and
for latent attention the keys of DeepSeek's config.json, see latents.py), `gpu`, and the load: `batch` simultaneous
requests, or `concurrency` users, or `rate` requests per second, with `input_len` and `output_len` tokens, of which
`shared_prefix` tokens are common to all requests. Alternatively, `traffic` is a job's Traffic, which has all of these
and the distribution of lengths. `framework` and `version` name the engine, whose record (served_by.py) has the defaults
of these columns: `scheduler_v0`: prompts take precedence and have steps of their own, once in `scheduler_steps` steps;
`overlap`: the scheduler overlaps with the device; `decodes_between`, `decodes_between_from`: `held` and `held_from` in
held_back.py; `engines_apart`: data parallel engines share no experts; for TensorRT-LLM `evicts` (its policy
MAX_UTILIZATION), `adp_timeout_iters` and `adp_wait_iters` (its attention_dp_config)."""

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

import numpy as np

from autoscout.job.requests import DEFAULT_REQUESTS, of_traffic
from autoscout.simulate.hardware.device import usable_gib
from autoscout.simulate.serving import engines
from autoscout.simulate.serving.engine_shapes import EngineShapes, engine, numbers, switches
from autoscout.simulate.serving.kv_memory import CacheMemory, memory
from autoscout.simulate.serving.router_policies import own_servers
from autoscout.simulate.serving.served_by import engines_of
from autoscout.simulate.serving.serving_device import ServingDevice
from kb.records import Job, Traffic

# Column name → vLLM's name for it.
_ALIASES = {
    "tp": "tensor_parallel_size",
    "pp": "pipeline_parallel_size",
    "dp": "data_parallel_size",
    "ep": "enable_expert_parallel",
    "chunked_prefill": "enable_chunked_prefill",
    "prefix_caching": "enable_prefix_caching",
    "long_prefill": "long_prefill_token_threshold",
    "eager": "enforce_eager",
    "input_len": "input_mean",
    "output_len": "output_mean",
    "graph_size": "max_cudagraph_capture_size",
    "scheduler_steps": "num_scheduler_steps",
}
# Columns that a user's catalog may map its own knobs to, for engines other than vLLM.
READ = (
    *_ALIASES, "framework", "engines_apart", "scheduler_v0", "overlap", "max_num_seqs", "max_num_batched_tokens",
    "gpu_memory_utilization", "kv_cache_dtype", "quantization", "context", "block_size", "async_scheduling", "version",
    "python_host", "evicts", "front_end_ms", "request_ms", "power_cap",
    "adp_timeout_iters", "adp_wait_iters", "prompts_apart", "decodes_between", "decodes_between_from",
)  # fmt: skip
# Default of `length_spread` for tables that state only mean lengths: half of the range of lengths divided by their
# mean, as in benchmarks that draw lengths between 80 and 100 % of a maximum.
LENGTH_SPREAD = 0.1
_SAMPLE = 1000  # requests drawn to estimate the length distribution of a job's traffic


@dataclass(frozen=True)
class Setup:
    """n configurations on one kind of device; every field is (n,), except `input_quantiles` and `output_quantiles`:
    (101,) quantiles of the lengths relative to their means, at 0, 1, … 100 %."""

    engine: EngineShapes
    memory: CacheMemory
    replicas: np.ndarray
    max_seqs: np.ndarray
    batched_tokens: np.ndarray
    block: np.ndarray
    chunked: np.ndarray
    long_prompt: np.ndarray  # most tokens of one prompt in a step; infinite without a limit
    prefix_caching: np.ndarray
    version: np.ndarray
    reserved: np.ndarray  # `reserved` to `ahead`: as in held_back.EngineLimits
    held: np.ndarray
    held_from: np.ndarray
    held_several: np.ndarray
    apart: np.ndarray
    ahead: np.ndarray
    front_end_s: np.ndarray  # seconds of a request in the API server, before and after the engine
    request_s: np.ndarray  # seconds in which a request occupies the API server's event loop
    batch: np.ndarray
    concurrency: np.ndarray
    rate: np.ndarray
    input_len: np.ndarray
    output_len: np.ndarray
    shared_prefix: np.ndarray
    found: np.ndarray  # further tokens of a prompt that are already cached, but not for other requests
    requests: np.ndarray
    length_spread: np.ndarray
    input_quantiles: np.ndarray
    output_quantiles: np.ndarray

    def of(self, rows: np.ndarray) -> "Setup":
        shared = ("engine", "memory", "input_quantiles", "output_quantiles")
        own = {f.name: getattr(self, f.name)[rows] for f in fields(self) if f.name not in shared}
        held = CacheMemory(**{f.name: getattr(self.memory, f.name)[rows] for f in fields(CacheMemory)})
        return Setup(
            engine=self.engine.of(rows),
            memory=held,
            input_quantiles=self.input_quantiles,
            output_quantiles=self.output_quantiles,
            **own,
        )


def columns_of_job(job: Job) -> dict[str, Any]:
    """Columns of a serving job that its space's attributes lack: details of the model, and the traffic."""
    m = job.model
    return {"gated": m.gated, "tied": m.tied, "dtype": m.dtype, "traffic": job.traffic}


def setup(columns: Mapping[str, Any], device: ServingDevice, n: int) -> Setup:
    """The setup of n configurations on `device`. Columns that are scalars apply to all of them."""
    columns = {
        **columns,
        **{ours: columns[other] for ours, other in _ALIASES.items() if other in columns and ours not in columns},
    }

    def number(name: str, default: Any) -> np.ndarray:
        return numbers(columns, name, default, n)

    if "router" in columns:
        columns["engines_apart"] = np.maximum(number("engines_apart", 0), own_servers(columns, n))
    load = _load(columns, n)
    offline = load["batch"] > 0
    known = engines_of(columns, n)
    first = known.first
    mixed = switches(columns, "chunked_prefill", False, n) & known.rules(lambda e: e.schedule.cuts_mix)
    version = np.where(first & ~mixed, 0, 1)  # with chunked prefill, V0 also mixes prompts and decodes
    work = engines.host_work(columns, known, device, offline)
    ahead = work["overlap"] & work["python_host"] & ~offline
    eager = (version == 0) | known.rules(lambda e: e.schedule.eager_prompts)
    e = engine({**columns, "eager_prompts": eager, **work}, device, n)
    gib = usable_gib(number("memory_gib", np.nan), device.memory_gib)
    context = number("context", 4096)
    usual = engines.defaults(device, known, offline, context, e.tp, of_harmony=number("sinks", 0) > 0)
    chunked = switches(columns, "chunked_prefill", usual.chunked, n)
    ran = "version" in columns  # as in tables, whose rows ran, so their prompts fit into the step budget
    longest = load["input_len"] * (1 + load["length_spread"]) + load["concurrency"] / number("dp", 1)
    held = np.where(ran & ~chunked, np.maximum(usual.batched_tokens, np.ceil(longest)), usual.batched_tokens)
    batched = number("max_num_batched_tokens", held)
    seqs = np.minimum(number("max_num_seqs", usual.max_seqs), batched)
    utilization = number("gpu_memory_utilization", usual.utilization)
    at_once = np.where(first & (number("scheduler_steps", 1) > 1), number("scheduler_steps", 1), 0.0)
    timeout = np.where(e.meeting > 1, np.maximum(number("adp_timeout_iters", 0) - 1, 0), 0.0)
    apart = np.where(first, number("prompts_apart", 0), 0.0)
    between = np.where(first, 0.0, number("decodes_between", 0))
    whole = np.maximum(load["input_len"] + load["output_len"], 1.0)
    kv_bytes = np.maximum(number("kv_cache_memory_bytes", 0), number("kv_cache_mib", 0) * 2.0**20)
    return Setup(
        engine=e,
        memory=memory(e, known, gib, utilization, batched, seqs, kv_bytes, whole),
        replicas=number("dp", 1),
        max_seqs=seqs,
        batched_tokens=batched,
        block=number("block_size", 16),
        chunked=chunked,
        long_prompt=_cap(number("long_prefill", 0)),
        prefix_caching=switches(columns, "prefix_caching", (version == 1) | known.rules(lambda e: e.schedule.keeps), n),
        version=version,
        reserved=np.where(switches(columns, "evicts", False, n), 0.0, usual.reserved),
        held=np.maximum.reduce([at_once, timeout, between, apart > 0]),
        held_from=np.where(between > 0, number("decodes_between_from", 0), 0.0),
        held_several=np.where(timeout > 0, number("adp_wait_iters", 0), np.maximum(at_once, between)),
        apart=apart,
        ahead=ahead,
        found=np.zeros(n),
        front_end_s=number("front_end_ms", usual.front_end_s * 1e3) * 1e-3,
        request_s=number("request_ms", usual.request_s * 1e3) * 1e-3,
        **load,
    )


def _cap(tokens: np.ndarray) -> np.ndarray:
    return np.where(tokens > 0, tokens, np.inf)


def _load(columns: Mapping[str, Any], n: int) -> dict[str, np.ndarray]:
    flat = np.ones(101)
    traffic = columns.get("traffic")
    if isinstance(traffic, Traffic):
        sample = of_traffic(traffic, requests=_SAMPLE)
        gaps = float(sample.arrival_s[-1])
        of_trace = traffic.trace and not (traffic.rate or traffic.concurrency)
        values = {
            "batch": 0.0,
            "concurrency": float(traffic.concurrency),
            "rate": (len(sample) - 1) / gaps if of_trace and gaps > 0 else traffic.rate,
            "input_len": float(sample.input_len.mean()),
            "output_len": float(sample.output_len.mean()),
            "shared_prefix": float(traffic.shared_prefix),
            "requests": float(traffic.requests or DEFAULT_REQUESTS),
            "length_spread": 0.0,  # the quantiles describe the spread
        }
        at = np.linspace(0, 1, 101)
        return {
            **{name: np.full(n, value) for name, value in values.items()},
            "input_quantiles": np.quantile(sample.input_len, at) / sample.input_len.mean(),
            "output_quantiles": np.quantile(sample.output_len, at) / sample.output_len.mean(),
        }
    names = ("batch", "concurrency", "rate", "input_len", "output_len", "shared_prefix", "requests")
    values = {name: numbers(columns, name, 0.0, n) for name in names}
    values["requests"] = np.where(values["requests"] > 0, values["requests"], DEFAULT_REQUESTS)
    # Requests of fixed batches are assumed to have equal lengths; requests that arrive over time are not.
    said = np.broadcast_to(np.asarray(columns.get("length_spread", np.nan), dtype=float), (n,))
    spread = np.where(values["batch"] > 0, 0.0, np.where(np.isnan(said), LENGTH_SPREAD, said))
    return {**values, "length_spread": spread, "input_quantiles": flat, "output_quantiles": flat}
