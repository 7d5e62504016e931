"""The engine's defaults, from its record, for settings that a configuration leaves open: token budgets, concurrent
sequences, memory, admission, the host's work, and the API server in front of the engine."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from autoscout.simulate.serving.engine_shapes import numbers, switches
from autoscout.simulate.serving.served_by import Engines, Room, by_memory
from autoscout.simulate.serving.serving_device import ServingDevice

# An API server's event loop runs the first part of every waiting request before it continues with any of them.
# FIRST_PART is the share of the time per request that this first part takes. From four runs of gpt-oss-120b on H100
# with a thousand simultaneous requests.
FIRST_PART = 0.75
# Memory in GiB that A100s are treated as having when vLLM's default step size is looked up, because
# EngineArgs.get_batch_defaults excludes A100s from the larger default of 80 GB devices.
_SMALL_GIB = 69.0


@dataclass(frozen=True)
class Defaults:
    """Defaults of the engine's settings, (n,) each."""

    batched_tokens: np.ndarray
    max_seqs: np.ndarray
    utilization: np.ndarray
    reserved: np.ndarray
    chunked: np.ndarray
    front_end_s: np.ndarray
    request_s: np.ndarray


def defaults(
    device: ServingDevice, known: Engines, offline: np.ndarray, context: np.ndarray, tp: Any, of_harmony: np.ndarray
) -> Defaults:
    """The defaults of n configurations. `offline`: (n,) whether it is a fixed batch, which runs without an API server.
    `context`: the longest request in tokens. `of_harmony`: (n,) whether the model is of the GPT-OSS family, whose
    prompts use no chat template."""
    gib = min(device.memory_gib, _SMALL_GIB) if device.kernels.small_steps else device.memory_gib
    batched = np.where(
        offline,
        known.rules(lambda e: by_memory(e.room.offline_step_tokens, gib)),
        known.rules(lambda e: by_memory(e.room.step_tokens, gib)),
    )
    plain = known.own(lambda e: e.front_end.request_s)
    request_s = np.where(of_harmony, plain, known.own(lambda e: e.front_end.template_s or e.front_end.request_s))
    return Defaults(
        batched_tokens=np.where(
            known.rules(lambda e: e.room.step_holds_request), np.maximum(batched, context), batched
        ),
        max_seqs=known.rules(lambda e: by_memory(e.room.max_seqs, gib)),
        utilization=_utilization(known, device.memory_gib, tp),
        reserved=known.rules(lambda e: e.schedule.reserved),
        chunked=known.rules(lambda e: e.schedule.cut),
        front_end_s=np.where(offline, 0.0, known.own(lambda e: e.front_end.seconds)),
        request_s=np.where(offline, 0.0, request_s),
    )


def _utilization(known: Engines, gib: float, tp: Any) -> np.ndarray:
    """(n,) share of the device memory that the engine reserves."""
    kept = known.rules(lambda e: _kept_mib(e.room, gib)) + known.rules(lambda e: e.room.kept_tp_mib) * np.asarray(tp)
    least = known.rules(lambda e: by_memory(e.room.kept_least_mib, gib) if e.room.kept_mib else 0.0)
    stated = known.rules(lambda e: 0.0 if e.room.kept_mib else e.room.utilization)
    return np.where(stated > 0, stated, 1 - np.maximum(kept, least) / (gib * 1024))


def _kept_mib(room: Room, gib: float) -> float:
    if not room.kept_mib:
        return 0.0
    tokens, graphs = by_memory(room.step_tokens, gib), by_memory(room.kept_graphs, gib)
    return room.kept_mib + tokens * room.kept_token_mib + graphs * room.kept_graph_mib


def host_work(
    columns: Mapping[str, Any], known: Engines, device: ServingDevice, offline: np.ndarray
) -> dict[str, np.ndarray]:
    """The fields of EngineShapes that describe the host's work: `overlap`, `python_host`, `step`, `persistent` and
    `serial_us`. A CPU device is its own host: nothing overlaps, and this CPU's constants apply unscaled."""
    n, first, host_is_device = offline.shape, known.first, device.cpu
    beside = known.own(lambda e: e.schedule.beside)
    beside = np.where(first, beside, switches(columns, "async_scheduling", beside, *n))
    overlap = switches(columns, "overlap", beside, *n) & (not host_is_device)
    python = switches(columns, "python_host", known.own(lambda e: e.host.python), *n)
    streamed = np.broadcast_to(np.asarray(columns.get("streamed", ~offline), dtype=bool), n)
    # With multi-step scheduling (V0), the host works once per `scheduler_steps` steps.
    at_once = np.where(first, np.maximum(numbers(columns, "scheduler_steps", 1.0, *n), 1), 1)

    def share(usual: str, alone: str) -> np.ndarray:
        beside_it = known.own(lambda e: getattr(e.host, usual))
        by_itself = known.own(lambda e: getattr(e.host, usual if getattr(e.host, alone) is None else alone))
        own = np.where(overlap, beside_it, by_itself)
        own = np.where(known.own(lambda e: e.host.python) & ~python, 0.0, own)  # engine in C++
        return np.where(host_is_device & python, 1.0, own)

    each = share("sequence", "alone_sequence")
    unread = known.own(lambda e: np.nan if e.host.unread_sequence is None else e.host.unread_sequence)
    return {
        "overlap": overlap,
        "python_host": python,
        "step": share("step", "alone_step") / at_once,
        "persistent": np.where(streamed | np.isnan(unread), each, unread) / at_once,
        "serial_us": known.own(lambda e: e.kernels.serial_keys * device.kernels.reads_key_us),
    }
