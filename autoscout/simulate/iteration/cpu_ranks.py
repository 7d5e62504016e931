"""What is particular to an RL iteration on CPU ranks: the trainer's own Python runs between the operators of a model,
on the same core, and ranks and their threads share the cores.

The amount of Python is data of the framework (columns `…_calls` in iteration_columns.py, from line/frameworks), in
multiples of the time that the device record gives for launching an operator (host.forward_us), so that it scales with
the speed of a machine's Python. On GPUs, it overlaps with kernels, and is left out."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from autoscout.simulate.hardware.device import Hardware, at

Array = np.ndarray
Parts = dict[str, Array]


def called(hw: Hardware, x: Mapping[str, Any], what: str) -> Array:
    """(n,) seconds of Python for one decode step ("token"), one micro batch of log-probabilities ("pass"), one micro
    batch of an update without recomputation ("micro"), or recomputing it ("again")."""
    if not hw.cores:
        return np.zeros(1)
    return 1e-6 * hw.host.forward_us * (x[f"{what}_calls"] + x["layers"] * x[f"{what}_layer_calls"])


def gathered(hw: Hardware, x: Mapping[str, Any]) -> Array:
    """(n,) seconds in which ranks exchange the metrics of one micro batch, `micro_collectives` small messages."""
    if not hw.cores:
        return np.zeros(1)
    latency = at(hw.island.all_reduce.latency_us, hw.island.ranks, x["gpus"])
    return np.where(x["gpus"] > 1, 1e-6 * latency * x["micro_collectives"], 0.0)


def instead_of_launches(parts: Parts, seconds: Array) -> Parts:
    """The components of a pass, with the framework's Python (`seconds`, 0: unknown) as the time of the host."""
    return {**parts, "host": np.where(seconds > 0, seconds, parts["host"])}


def shared(hw: Hardware, x: Mapping[str, Any], parts: Parts) -> Parts:
    """The components of a phase with the threads of a rank: products are split over them, threads without a core of
    their own slow down everything, and a core is faster while others rest. (Ranks of one thread that share cores are a
    matter of training/step.py.)

    While a thread waits for its rank's other threads, it spins (libgomp), and takes the core from the threads that it
    waits for. The record states the factor for twice as many threads as cores; for four times as many, its square is
    assumed."""
    if not hw.cores:
        return parts
    threads, ranks = x["threads"], np.minimum(x["gpus"], hw.per_node)
    resting = np.clip(hw.cores - ranks, 0, None) / max(hw.cores - 1, 1)  # 1: a rank is alone, 0: every core has one
    doublings = np.log2(np.maximum(threads, 1))
    lacking = np.log2(np.maximum(ranks * threads / np.maximum(hw.cores, ranks), 1))
    slower = np.where(threads > 1, hw.crowded**lacking, 1.0) / hw.alone**resting
    split = {name: hw.doubled**doublings if name in ("compute", "recompute") else 1.0 for name in parts}
    return {name: slower * split[name] * value for name, value in parts.items()}
