"""The analytic memory model: peak GiB of the fullest rank, and the probability that it does not fit.

Weights, gradients and optimizer state as tp, pp, ep, the distributed optimizer and ZeRO shard them; activations per
layer after Korthikanti et al. 2022 ("Reducing Activation Recomputation in Large Transformer Models", section 4),
counted from what Megatron-core's layers keep for the backward pass; as many micro batches in flight as the pipeline
schedule holds; logits and loss; communication buffers. `value` is what the framework allocates. What comes on top of
it before a device is full (context, fragmentation) enters the probability of running out of memory only.
"""

from collections.abc import Mapping
from math import erf
from typing import Any

import numpy as np

from autoscout.simulate.hardware import Hardware, hardware
from autoscout.simulate.inputs import REQUIRED, Inputs, by_precision, complete
from autoscout.simulate.member import Columns, Prediction
from autoscout.simulate.once import rank_weights
from autoscout.simulate.stage import layer_weights, recomputed
from autoscout.simulate.training import devices, fleets
from kb.records import Configuration

Array = np.ndarray
GIB = 2.0**30
PARTS = ("weights", "gradients", "optimizer", "activations", "logits", "buffers", "process")
FRAGMENTATION = 0.04  # of the allocated peak: blocks that the caching allocator holds but cannot use
ERROR = 0.05  # standard deviation of log(measured / predicted), on rows that no constant was taken from
CAUTION = 0.05  # a configuration "fits" only if it is no likelier than this to run out of memory
CPU_PROCESS_GIB = 0.28  # interpreter, torch and Megatron-core of a CPU rank (../shared/facts/megatron-on-cpu.md)


class Memory:
    """`device`: what rows run on that name none. `margin`: factor learned from this job's measured peaks."""

    name = "memory"

    def __init__(self, device: str = "") -> None:
        self.device = device
        self.margin = 0.0  # log of the factor
        self.spread = ERROR

    def applies(self, columns: Columns) -> str:
        missing = [name for name in REQUIRED if name not in columns]
        return f"it needs {', '.join(missing)}" if missing else ""

    def fit(self, columns: Columns, values: np.ndarray) -> None:
        """`values`: measured peaks in GiB; inf where a row ran out of memory, which says that it needs more than the
        device has. A common factor, with a prior of ERROR around 1; out-of-memory rows can only raise it."""
        raw = np.log(self._raw(columns)[0])
        values = np.asarray(values, dtype=float)
        seen = np.isfinite(values) & np.isfinite(raw) & (values > 0)
        residual = np.log(values[seen]) - raw[seen]
        self.margin = float(residual.sum() / (len(residual) + 1)) if len(residual) else 0.0
        left = residual - self.margin
        self.spread = float(np.sqrt((ERROR**2 * 4 + np.sum(left**2)) / (4 + len(left))))
        died = np.isposinf(values) & np.isfinite(raw)
        room = np.log(np.maximum(self._room(columns, len(raw))[died], 1e-9))
        needed = room - raw[died]  # log factor at which these rows just do not fit
        if len(needed) and needed.max() > self.margin:
            self.margin = min(float(needed.max()), self.margin + 2 * ERROR)

    def predict(self, columns: Columns) -> Prediction:
        raw, parts = self._raw(columns)
        factor = np.exp(self.margin)
        return Prediction(
            value=factor * raw,
            error=np.full(len(raw), self.spread),
            parts={name: factor * part for name, part in parts.items()},
        )

    def oom_probability(self, columns: Columns) -> Array:
        """(n,) that a row runs out of its device's memory."""
        predicted = self.predict(columns)
        room = self._room(columns, len(predicted.value))
        z = (np.log(predicted.value) - np.log(np.maximum(room, 1e-9))) / predicted.error
        return np.array([0.5 * (1 + erf(v / np.sqrt(2))) for v in z])

    def fits(self, columns: Columns) -> Array:
        """(n,) bool. Wrong in this direction costs an experiment that dies, so it has to be likely."""
        return self.oom_probability(columns) <= CAUTION

    def _room(self, columns: Columns, n: int) -> Array:
        """GiB that a framework can allocate on the smallest device of a row."""
        room = np.full(n, np.nan)
        for rows, fleet, _ in fleets(columns, n, self.device):
            room[rows] = min(usable_gib(hw.memory_gib, hw.context_gib) for hw in fleet)
        given = np.broadcast_to(np.asarray(columns.get("memory_gib", np.nan), dtype=float), n)
        stated = np.where(given > 0, usable_gib(given, 1.0), np.nan)
        return np.where(np.isnan(room), stated, np.where(np.isnan(stated), room, np.minimum(room, stated)))

    def _raw(self, columns: Columns) -> tuple[Array, dict[str, Array]]:
        groups = [(rows, complete(some)) for rows, some in by_precision(columns)]
        n = sum(x.n for _, x in groups)
        parts = {name: np.empty(n) for name in PARTS}
        on_cpu = any(hw is not None and hw.name == "cpu" for hw in _hardware(columns, self.device))
        for rows, x in groups:
            for name, gib in peak(x).items():
                parts[name][rows] = gib
        if on_cpu or (not np.any(np.asarray(columns.get("cuda", True)))):
            parts["process"][:] = CPU_PROCESS_GIB
        return np.sum(list(parts.values()), axis=0), parts


