"""Serving configurations as arrays: shapes per device after tensor, pipeline and expert parallelism, the relative speed
of kernels, and the work of the host."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from autoscout.simulate.hardware.device import all_hardware
from autoscout.simulate.hardware.power_limit import clock
from autoscout.simulate.serving.latents import Latents
from autoscout.simulate.serving.served_by import engines_of
from autoscout.simulate.serving.serving_device import ServingDevice
from autoscout.simulate.serving.speculation import speculation
from autoscout.simulate.serving.weight_formats import (
    KV_BYTES,
    WEIGHT_BYTES,
    expert_kernels,
    expert_shape,
    expert_speed,
    formats_of,
    in_blocks,
    lasting_speed,
    lookup,
    more_launches,
    routing_us,
    speed,
)
from kb.sizes import ONLY_EXPERTS

_LAUNCHES = 10  # kernels of a dense layer: four products, attention, cache write, rotary, activation, two norms
# Additional kernels of a layer, beyond a dense layer's and those that the engine record states for experts: two
# products and an activation for shared experts; products and norms for latent attention.
_OF_SHARED, _OF_LATENTS = 3, 5
_GRAPH_TOKENS = 512  # vLLM's default for max_cudagraph_capture_size: larger steps run without a CUDA graph


@dataclass(frozen=True)
class EngineShapes:
    """n configurations; every field is (n,). Sizes are per device, but `layers` counts all pipeline stages."""

    device: ServingDevice
    layers: np.ndarray
    hidden: np.ndarray
    heads: np.ndarray
    kv_heads: np.ndarray
    group: np.ndarray  # query heads per key-value head
    head_dim: np.ndarray
    ffn: np.ndarray
    up: np.ndarray  # 2 when the feed-forward is gated, else 1
    vocab: np.ndarray
    experts: np.ndarray
    topk: np.ndarray
    expert_hidden: np.ndarray  # the experts' hidden size, padded if kernels require it
    expert_ffn: np.ndarray
    shared_ffn: np.ndarray  # width of the shared experts, which every token passes through
    shared_fused: np.ndarray  # whether shared experts are computed as one of the routed experts
    shared_beside: np.ndarray  # whether shared experts run concurrently with the routed experts
    dense_layers: np.ndarray  # number of leading layers without experts
    spread: np.ndarray  # number of devices that the experts are spread over
    meeting: np.ndarray  # number of data parallel engines that share experts and exchange tokens; 1 for dense models
    others_s: np.ndarray  # seconds that a step without prompts waits for other engines (lockstep.py)
    tp: np.ndarray
    pp: np.ndarray
    per_node: np.ndarray  # devices per node, which share the network bandwidth node_gb_s
    node_gb_s: np.ndarray
    weight_bytes: np.ndarray
    attention_bytes: np.ndarray  # bytes per weight of the attention's projections
    attention_speed: np.ndarray  # speed of these projections relative to bf16
    # factor on attention_speed in steps of many tokens, where the power limit slows kernels
    attention_lasting: np.ndarray
    expert_bytes: np.ndarray  # bytes per weight of the experts
    speed: np.ndarray  # speed of matrix products relative to bf16: about 2 in fp8 and more in fp4 if supported
    lasting: np.ndarray  # factor on `speed` in steps of many tokens
    expert_speed: np.ndarray  # speed of the experts' products relative to bf16
    expert_kernels: np.ndarray  # speed of the engine's expert kernels relative to vLLM's
    # extra time of latent attention in a decode step, per layer, beyond its products and reads
    latent_token_us: np.ndarray
    launching: np.ndarray  # launch time of the engine relative to vLLM's
    launches: np.ndarray  # kernels launched per layer
    routing_us: np.ndarray  # extra time per layer, mostly to sort tokens by expert, compared to 16-bit experts
    blocks: np.ndarray  # whether products quantize their input activations to 8 bits in blocks
    clock: np.ndarray  # clock rate under the power limit, relative to that under the default limit
    prompt_speed: np.ndarray  # speed of prefill attention, relative to the kernel in the device record
    kv_bytes: np.ndarray  # bytes of the KV cache per token and layer
    read_bytes: np.ndarray  # kv_bytes / (relative bandwidth at which decoding reads keys of this format)
    latents: Latents
    prompt_bytes: np.ndarray  # bytes per token that prefill attention reads
    window: np.ndarray  # window size in tokens of sliding-window layers; `windowed` is the share of such layers
    windowed: np.ndarray
    params_bytes: np.ndarray  # bytes of weights on the fullest device
    overlap: np.ndarray  # whether the host prepares the next step while the device works
    eager: np.ndarray  # whether kernels are launched one by one, without CUDA graphs
    graph_tokens: np.ndarray  # tokens of the largest step that runs from a CUDA graph
    graph_decodes: np.ndarray  # tokens of the largest step without prompts that runs from a CUDA graph
    python_host: np.ndarray  # False for an engine in C++, which launches kernels without delay
    persistent: np.ndarray  # the host's work per sequence and step, relative to vLLM V0
    step: np.ndarray  # the host's work per step, relative to vLLM V0
    # time per key if one block of threads reads all keys of a query head; 0 if several blocks divide the keys
    serial_us: np.ndarray
    eager_prompts: np.ndarray  # whether steps with prompts never run from a CUDA graph (vLLM V0, TensorRT-LLM)
    guesses: np.ndarray  # speculative decoding: number of draft tokens per step
    per_step: np.ndarray  # mean tokens that a sequence gains per step
    guess_layers: np.ndarray  # layers computed per draft token
    guess_heads: np.ndarray  # products with the vocabulary per draft token

    def of(self, rows: np.ndarray) -> "EngineShapes":
        values = {k: v[rows] for k, v in self.__dict__.items() if k not in ("device", "latents")}
        return EngineShapes(device=self.device, latents=Latents(*(v[rows] for v in self.latents)), **values)

    def key(self) -> tuple[str, bytes]:
        """A cache key: all that a step's time depends on."""
        values = [v for k, v in self.__dict__.items() if k not in ("device", "latents", "params_bytes")]
        return self.device.name, np.concatenate([*values, *self.latents]).astype(float).tobytes()


