"""Sizes that follow from the records."""

from typing import Any

from kb.records import Latent, Model, shape

# Bytes a weight, with its share of the scales: one for every 32, 16, or for 128.
STORED = {
    **dict.fromkeys(("fp8", "fp8_block", "int8"), 1.0),
    **{"w8a16": 1.02, "mxfp4": 0.53125, "nvfp4": 0.5625, "int4": 0.53},
}
ONLY_EXPERTS = ("mxfp4",)
# Experts stored so are padded with zeros to multiples of these, as kernels want them: vLLM loads 64.4 GiB of
# gpt-oss-120b's 60.8 on an H100 (its issue 33155).
_HIDDEN, _WIDTH = 256, 64


def parameters(model: Model) -> int:
    """Trainable parameters (biases and norms left out: below 0.1 %)."""
    m = shape(model)
    return _of_layers(m, m.experts) + m.vocab * m.hidden * (1 if m.tied else 2)


def expert_parameters(model: Model) -> int:
    """Parameters of the experts that not every token takes."""
    m = shape(model)
    return (m.layers - m.dense_layers) * m.experts * (3 if m.gated else 2) * m.hidden * m.expert_ffn


def stored_bytes(model: Model) -> tuple[float, float]:
    """(of all weights as a server holds them, of its experts'). The embeddings stay in the model's dtype."""
    m = shape(model)
    each = 4.0 if m.dtype == "fp32" else 2.0
    of_experts, embeddings = expert_parameters(m), m.vocab * m.hidden * (1 if m.tied else 2)
    attention = m.layers * _of_attention(m) if m.plain_attention or m.stored in ONLY_EXPERTS else 0
    others = parameters(m) - of_experts - embeddings - attention
    small = STORED.get(m.stored, each)
    hidden, width = padded(m.hidden, m.expert_ffn) if m.stored in ONLY_EXPERTS else (m.hidden, m.expert_ffn)
    experts = of_experts * small * (hidden * width) / max(m.hidden * m.expert_ffn, 1)
    return experts + others * (each if m.stored in ONLY_EXPERTS else small) + (embeddings + attention) * each, experts


def padded(hidden: Any, width: Any, multiple: int = _WIDTH) -> tuple[Any, Any]:
    """Numbers or arrays: the sizes of an expert that is stored in a format of ONLY_EXPERTS, as a server holds it."""
    return -(-hidden // _HIDDEN) * _HIDDEN, -(-width // multiple) * multiple


def active_parameters(model: Model) -> int:
    """Those that a token meets: of the experts its own only, and of the embeddings the output's (looking up a row
    computes nothing)."""
    m = shape(model)
    return _of_layers(m, min(m.topk, m.experts)) + m.vocab * m.hidden


def _of_layers(m: Model, experts: int) -> int:
    """Parameters of all layers, with so many experts in each."""
    attention = _of_attention(m)
    matrices = 3 if m.gated else 2
    dense = matrices * m.hidden * m.ffn
    if not m.experts:
        return m.layers * (attention + dense)
    mixture = matrices * m.hidden * (experts * m.expert_ffn + m.shared_ffn) + m.hidden * m.experts
    return m.layers * attention + m.dense_layers * dense + (m.layers - m.dense_layers) * mixture


def _of_attention(m: Model) -> int:
    """Parameters of a layer's attention."""
    return latent_projections(m) if m.latent else m.hidden * m.head_dim * (2 * m.heads + 2 * m.kv_heads)


def latent_projections(model: Model) -> int:
    """Parameters of a layer's projections: down to the latents, up to the heads, and the output."""
    latent = model.latent or Latent()
    to_queries = latent.q_lora_rank or model.hidden
    down = model.hidden * (latent.q_lora_rank + latent.kv_lora_rank + latent.qk_rope_head_dim)
    up = to_queries * latent.qk_head_dim + latent.kv_lora_rank * (latent.qk_nope_head_dim + latent.v_head_dim)
    return down + model.heads * (up + latent.v_head_dim * model.hidden)
