"""Recipes from vLLM's guides for servers, based on vLLM's own defaults for a device.

throughput   as many engines as possible, each with the fewest devices that hold the model and the KV cache of
             its share of the requests
latency      one engine on all devices of a node, which compute each token together"""

from collections.abc import Iterator, Mapping
from typing import Any, Literal

from autoscout.space.graph import Space
from autoscout.targets.recipes import MARGIN, first, stated
from kb.records import Configuration, Value

Way = Literal["throughput", "latency"]
WAYS: tuple[Way, ...] = ("throughput", "latency")

_TOKEN_S = 0.03  # seconds per output token: reading a device's whole memory takes 22 ms (B200) to 39 ms (A100)
_NODE = 8  # maximum number of devices joined by NVLink


def portfolio(space: Space) -> list[Configuration]:
    """Returns the recipes of a space without duplicates, the one for throughput first."""
    found = [first(space, stated(space), advised(space, way)) for way in WAYS]
    return [c for i, c in enumerate(found) if c not in found[:i]]


def advised(space: Space, way: Way = "throughput") -> Iterator[dict[str, Value]]:
    """Yields sets of knob values, which an expert tries in turn until a configuration is valid. If no engine size has
    enough memory for its share of the requests, yields the smallest size that holds the model with about a tenth of
    memory free (and if possible the longest request)."""
    a = space.attributes
    block = {"block_size": 64 if a["latent"] else 16 if a["cuda"] else 128}
    kinds = [k.name for k in space.sparse if k.layer == "devices"]
    used: list[dict[str, Value]] = [{k: max(space.knob[k].values) if k == kind else 0 for k in kinds} for kind in kinds]
    sizes = sorted({tp * pp for tp in a["degrees"] for pp in a["degrees"]})
    for devices in used or [{}]:
        gpus = int(a["gpus"]) if "gpus" in a else sum(int(n) for n in devices.values())
        fitting = [size for size in sizes if a["weights_gib"] / size <= MARGIN * a["memory_gib"] and gpus % size == 0]
        roomy = [size for size in fitting if _room(a, size) >= _wanted(a, size / gpus)]
        one = [size for size in fitting if _room(a, size) >= a["kv_mib"] / 1024]
        spread = sorted(fitting, key=lambda size: (size > _NODE, -size))
        for size in spread if way == "latency" else [*roomy, *one, *fitting]:
            for tp in (d for d in reversed(a["degrees"]) if size % d == 0 and size // d in a["degrees"]):
                shape: dict[str, Value] = {**devices, "tp": tp, "pp": size // tp}
                yield {**shape, **block, **batches(a, size)}
    yield {}


def _room(a: Mapping[str, Any], size: int) -> float:
    """Returns the GiB for the KV cache in an engine of `size` devices."""
    return size * MARGIN * a["memory_gib"] - a["weights_gib"]


def _wanted(a: Mapping[str, Any], share: float) -> float:
    """Returns the GiB of KV cache for a fraction `share` of the concurrent requests, but at least for one request of
    maximum length. In an open loop, the number of concurrent requests follows from Little's law."""
    tokens = a["input_mean"] + a["output_mean"]
    together = a["concurrency"] or a["rate"] * a["output_mean"] * _TOKEN_S
    return max(together * share * tokens / a["model_len"], 1.0) * a["kv_mib"] / 1024


def batches(a: Mapping[str, Any], ranks: int) -> dict[str, Value]:
    """Returns vLLM's default limits on the requests and tokens of a step; on CPUs, also the largest KV cache."""
    if not a["cuda"]:
        return {"max_num_seqs": 128 * ranks, "max_num_batched_tokens": 2048 * ranks, "kv_cache_mib": a["kv_steps"][-1]}
    if a["memory_gib"] >= 160:
        return {"max_num_seqs": 1024, "max_num_batched_tokens": 16384}
    if a["memory_gib"] >= 70 and not a["small_steps"]:
        return {"max_num_seqs": 1024, "max_num_batched_tokens": 8192}
    return {"max_num_seqs": 256, "max_num_batched_tokens": 2048}
