"""What vLLM does by default for a device, with the smallest tensor parallel size (and then pipeline) that fits."""

from collections.abc import Iterator, Mapping
from typing import Any

from autoscout.space.graph import Space
from autoscout.targets.recipes import MARGIN
from kb.records import Value


def advised(space: Space) -> Iterator[dict[str, Value]]:
    """vLLM's defaults for a server, which depend on the device (engine/arg_utils.py:2894, get_batch_defaults), on
    the fewest devices per engine that hold the model beside a fifth of memory for everything else."""
    a = space.attributes
    block = {"block_size": 16 if a["cuda"] else 128}
    kinds = [k.name for k in space.sparse if k.layer == "devices"]
    used: list[dict[str, Value]] = [{k: max(space.knob[k].values) if k == kind else 0 for k in kinds} for kind in kinds]
    for devices in used or [{}]:
        for size in sorted({tp * pp for tp in a["degrees"] for pp in a["degrees"]}):
            for tp in (d for d in reversed(a["degrees"]) if size % d == 0 and size // d in a["degrees"]):
                if a["weights_gib"] / size > MARGIN * a["memory_gib"]:
                    continue
                shape: dict[str, Value] = {**devices, "tp": tp, "pp": size // tp}
                yield {**shape, **block, **batches(a, size)}
    yield {}


def batches(a: Mapping[str, Any], ranks: int) -> dict[str, Value]:
    """How much a step takes in, if nobody says anything."""
    if not a["cuda"]:
        return {"max_num_seqs": 128 * ranks, "max_num_batched_tokens": 2048 * ranks, "kv_cache_mib": a["kv_steps"][-1]}
    if a["memory_gib"] >= 160:
        return {"max_num_seqs": 1024, "max_num_batched_tokens": 16384}
    if a["memory_gib"] >= 70 and a["capability"] != 8.0:  # an A100 loses throughput with larger steps
        return {"max_num_seqs": 1024, "max_num_batched_tokens": 8192}
    return {"max_num_seqs": 256, "max_num_batched_tokens": 2048}
