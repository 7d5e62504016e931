"""A transformer's shape, as a job file states it."""

from typing import ClassVar, Literal

import msgspec

from kb.strict_record import Strict


class Lora(Strict, frozen=True, kw_only=True):
    """LoRA adapters on these `modules` of every layer. `bits`: bits per weight of the frozen base model."""

    rank: int = 16
    modules: list[str] = msgspec.field(default_factory=lambda: ["q_proj", "v_proj"])
    bits: Literal[16, 8, 4] = 16


class Latent(Strict, frozen=True, kw_only=True):
    """Multi-head latent attention (DeepSeek-V2, arXiv:2405.04434, section 2.1), with the names of its config.json.
    Hidden states are projected down to a latent vector of size `kv_lora_rank`, and from there up to the keys and values
    of all heads; queries likewise, or directly if `q_lora_rank` is 0. A head's key and query have `qk_nope_head_dim`
    elements without position encoding and `qk_rope_head_dim` with it; the latter elements of a key are the same for all
    heads."""

    q_lora_rank: int = 0
    kv_lora_rank: int = 512
    qk_nope_head_dim: int = 128
    qk_rope_head_dim: int = 64
    v_head_dim: int = 128

    @property
    def qk_head_dim(self) -> int:
        return self.qk_nope_head_dim + self.qk_rope_head_dim


class Model(Strict, frozen=True):
    """`heads`: query heads; `experts = 0`: a dense model; `layers = 0`: no model. `latent` attention has no `kv_heads`,
    and its sizes replace `head_dim`. Fine-tuning trains `lora` adapters, or all weights except the lowest
    `frozen_layers` and the embedding below them. A mixture of experts may have a feed-forward block of width
    `shared_ffn` for every token (all shared experts together), and `dense_layers` first layers without experts, whose
    feed-forward blocks are `ffn` wide.

    Serving: `stored`: format of the weights of all matrix products if it is not `dtype` (with mxfp4, only of the
    experts; with `plain_attention`, not of attention). fp8_block has a scale for every block of weights and of
    activations; w8a16 has 8-bit weights that are converted before the product. In `windowed_layers` a token attends
    only to the last `window` tokens; with `sinks`, each attention head has a learned sink. Training: `qk_norm`: norms
    of every head's query and key; `qkv_bias`: biases of the projections to queries, keys and values only."""

    later: ClassVar[tuple[str, ...]] = (
        *("lora", "frozen_layers", "latent", "shared_ffn", "dense_layers", "stored", "window", "windowed_layers"),
        *("qk_norm", "qkv_bias", "plain_attention", "sinks"),
    )

    layers: int = 0
    hidden: int = 0
    heads: int = 0
    vocab: int = 0
    kv_heads: int = 0  # 0: as many as heads
    head_dim: int = 0  # 0: hidden / heads
    ffn: int = 0  # 0: 4 × hidden
    gated: bool = False  # SwiGLU
    norm: Literal["layernorm", "rmsnorm"] = "layernorm"
    bias: bool = True
    tied: bool = False
    position: Literal["rope", "learned"] = "learned"
    experts: int = 0
    topk: int = 2
    expert_ffn: int = 0  # 0: ffn
    dtype: Literal["fp32", "bf16"] = "bf16"
    preset: str = ""
    lora: Lora | None = None
    frozen_layers: int = 0
    latent: Latent | None = None
    shared_ffn: int = 0
    dense_layers: int = 0
    stored: Literal["", "fp8", "fp8_block", "mxfp4", "nvfp4", "int8", "w8a16", "int4"] = ""
    window: int = 0
    windowed_layers: int = 0
    qk_norm: bool = False
    qkv_bias: bool = False
    plain_attention: bool = False
    sinks: bool = False


def shape(model: Model) -> Model:
    """The model with zeros replaced by the defaults that they mean. With latent attention, `head_dim` becomes the mean
    size of a head's key and value, which determines the cost of attention and its memory."""
    head_dim = model.head_dim or (model.hidden // model.heads if model.heads else 0)
    if model.latent:
        head_dim = (model.latent.qk_head_dim + model.latent.v_head_dim + 1) // 2
    return msgspec.structs.replace(
        model,
        kv_heads=model.kv_heads or model.heads,
        head_dim=head_dim,
        ffn=model.ffn or 4 * model.hidden,
        expert_ffn=model.expert_ffn or model.ffn or 4 * model.hidden,
        preset="",
    )