def _of_mixtures(each: np.ndarray, experts: np.ndarray, shared_ffn: np.ndarray, latents: Latents) -> np.ndarray:
    """(n,) additional kernels of a layer with experts compared to a dense layer; 0 for dense models. `each`: kernels of
    the routed experts."""
    return np.where((experts > 0) & (each > 0), each + _OF_SHARED * (shared_ffn > 0) + _OF_LATENTS * latents.on, 0.0)


def engine(columns: Mapping[str, Any], device: ServingDevice, n: int) -> EngineShapes:
    """Converts the columns (see setup.py) of n configurations on one kind of device."""

    def column(name: str, default: float) -> np.ndarray:
        return numbers(columns, name, default, n)

    def words(name: str, default: str) -> np.ndarray:
        return np.broadcast_to(np.asarray(columns.get(name, default), dtype=str), (n,))

    hw = all_hardware()[device.name]
    layers, hidden, heads = column("layers", 0), column("hidden", 0), column("heads", 1)
    kv_all = np.where(column("kv_heads", 0) > 0, column("kv_heads", 0), heads)
    head_dim = np.where(column("head_dim", 0) > 0, column("head_dim", 0), hidden / heads)
    tp, pp, dp = column("tp", 1), column("pp", 1), column("dp", 1)
    experts, ffn = column("experts", 0), column("ffn", 0)
    expert_ffn = np.where(column("expert_ffn", 0) > 0, column("expert_ffn", 0), ffn)
    split_experts = column("ep", 0) > 0
    meeting = np.where((experts > 0) & (column("engines_apart", 0) == 0), dp, 1.0)
    spread = np.where(split_experts, tp * meeting, 1.0)
    alike = column("shared_ffn", 0) == expert_ffn
    gated = column("gated", 0) > 0 if "gated" in columns else np.ones(n, dtype=bool)
    dtype, quantization, stored = words("dtype", ""), words("quantization", "none"), words("stored", "")
    formats, of_experts = formats_of(dtype, quantization, stored)
    known, blocks = engines_of(columns, n), in_blocks(formats, device)
    own_experts = known.own(lambda e: e.kernels.experts)
    in_dtype = lookup(dtype, WEIGHT_BYTES, column("dtype_bytes", 2.0))
    weight_bytes, expert_bytes = (lookup(each, WEIGHT_BYTES, in_dtype) for each in (formats, of_experts))
    plain = column("plain_attention", 0) > 0
    attention_bytes = np.where(plain, in_dtype, weight_bytes)
    kv_heads = np.maximum(kv_all / tp, 1.0)
    sinks = (column("sinks", 0) > 0) & ~known.own(lambda e: e.kernels.sinks)
    kv_element = lookup(words("kv_cache_dtype", "auto"), KV_BYTES, 2.0)
    up = np.where(gated, 2.0, 1.0)
    # Data parallel engines of an MoE model share one set of experts (in SGLang only with data parallel attention). Each
    # device holds whole experts, or a slice of every expert.
    slice_ffn = np.where(split_experts, expert_ffn, expert_ffn / (tp * meeting))
    expert_hidden, slice_ffn = expert_shape(
        of_experts, hidden, slice_ffn, known.own(lambda e: e.kernels.expert_width), device
    )
    clocks = clock(column("power_cap", 100) / 100)
    in_eight = known.own(lambda e: e.kernels.mxfp4_in_eight) if {"fp8", "fp4"} & {*device.formats} == {"fp8"} else 1.0
    of_attention = np.where(plain, dtype, formats)

    def lasting(names: np.ndarray, stored_bytes: np.ndarray) -> np.ndarray:
        # Expert kernels draw far less than the power limit, so the products between them run at full clock.
        own = speed(names, stored_bytes, device)
        return np.where(experts > 0, 1.0, lasting_speed(names, stored_bytes, device) / own)

    names = ("q_lora_rank", "kv_lora_rank", "qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim")
    latents = Latents(*(column(name, 0) for name in names), heads=heads / tp, hidden=hidden)
    head_dim = np.where(latents.on, latents.head_dim, head_dim)
    kv_bytes = np.where(latents.on, latents.cached, 2 * kv_heads * head_dim) * kv_element
    spec = speculation(columns, n)
    graph, python = column("graph_size", np.nan), column("python_host", -1.0) != 0
    eager, captured = (column("eager", 0) > 0) | (graph == 0), np.where(np.isnan(graph), _GRAPH_TOKENS, graph)
    # NaN: not stated, because 0 is a valid value
    shares = {name: column(name, np.nan) for name in ("persistent", "step")}
    found = EngineShapes(
        device=device,
        layers=layers,
        hidden=hidden,
        heads=heads / tp,
        kv_heads=kv_heads,
        group=heads / tp / kv_heads,
        head_dim=head_dim,
        ffn=ffn / tp,
        up=up,
        vocab=column("vocab", 0) / tp,
        experts=experts,
        topk=column("topk", 2),
        expert_hidden=expert_hidden,
        expert_ffn=slice_ffn,
        shared_ffn=column("shared_ffn", 0) / tp,
        shared_fused=known.own(lambda e: e.kernels.shared_fused) & alike & (spread == 1),
        shared_beside=known.own(lambda e: e.kernels.shared_beside),
        dense_layers=np.where(experts > 0, column("dense_layers", 0), layers),
        spread=spread,
        meeting=meeting,
        others_s=np.zeros(n),
        tp=tp,
        pp=pp,
        per_node=column("per_node", hw.per_node),
        node_gb_s=column("node_gb_s", hw.network.node_gb_s),
        weight_bytes=weight_bytes,
        attention_bytes=attention_bytes,
        attention_speed=clocks * speed(of_attention, attention_bytes, device),
        attention_lasting=lasting(of_attention, attention_bytes),
        expert_bytes=expert_bytes,
        speed=clocks * speed(formats, weight_bytes, device),
        lasting=lasting(formats, weight_bytes),
        expert_speed=clocks
        * expert_speed(of_experts, expert_bytes, own_experts, device)
        * np.where(np.isin(of_experts, ONLY_EXPERTS), known.own(lambda e: e.kernels.mxfp4) * in_eight, 1.0),
        expert_kernels=expert_kernels(of_experts, own_experts, device),
        latent_token_us=known.own(lambda e: e.kernels.latent_token_us),
        launching=known.own(lambda e: e.launches.times),
        launches=_LAUNCHES
        + np.where(eager, more_launches(formats, weight_bytes, device), 0.0)
        + _of_mixtures(
            known.own(lambda e: e.launches.experts) + known.own(lambda e: e.launches.block_experts) * blocks,
            experts,
            column("shared_ffn", 0),
            latents,
        ),
        routing_us=routing_us(of_experts, device),
        blocks=blocks,
        clock=clocks,
        prompt_speed=clocks * np.where(sinks, device.kernels.sinks, 1.0),
        **{name: np.where(np.isnan(share), python, share) for name, share in shares.items()},
        serial_us=column("serial_us", 0.0),
        kv_bytes=kv_bytes,
        read_bytes=kv_bytes / np.where(kv_element < 2, device.kernels.eight_bit_keys, 1.0),
        latents=latents,
        prompt_bytes=np.where(latents.on, latents.raised_bytes(), kv_bytes),
        window=column("window", 0),
        windowed=column("windowed_layers", 0) / np.maximum(layers, 1),
        params_bytes=np.zeros(n),
        overlap=column("overlap", 0) > 0,
        eager=eager,
        graph_tokens=captured,
        graph_decodes=np.where(known.own(lambda e: e.launches.graphs_end), captured, np.inf),
        python_host=python,
        eager_prompts=column("eager_prompts", 0) > 0,
        guesses=spec.guesses,
        per_step=spec.tokens,
        guess_layers=spec.layers,
        guess_heads=spec.heads,
    )
    return replace(found, params_bytes=_params_bytes(found, column("tied", 0) > 0))


