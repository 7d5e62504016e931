"""A transformer's shape, as a job file states it."""

from typing import ClassVar, Literal

import msgspec

from kb.strict_record import Strict


class Lora(Strict, frozen=True, kw_only=True):
    """Adapters of `rank` on these `modules` of every layer, whose own weights are frozen and kept in `bits` bits."""

    rank: int = 16
    modules: list[str] = msgspec.field(default_factory=lambda: ["q_proj", "v_proj"])
    bits: Literal[16, 8, 4] = 16


class Latent(Strict, frozen=True, kw_only=True):
    """Multi-head latent attention (DeepSeek-V2, arXiv:2405.04434, section 2.1), by the names of its config.json: tokens
    are projected down to a latent of `kv_lora_rank`, and that up to the keys and values of all heads; queries likewise,
    or directly (`q_lora_rank` 0). A head's key and query have `qk_nope_head_dim` numbers without a position and
    `qk_rope_head_dim` with one, of keys the same for all heads."""

    q_lora_rank: int = 0
    kv_lora_rank: int = 512
    qk_nope_head_dim: int = 128
    qk_rope_head_dim: int = 64
    v_head_dim: int = 128

    @property
    def qk_head_dim(self) -> int:
        return self.qk_nope_head_dim + self.qk_rope_head_dim


class Model(Strict, frozen=True):
    """`heads` are query heads; `experts = 0`: a dense model; `layers = 0`: no model. With `latent` attention there are
    no `kv_heads`, and its sizes say `head_dim`. Fine-tuning: `lora`, or all weights except the lowest `frozen_layers`
    and the embedding below them. A mixture of experts may have, in addition to its experts, a feed-forward block that
    every token takes, of width `shared_ffn` (shared experts, all together), and first `dense_layers` without experts,
    whose blocks are `ffn` wide. `stored`: the format of the weights that a server reads, where it is not `dtype`; of
    all products, or (mxfp4) of the experts' only, or (`plain_attention`) of all but attention's, which stay in `dtype`;
    fp8_block: with a scale for every block of weights and of activations; w8a16: 8 bits that are widened to be
    multiplied. In `windowed_layers` a token of a server attends to the last `window` only; `sinks`: each head of
    attention has a learned one. Training: `qk_norm`, norms of every head's query and key; `qkv_bias`, biases of their
    projections alone."""

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
    """The model with the defaults that its zeros stand for filled in, whatever preset it came from. `head_dim` of
    latent attention: the mean of a head's key and value, which says what its scores cost and what it keeps."""
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
