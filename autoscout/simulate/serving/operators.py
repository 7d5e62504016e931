"""Times in microseconds of a serving engine's operators on a device: rooflines with constants from the device records,
which tests/tools/fit_serving.py fitted to measured kernels. Arrays broadcast.

An operator takes `overhead + (memory^s + compute^s)^(1/s)`. This is the usual roofline max(memory, compute) for s → ∞
and their sum for s = 1; in between, a kernel overlaps them partly. `sharpness` is s."""

from typing import Any

import msgspec
import numpy as np

from autoscout.simulate.serving.step_times import TILE

Array = Any  # a float or an array of floats

SMALLEST_TILE = 16  # rows of the smallest output tile, so fewer tokens take as long


class ServingGemm(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Matrix products. `tail`: largest slowdown if the tiles do not fill all multiprocessors even once."""

    overhead_us: float
    tflops: float
    gb_s: float
    sharpness: float
    tail: float


class ServingElementwise(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A layer's norms, rotary embedding, activation, residual additions and cache writes."""

    overhead_us: float
    gb_s: float


class Decode(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Attention of one new token per sequence. `sharing`: if a group of query heads shares a key-value head, reading
    its bytes takes group^sharing times as long; `sequence_us`: additional time per sequence."""

    overhead_us: float
    gb_s: float
    sharing: float
    sequence_us: float


class Prefill(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Attention of prompts. `short`: additional work per query, in tiles of 128 keys; `occupancy`: if only a share of
    the multiprocessors has a tile, compute slows down by share^-occupancy."""

    overhead_us: float
    tflops: float
    short: float
    occupancy: float
    gb_s: float


class Experts(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Fused expert kernels. `many`: efficiency is proportional to (experts per device / 8)^-many; `block`: each
    expert's tokens are padded to a multiple of this number."""

    overhead_us: float
    tflops: float
    gb_s: float
    sharpness: float
    block: float
    many: float


def gemm_us(c: ServingGemm, sms: int, m: Array, n: Array, k: Array, weight_bytes: Array, speed: Array = 1.0) -> Array:
    """Microseconds of a product (m, k) × (k, n) with 2-byte activations. `weight_bytes`: bytes per weight; `speed`:
    relative to bf16."""
    rows = np.minimum(np.maximum(np.exp2(np.ceil(np.log2(np.maximum(m, 1)))), SMALLEST_TILE), TILE)
    high = np.ceil(m / rows)
    waves = np.maximum(high * np.ceil(n / TILE) / sms, 1e-9)
    quantized = np.ceil(waves) / waves
    quantized = np.where(waves < 1, np.minimum(quantized, c.tail), quantized)
    compute = 2e-6 * high * rows * n * k * quantized**0.7 / (c.tflops * speed)
    memory = 1e-3 * (n * k * weight_bytes + 2 * m * (n + k)) / c.gb_s
    return c.overhead_us + _roof(memory, compute, c.sharpness)


def elementwise_us(c: ServingElementwise, moved: Array, kernels: Array) -> Array:
    """Microseconds for `kernels` memory-bound kernels that move `moved` bytes in total."""
    return kernels * c.overhead_us + 1e-3 * moved / c.gb_s


def decode_slope_us(c: Decode, kv_bytes: Array, group: Array) -> Array:
    """Decode microseconds per token of context and layer. `kv_bytes`: bytes of one token on this device."""
    return 1e-3 * kv_bytes * np.maximum(group, 1.0) ** c.sharing / c.gb_s


def decode_us(c: Decode, seqs: Array, context: Array, kv_bytes: Array, group: Array) -> Array:
    """Microseconds of one layer's decode attention. `context`: tokens, summed over the sequences."""
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
    """Microseconds of one layer's prefill attention. `tokens`: new tokens of all `seqs` sequences; `pairs`: (query,
    key) pairs under the causal mask; `speed`: of the kernel, relative to its record; `again_us`: additional time per
    token of context from earlier steps."""
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
    """Microseconds of a layer's experts on one device. `ffn`: width of the device's slice of each expert; `spread`:
    number of devices over which whole experts are distributed."""
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