def _params_bytes(e: EngineShapes, tied: np.ndarray) -> np.ndarray:
    """(n,) bytes of weights on the first or the last pipeline stage, whichever is larger. (The first stage has the
    model's layers without experts, the last one the output layer.)"""
    attention = np.where(e.latents.on, e.latents.weights(), e.hidden * e.head_dim * 2 * (e.heads + e.kv_heads))
    dense = (e.up + 1) * e.hidden * e.ffn
    of_experts = e.experts / e.spread * 3 * e.expert_hidden * e.expert_ffn * (e.expert_bytes / e.weight_bytes)
    mixture = of_experts + (e.up + 1) * e.hidden * e.shared_ffn
    deep = np.maximum(e.layers / e.pp, 1e-9)
    before = np.minimum(e.dense_layers, deep), np.clip(e.dense_layers - (e.pp - 1) * deep, 0, deep)
    most = np.maximum(*(mixture + (dense - mixture) * first / deep for first in before))
    feed = np.where(e.experts > 0, most, dense)
    embeddings = e.vocab * e.hidden * np.where(tied, 1.0, 2.0) / np.where(e.pp > 1, 2.0, 1.0)
    layer = attention * e.attention_bytes + feed * e.weight_bytes
    return e.layers / e.pp * layer + embeddings * np.maximum(e.weight_bytes, 2.0)


