"""Times of a serving engine's operators on a device: rooflines with the constants that tests/tools/fit_serving.py
fitted to measured kernels (device records). Arrays broadcast; times are microseconds.

Every operator is `overhead + (memory^s + compute^s)^(1/s)`: the usual roofline max(memory, compute) for s → ∞, their
sum for s = 1. In between, a kernel overlaps them in part.
"""

from typing import Any

import msgspec
import numpy as np

from autoscout.simulate.serving.step_times import TILE

Array = Any  # a float or an array of floats

SMALLEST_TILE = 16  # rows of the narrowest tile: fewer tokens cost as much


class ServingGemm(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """`tail`: the largest slowdown when the tiles do not fill the multiprocessors once."""

    overhead_us: float
    tflops: float
    gb_s: float
    sharpness: float
    tail: float


class ServingElementwise(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Norms, rotary positions, activation, residual adds and writes to the cache of one layer."""

    overhead_us: float
    gb_s: float


class Decode(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Attention of one new token per sequence. `sharing`: where a group of query heads reads the same key-value head,
    reading its bytes costs group^sharing times as much; `sequence_us`: added per sequence of the batch."""

    overhead_us: float
    gb_s: float
    sharing: float
    sequence_us: float


class Prefill(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """`short`: extra work per query, in tiles of 128 keys; `occupancy`: compute slows down by this power of the share
    of multiprocessors that have a tile."""

    overhead_us: float
    tflops: float
    short: float
    occupancy: float
    gb_s: float


class Experts(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Fused mixture of experts. `many`: efficiency falls as (experts of a device / 8)^-many; `block`: an expert's
    tokens are padded to a multiple of this many rows."""

    overhead_us: float
    tflops: float
    gb_s: float
    sharpness: float
    block: float
    many: float


def gemm_us(c: ServingGemm, sms: int, m: Array, n: Array, k: Array, weight_bytes: Array, speed: Array = 1.0) -> Array:
    """Product of (m × k) and (k × n), 2-byte activations. `weight_bytes`: per weight; `speed`: relative to bf16."""
    rows = np.clip(np.exp2(np.ceil(np.log2(np.maximum(m, 1)))), SMALLEST_TILE, TILE)
    high = np.ceil(m / rows)
    waves = np.maximum(high * np.ceil(n / TILE) / sms, 1e-9)
    quantized = np.ceil(waves) / waves
    quantized = np.where(waves < 1, np.minimum(quantized, c.tail), quantized)
    compute = 2e-6 * high * rows * n * k * quantized**0.7 / (c.tflops * speed)
    memory = 1e-3 * (n * k * weight_bytes + 2 * m * (n + k)) / c.gb_s
    return c.overhead_us + _roof(memory, compute, c.sharpness)


def elementwise_us(c: ServingElementwise, moved: Array, kernels: Array) -> Array:
    """Microseconds for `moved` bytes through `kernels` kernels."""
    return kernels * c.overhead_us + 1e-3 * moved / c.gb_s


def decode_slope_us(c: Decode, kv_bytes: Array, group: Array) -> Array:
    """Microseconds per token of context and layer; `kv_bytes`: of one token on this device."""
    return 1e-3 * kv_bytes * np.maximum(group, 1.0) ** c.sharing / c.gb_s


def decode_us(c: Decode, seqs: Array, context: Array, kv_bytes: Array, group: Array) -> Array:
    """Microseconds of one layer; `context`: sum over the sequences, in tokens."""
    busy = np.minimum(seqs, 1)
    return busy * c.overhead_us + seqs * c.sequence_us + context * decode_slope_us(c, kv_bytes, group)


def prefill_us(
    c: Prefill,
    sms: int,
    seqs: Array,
    tokens: Array,
    pairs: Array,
    heads: Array,
    head_dim: Array,
    kv_bytes: Array,
    speed: Array = 1.0,
    again_us: Array = 0.0,
) -> Array:
    """Microseconds of one layer. `tokens`: new tokens of all `seqs` sequences; `pairs`: (query, key) pairs under the
    mask; `speed`: relative to the default clock; `again_us`: per token of context that earlier steps computed."""
    busy = np.minimum(tokens, 1)
    seqs = np.maximum(seqs, 1e-9)
    length = np.maximum(tokens / seqs, 1.0)  # new tokens per sequence
    keys = pairs / np.maximum(tokens, 1e-9) + length / 2
    tiles = seqs * heads * np.ceil(length / TILE)
    full = np.minimum(1.0, np.maximum(tiles, 1e-9) / sms)
    compute = (
        4e-6
        * heads
        * head_dim
        * pairs
        / (c.tflops * speed)
        * (1 + c.short * TILE / np.maximum(keys, 1.0))
        / full**c.occupancy
    )
    moved = tokens * heads * head_dim * 4 + seqs * keys * kv_bytes
    again = seqs * np.maximum(keys - length, 0.0) * again_us
    return busy * (c.overhead_us + compute + 1e-3 * moved / c.gb_s + again)


def experts_us(
    c: Experts,
    tokens: Array,
    hidden: Array,
    ffn: Array,
    topk: Array,
    experts: Array,
    weight_bytes: Array,
    spread: Array,
    speed: Array = 1.0,
) -> Array:
    """Microseconds of a layer's experts on one device: `ffn` is this device's slice; `spread` devices share them."""
    local = np.maximum(experts / spread, 1.0)
    pairs = tokens * topk / spread
    active = np.maximum(local * -np.expm1(-pairs / local), np.minimum(pairs, 1.0))
    memory = 3e-3 * hidden * ffn * active * weight_bytes / c.gb_s
    padded = pairs + active * c.block / 2
    compute = 6e-6 * padded * hidden * ffn / (c.tflops * speed) * (np.maximum(local, 8.0) / 8) ** c.many
    return np.minimum(tokens, 1) * (c.overhead_us + _roof(memory, compute, c.sharpness))


def _roof(memory: Array, compute: Array, sharpness: float) -> Array:
    """(memory^s + compute^s)^(1/s) without overflow."""
    high, low = np.maximum(memory, compute), np.minimum(memory, compute)
    return high * (1 + (low / np.maximum(high, 1e-30)) ** sharpness) ** (1 / sharpness)
