"""The capacity of the KV cache, computed as vLLM does when it profiles its memory at startup:

KV cache = device memory × gpu_memory_utilization - weights - activations of the largest step - memory beyond torch"""

from dataclasses import dataclass

import numpy as np

from autoscout.simulate.serving.engine_shapes import EngineShapes
from autoscout.simulate.serving.served_by import Engines

GIB = 2.0**30  # bytes


@dataclass(frozen=True)
class CacheMemory:
    """Memory per device in GiB, (n,) each. `kv_tokens`: context tokens that fit into one replica's cache; at 0 or
    below, the engine does not start."""

    weights_gib: np.ndarray
    activations_gib: np.ndarray
    other_gib: np.ndarray
    kv_gib: np.ndarray
    kv_tokens: np.ndarray

    @property
    def peak_gib(self) -> np.ndarray:
        return self.weights_gib + self.activations_gib + self.other_gib + np.maximum(self.kv_gib, 0.0)


def memory(
    e: EngineShapes,
    known: Engines,
    device_gib: np.ndarray,
    utilization: np.ndarray,
    batched_tokens: np.ndarray,
    max_seqs: np.ndarray,
    kv_cache_bytes: np.ndarray,
    request_tokens: np.ndarray,
) -> CacheMemory:
    """The memory of n configurations. `kv_cache_bytes` > 0 sets the cache size and overrides `utilization`, like vLLM's
    kv_cache_memory_bytes. `request_tokens`: mean tokens of a request; sliding-window layers cache only the last
    window of them."""
    mixture = np.maximum(e.topk * e.expert_ffn + e.shared_ffn, np.where(e.dense_layers > 0, e.ffn, 0.0))
    feed = (e.up + 1) * np.where(e.experts > 0, mixture, e.ffn)
    widest = np.maximum(feed, (2 * e.heads + 2 * e.kv_heads) * e.head_dim) + 4 * e.hidden
    sampled = np.minimum(max_seqs, batched_tokens) * e.vocab * e.tp * 3 * 4  # fp32 logits and two copies
    activations = (batched_tokens * widest * 2 + sampled) / GIB
    weights = e.params_bytes / GIB
    several = e.tp * e.pp > 1
    other = np.where(several, known.own(lambda k: k.memory.outside_nccl_gib), known.own(lambda k: k.memory.outside_gib))
    left = device_gib * utilization - weights - activations - other
    apart = known.rules(lambda k: k.room.apart)  # whether the utilization excludes activations
    left = np.where(apart, (device_gib - other) * utilization - weights, left)
    of_free = known.rules(lambda k: k.room.of_free)
    left = np.where(of_free, utilization * (device_gib - weights - activations - other), left)
    kv_gib = np.where(kv_cache_bytes > 0, kv_cache_bytes / GIB, left)
    of_layers = e.kv_bytes * np.ceil(e.layers / e.pp)
    windowed = np.where(known.rules(lambda k: k.room.keeps_all), 0.0, e.windowed)
    per_token, window = of_layers * (1 - windowed), of_layers * windowed * np.minimum(e.window, request_tokens)
    held = kv_gib * GIB
    tokens = np.maximum(held / (per_token + window / request_tokens), (held - window * max_seqs) / per_token)
    return CacheMemory(weights, activations, other, kv_gib, np.floor(tokens))
