"""What the engines do where no switch says otherwise: token budgets, sequences at once, memory, admission, and the
server before them.

vLLM: EngineArgs.get_batch_defaults of 0.14. SGLang: ServerArgs of 0.5 (chunked_prefill_size, mem_fraction_static and
cuda_graph_max_bs by the device's memory). TensorRT-LLM: the arguments of trtllm-serve 1.0 and its scheduler
GUARANTEED_NO_EVICT, which admits what can run to its end (with a column `evicts`, its MAX_UTILIZATION); prompts are
read whole, and longer ones than a step refused, unless `--enable_chunked_prefill` is given.

The times below are chosen by public runs (docs/simulators-serving.md says which ones were in sight).
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from autoscout.simulate.serving.serving_device import ServingDevice

# Seconds in which a server's front end (HTTP, chat template, tokens, processes) has a request before and after the
# engine, by engine (their mean: in a closed loop half as long for one and half longer for another, or users would keep
# step with the engine); and seconds for which one request keeps it busy, so that a thousand at once queue there.
FRONT_END_S = (0.016, 0.008, 0.018)
REQUEST_S = 0.0015
# Share of that which its event loop does for all requests that have come before it goes on with any: of a thousand at
# once, four runs of gpt-oss-120b on H100.
FIRST_PART = 0.75
# SGLang's estimate of how much of their answers the running requests still write, after the 600 steps in which it falls
# from 0.7 to this (SGLANG_MIN_NEW_TOKEN_RATIO_FACTOR); it rises again where a request had to be retracted.
_SGLANG_RATIO = 0.1


@dataclass(frozen=True)
class Defaults:
    """(n,) each. `reserved`: share of the running requests' answers that must have room before another is admitted;
    `chunked`: a step may take a part of a prompt; `apart`: activations lie outside of the share of memory that
    `utilization` says; `of_free`: that is a share of what is free beside the weights; `keeps_all`: layers with windows
    keep all keys, too (TensorRT-LLM's, unless max_attention_window is set: gpt-oss-120b's long answers in its
    overview)."""

    batched_tokens: np.ndarray
    max_seqs: np.ndarray
    utilization: np.ndarray
    reserved: np.ndarray
    chunked: np.ndarray
    apart: np.ndarray
    of_free: np.ndarray
    keeps_all: np.ndarray
    front_end_s: np.ndarray
    request_s: np.ndarray


def kinds(columns: Mapping[str, Any], offline: np.ndarray) -> np.ndarray:
    """(n,) 0: as vLLM does, 1: SGLang, 2: TensorRT-LLM. Fixed batches of other engines are run as by vLLM's version
    0."""
    names = np.char.lower(np.broadcast_to(np.asarray(columns.get("framework", "vllm"), dtype=str), offline.shape))
    found = np.where(np.char.find(names, "sglang") >= 0, 1, np.where(np.char.find(names, "tensorrt") >= 0, 2, 0))
    return np.where(offline, 0, found)


def defaults(
    device: ServingDevice, kind: np.ndarray, version: np.ndarray, offline: np.ndarray, context: np.ndarray, tp: Any
) -> Defaults:
    """`version`: 0 for vLLM before 0.8. A fixed batch has no server."""
    gib = device.memory_gib
    large = gib >= 70 and not device.kernels.small_steps
    batched = np.where(offline, 16384 if large else 8192, 8192 if large else 2048)
    batched = np.where(version == 0, np.maximum(2048, context), batched)
    seqs = np.where(version == 0, 256, 1024 if large else 256)
    chunk, graphs = (2048, 24) if gib < 35 else (4096, 32) if gib < 60 else (8192 if gib < 160 else 16384, 256)
    kept_mib = 512 + chunk * 1.5 + graphs * 2 + np.asarray(tp) / 8 * 1024
    static = 1 - (np.maximum(kept_mib, 10240) if gib > 60 else kept_mib) / (gib * 1024)
    served = np.array(FRONT_END_S)[kind]
    by_kind = [kind == 1, kind == 2]
    return Defaults(
        batched_tokens=np.select(by_kind, [np.full(kind.shape, chunk), np.full(kind.shape, 8192)], batched),
        max_seqs=np.select(by_kind, [2048, 2048], seqs),
        utilization=np.select(by_kind, [static * np.ones(kind.shape), 0.9], np.where(version == 0, 0.9, 0.92)),
        reserved=np.select(by_kind, [_SGLANG_RATIO, 1.0], 0.0),
        chunked=np.select(by_kind, [True, False], version == 1),
        apart=kind == 1,
        of_free=kind == 2,
        keeps_all=kind == 2,
        front_end_s=np.where(offline, 0.0, served),
        request_s=np.where(offline, 0.0, REQUEST_S),
    )
