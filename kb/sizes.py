"""Numbers of parameters and bytes of a model."""

from typing import Any

from kb.records import Latent, Model, shape

# Bytes per weight, including scales: one scale for every 32 (mxfp4), 16 (nvfp4) or 128 weights.
STORED = {
    **dict.fromkeys(("fp8", "fp8_block", "int8"), 1.0),
    **{"w8a16": 1.02, "mxfp4": 0.53125, "nvfp4": 0.5625, "int4": 0.53},
}
ONLY_EXPERTS = ("mxfp4",)
# Hidden size and width of experts in ONLY_EXPERTS formats are padded with zeros to multiples of these, as kernels need
# them: on an H100, vLLM loads 64.4 GiB for the 60.8 GiB of gpt-oss-120b (vLLM's issue 33155).
_HIDDEN, _WIDTH = 256, 64


def parameters(model: Model) -> int:
    """Number of trainable parameters, without biases and norms, which are less than 0.1 %."""
    m = shape(model)
    return _of_layers(m, m.experts) + m.vocab * m.hidden * (1 if m.tied else 2)


def expert_parameters(model: Model) -> int:
    """Number of parameters of all routed experts, without shared experts."""
    m = shape(model)
    return (m.layers - m.dense_layers) * m.experts * (3 if m.gated else 2) * m.hidden * m.expert_ffn


def stored_bytes(model: Model) -> tuple[float, float]:
    """Bytes of (all weights, the routed experts' weights) in a server's memory. Embeddings keep the model's dtype."""
    m = shape(model)
    each = 4.0 if m.dtype == "fp32" else 2.0
    of_experts, embeddings = expert_parameters(m), m.vocab * m.hidden * (1 if m.tied else 2)
    attention = m.layers * _of_attention(m) if m.plain_attention or m.stored in ONLY_EXPERTS else 0
    others = parameters(m) - of_experts - embeddings - attention
    small = STORED.get(m.stored, each)
    hidden, width = padded(m.hidden, m.expert_ffn) if m.stored in ONLY_EXPERTS else (m.hidden, m.expert_ffn)
    experts = of_experts * small * (hidden * width) / max(m.hidden * m.expert_ffn, 1)
    return experts + others * (each if m.stored in ONLY_EXPERTS else small) + (embeddings + attention) * each, experts


def padded(hidden: Any, width: Any) -> tuple[Any, Any]:
    """Hidden size and width of an expert after padding, for formats in ONLY_EXPERTS; numbers or arrays."""
    return -(-hidden // _HIDDEN) * _HIDDEN, -(-width // _WIDTH) * _WIDTH


def active_parameters(model: Model) -> int:
    """Number of parameters in matrix products for one token: of the experts only those it is routed to, and of the
    embeddings only the output's, because an input embedding is only looked up."""
    m = shape(model)
    return _of_layers(m, min(m.topk, m.experts)) + m.vocab * m.hidden


def _of_layers(m: Model, experts: int) -> int:
    """Number of parameters of all layers, with `experts` experts in each."""
    attention = _of_attention(m)
    matrices = 3 if m.gated else 2
    dense = matrices * m.hidden * m.ffn
    if not m.experts:
        return m.layers * (attention + dense)
    mixture = matrices * m.hidden * (experts * m.expert_ffn + m.shared_ffn) + m.hidden * m.experts
    return m.layers * attention + m.dense_layers * dense + (m.layers - m.dense_layers) * mixture


def _of_attention(m: Model) -> int:
    """Number of parameters of one layer's attention."""
    return latent_projections(m) if m.latent else m.hidden * m.head_dim * (2 * m.heads + 2 * m.kv_heads)


def latent_projections(model: Model) -> int:
    """Number of parameters of a layer's latent attention: projections to latents, to heads, and to the output."""
    latent = model.latent or Latent()
    to_queries = latent.q_lora_rank or model.hidden
    down = model.hidden * (latent.q_lora_rank + latent.kv_lora_rank + latent.qk_rope_head_dim)
    up = to_queries * latent.qk_head_dim + latent.kv_lora_rank * (latent.qk_nope_head_dim + latent.v_head_dim)
    return down + model.heads * (up + latent.v_head_dim * model.hidden)