def usable_gib(memory: Any, context: Any) -> Any:
    return (memory - context) / (1 + FRAGMENTATION)


def estimate_gib(attributes: Mapping[str, Any], configuration: Configuration) -> float:
    """Peak of one configuration of a job whose space has these attributes."""
    columns = {name: value for name, value in attributes.items() if name != "degrees"} | configuration.knobs
    return float(Memory().predict(columns).value[0])


def peak(x: Inputs) -> dict[str, Array]:
    """GiB by component, (n,) each, of the fuller of the first and the last stage."""
    first, last = _stage(x, True), _stage(x, False)
    fuller = sum(first.values()) >= sum(last.values())
    return {name: np.broadcast_to(np.where(fuller, first[name], last[name]), x.n) / GIB for name in PARTS}


def _stage(x: Inputs, first: bool) -> dict[str, Array]:
    b = 4.0 if x.dtype == "fp32" else 2.0
    dense, expert = rank_weights(x)
    if not first:
        dense = np.where(x.pp > 1, dense - x.learned_positions * x.seq_len * x.hidden, dense)
    parts = _states(x, dense, expert, b)
    parts["activations"], parts["logits"] = _activations(x, b, first)
    parts["buffers"] = _buffers(x, b)
    parts["process"] = np.zeros(1)
    return parts


def _states(x: Inputs, dense: Array, expert: Array, b: float) -> dict[str, Array]:
    """Bytes of weights, gradients and optimizer state: 2 + 4 + 12 a parameter in mixed precision, 4 + 4 + 8 in fp32."""
    replicas = x.dp * x.cp
    group = np.where(np.isnan(x.zero_group), replicas, x.zero_group)
    expert_group = np.maximum(replicas * x.tp / (x.ep * x.etp), 1)
    moments = 8.0 if b == 4 else 12.0
    frozen = x.lora > 0

    def over(sharded: Array, bytes_each: Array | float) -> Array:
        return bytes_each * (dense / np.where(sharded, group, 1) + expert / np.where(sharded, expert_group, 1))

    weights = over(x.zero == 3, b)
    # QLoRA: 4 bits and block scales for the layers; the embedding and the head stay as they are.
    embeddings = x.vocab * x.hidden * np.where(x.tied > 0, 1, 2)
    quantised = 0.56 * (dense - embeddings) + b * embeddings
    adapters = 0.004 * dense * (b + b + 2 * b)
    return {
        "weights": np.where(x.lora == 2, quantised, weights) + np.where(frozen, adapters, 0.0),
        "gradients": np.where(frozen, 0.0, over(x.zero >= 2, x.grad_bytes)),
        "optimizer": np.where(frozen, 0.0, over((x.distopt > 0) | (x.zero > 0), moments)),
    }


