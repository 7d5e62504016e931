"""Seconds of single operators on one device: matrix products, attention, and kernels bound by memory.

All sizes are arrays that broadcast against each other; results are in seconds."""

import numpy as np

from autoscout.simulate.hardware.device import Hardware

Array = np.ndarray


def gemm(hw: Hardware, m: Array, n: Array, k: Array, dtype: str, extra_bytes: Array | float = 0.0) -> Array:
    """Seconds of a product (m, k) × (k, n), the larger of compute and memory time. The output is cut into tiles, one
    per multiprocessor at a time; a partly filled last wave of tiles takes as long as a full one. The library is assumed
    to choose the fastest tile shape."""
    g, sms = hw.gemm, hw.multiprocessors
    width = 4 if dtype == "fp32" else 2
    per_sm = hw.peak(dtype) * hw.clocks.speed(dtype) / sms
    compute: Array | None = None
    for tile in g.tiles:
        upright = np.ceil(m / tile.rows) * np.ceil(n / tile.columns)
        flat = np.ceil(m / tile.columns) * np.ceil(n / tile.rows)
        waves = np.ceil(np.minimum(upright, flat) / sms)
        seconds = waves * (2 * tile.rows * tile.columns / (per_sm * tile.efficiency)) * (k + g.extra_k)
        compute = seconds if compute is None else np.minimum(compute, seconds)
    assert compute is not None
    memory = (width * (m * n + n * k + m * k) + extra_bytes) / (1e9 * hw.memory_gb_s * g.bandwidth)
    return 1e-6 * g.overhead_us + np.maximum(compute / _alignment(n, k), memory)


def _alignment(n: Array, k: Array) -> Array:
    """Relative speed of products whose matrix rows are not aligned to 16 bytes. They are loaded in smaller pieces,
    which starves the matrix units: with an odd vocabulary size, the output layer runs at a third of its speed."""
    odd = (n % 2 > 0) | (k % 2 > 0)
    two = (n % 4 > 0) | (k % 4 > 0)
    four = (n % 8 > 0) | (k % 8 > 0)
    return np.where(odd, 1 / 3, np.where(two, 2 / 3, np.where(four, 0.85, 1.0)))


def batched_gemm(hw: Hardware, batch: Array, m: Array, n: Array, k: Array, dtype: str) -> Array:
    """Seconds of `batch` equal products in one kernel: their tiles share waves, and their memory traffic adds up."""
    g, sms = hw.gemm, hw.multiprocessors
    width = 4 if dtype == "fp32" else 2
    per_sm = hw.peak(dtype) * hw.clocks.speed(dtype) / sms
    tile = max(g.tiles, key=lambda t: t.efficiency)
    waves = np.ceil(batch * np.ceil(m / tile.rows) * np.ceil(n / tile.columns) / sms)
    columns = np.minimum(n, tile.columns)
    compute = waves * (2 * tile.rows * columns / (per_sm * tile.efficiency)) * (k + g.extra_k)
    memory = batch * width * (m * n + n * k + m * k) / (1e9 * hw.memory_gb_s * g.bandwidth)
    return 1e-6 * g.overhead_us + np.maximum(compute / _alignment(n, k), memory)


def flash(hw: Hardware, batch: Array, heads: Array, queries: Array, keys: Array, head_dim: Array, dtype: str) -> Array:
    """Seconds of the forward pass of causal fused attention. Only half of the score matrix is computed; short sequences
    compute more of it, in the tiles on the diagonal. Small heads are less efficient, because the softmax between the
    two products does not shrink with the head size."""
    a = hw.attention
    head_dim = np.ceil(head_dim / 8) * 8  # kernels pad heads to multiples of 16 bytes
    flops = 2.0 * batch * heads * queries * keys * head_dim
    efficiency = a.efficiency * head_dim / (head_dim + 32.0) * (160 / 128)
    rate = hw.peak(dtype) * efficiency / (1 + a.half_length / keys)
    blocks = batch * heads * np.ceil(queries / 128)
    fill = np.ceil(blocks / hw.multiprocessors) * hw.multiprocessors / blocks
    return 1e-6 * a.overhead_us + flops * fill / rate


def flash_backward(hw: Hardware, forward: Array) -> Array:
    """Seconds of the backward pass, given the seconds of the `forward` pass. Backward computes five products instead of
    two, at the backward kernel's efficiency."""
    launch = 1e-6 * hw.attention.overhead_us
    return launch + (forward - launch) * 2.5 / hw.attention.backward


def memory_bound(hw: Hardware, moved: Array, share: float, kernels: Array | float = 1.0) -> Array:
    """Seconds to read and write `moved` bytes at a `share` of the memory's bandwidth."""
    return kernels * 1e-6 * hw.elementwise.overhead_us + moved / (1e9 * hw.memory_gb_s * share)