def columns_at(columns: Mapping[str, Any], rows: np.ndarray, n: int) -> dict[str, Any]:
    """The columns restricted to some of the n configurations; scalars stay unchanged."""
    return {k: v[rows] if isinstance(v, np.ndarray) and np.ndim(v) and len(v) == n else v for k, v in columns.items()}


def numbers(columns: Mapping[str, Any], name: str, default: Any, n: int) -> np.ndarray:
    """(n,) floats of a column. `default` replaces a missing column and NaN. A positive default also replaces 0, because
    a size or degree is never 0. False stays 0, because a switch that is off is not missing."""
    default = np.broadcast_to(np.asarray(default, dtype=float), (n,))
    given = np.asarray(columns.get(name, ""))
    if given.dtype.kind not in "biuf":
        return default
    values = np.broadcast_to(given.astype(float), (n,))
    if given.dtype.kind == "b":
        return values
    return np.where(np.isnan(values) | ((values == 0) & (default > 0)), default, values)


def switches(columns: Mapping[str, Any], name: str, default: Any, n: int) -> np.ndarray:
    """(n,) bool of a column. `default` replaces a missing column and NaN."""
    default = np.broadcast_to(np.asarray(default, dtype=bool), (n,))
    given = np.asarray(columns.get(name, ""))
    if given.dtype.kind not in "biuf":
        return default
    values = np.broadcast_to(given.astype(float), (n,))
    return np.where(np.isnan(values), default, values > 0)
