"""Sizes that follow from the records."""

from kb.records import Latent, Model, shape


def parameters(model: Model) -> int:
    """Trainable parameters (biases and norms left out: below 0.1 %)."""
    m = shape(model)
    attention = m.hidden * m.head_dim * (2 * m.heads + 2 * m.kv_heads)
    if m.latent:
        attention = latent_projections(m)
    matrices = 3 if m.gated else 2
    if m.experts:
        feed_forward = m.experts * matrices * m.hidden * m.expert_ffn + m.hidden * m.experts
    else:
        feed_forward = matrices * m.hidden * m.ffn
    embeddings = m.vocab * m.hidden * (1 if m.tied else 2)
    return m.layers * (attention + feed_forward) + embeddings


def latent_projections(model: Model) -> int:
    """Of a layer: down to the latents, up to the heads, and the output."""
    latent = model.latent or Latent()
    to_queries = latent.q_lora_rank or model.hidden
    down = model.hidden * (latent.q_lora_rank + latent.kv_lora_rank + latent.qk_rope_head_dim)
    up = to_queries * latent.qk_head_dim + latent.kv_lora_rank * (latent.qk_nope_head_dim + latent.v_head_dim)
    return down + model.heads * (up + latent.v_head_dim * model.hidden)
