"""Sizes that follow from the records."""

from kb.records import Latent, Model, shape


def parameters(model: Model) -> int:
    """Trainable parameters (biases and norms left out: below 0.1 %)."""
    m = shape(model)
    return _of_layers(m, m.experts) + m.vocab * m.hidden * (1 if m.tied else 2)


def active_parameters(model: Model) -> int:
    """Those that a token meets: of the experts its own only, and of the embeddings the output's (looking up a row
    computes nothing)."""
    m = shape(model)
    return _of_layers(m, min(m.topk, m.experts)) + m.vocab * m.hidden


def _of_layers(m: Model, experts: int) -> int:
    """Of all layers, with so many of their experts."""
    attention = latent_projections(m) if m.latent else m.hidden * m.head_dim * (2 * m.heads + 2 * m.kv_heads)
    matrices = 3 if m.gated else 2
    dense = matrices * m.hidden * m.ffn
    if not m.experts:
        return m.layers * (attention + dense)
    mixture = matrices * m.hidden * (experts * m.expert_ffn + m.shared_ffn) + m.hidden * m.experts
    return m.layers * attention + m.dense_layers * dense + (m.layers - m.dense_layers) * mixture


def latent_projections(model: Model) -> int:
    """Of a layer: down to the latents, up to the heads, and the output."""
    latent = model.latent or Latent()
    to_queries = latent.q_lora_rank or model.hidden
    down = model.hidden * (latent.q_lora_rank + latent.kv_lora_rank + latent.qk_rope_head_dim)
    up = to_queries * latent.qk_head_dim + latent.kv_lora_rank * (latent.qk_nope_head_dim + latent.v_head_dim)
    return down + model.heads * (up + latent.v_head_dim * model.hidden)