def _activations(x: Inputs, b: float, first: bool) -> tuple[Array, Array]:
    """Bytes kept for the backward pass on the first or the last stage, and bytes of logits and loss."""
    tokens = x.mbs * x.seq_len / x.cp
    own = tokens / np.where(x.sp > 0, x.tp, 1)
    layers_per_chunk = np.ceil(x.layers / (x.pp * x.vpp))
    layer = _layer_bytes(x, b, tokens, own)
    inputs = b * own * x.hidden  # what a recomputed layer keeps
    whole, _ = recomputed(x)
    kept = (1 - whole) * layer + whole * inputs / np.where((x.ar == 2) & (x.ar_method == 0), x.ar_layers, 1)
    working = np.where(whole > 0, layer * np.where(x.ar_method == 0, x.ar_layers, 1), 0.0)
    stage = 0.0 if first else x.pp - 1
    interleaved = (x.pp - stage - 1) * 2 + (x.vpp - 1) * x.pp + 1
    in_flight = np.where(
        x.vpp > 1, np.fmin(interleaved, x.micro_batches * x.vpp), np.fmin(x.pp - stage, x.micro_batches)
    )
    ends = (x.pp == 1) | (not first)
    head = np.where(ends, tokens * x.vocab / x.tp * _logit_bytes(x, b) + 2 * inputs, 0.0)
    masks = x.dropout * own * x.hidden * (1 if first else 0)
    return in_flight * (layers_per_chunk * kept + masks) + working, head


def _layer_bytes(x: Inputs, b: float, tokens: Array, own: Array) -> Array:
    """What one layer keeps of one micro batch. Split by tp only: queries, keys, values, the attention's output, and
    the feed-forward block's inner tensors. Everywhere (or split by sp): inputs and outputs of both norms, dropout
    masks."""
    h = x.hidden
    stream = own * h * (4 * b + 2 * x.dropout)
    qkv = tokens * x.head_dim * (x.heads + 2 * x.kv_heads) / x.tp * b
    out = tokens * x.head_dim * x.heads / x.tp * b
    inner = np.where(x.gated > 0, 3.0, 2.0) * b
    dense = tokens * x.ffn / x.tp * inner
    routed = own * x.topk
    sparse = routed * (2 * b * h + x.expert_ffn * inner) + own * x.experts * 4
    scores = tokens * x.heads * x.seq_len / x.tp
    unfused = np.where((x.attention == 0) & (x.ar != 1), scores * (b + (b + 1) * x.dropout), 0.0)
    eager = np.where(x.lora > 0, qkv + 2 * tokens * h * b + tokens * x.ffn * b, 0.0)
    return stream + qkv + out + np.where(x.experts > 0, sparse, dense) + unfused + eager


def _logit_bytes(x: Inputs, b: float) -> Array:
    """Per logit at the peak: Megatron keeps fp32 logits and their softmax; plain trainers more copies."""
    return np.where(x.lora > 0, 16.0, 8.0) + 0 * b


def _buffers(x: Inputs, b: float) -> Array:
    """Gathered layers of ZeRO-3 (the one that runs and the next), gathered inputs of sequence parallelism."""
    gathered = np.where(x.zero == 3, 2 * b * layer_weights(x) + x.grad_bytes * layer_weights(x), 0.0)
    inputs = np.where((x.sp > 0) & (x.tp > 1), 2 * b * x.mbs * x.seq_len / x.cp * x.hidden, 0.0)
    return gathered + inputs


def _hardware(columns: Columns, device: str) -> list[Hardware | None]:
    return [hardware(name) for name in devices(columns, device)]
