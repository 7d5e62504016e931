"""Sizes that follow from the records."""

from kb.records import Model, shape


def parameters(model: Model) -> int:
    """Trainable parameters (biases and norms left out: below 0.1 %)."""
    m = shape(model)
    attention = m.hidden * m.head_dim * (2 * m.heads + 2 * m.kv_heads)
    matrices = 3 if m.gated else 2
    if m.experts:
        feed_forward = m.experts * matrices * m.hidden * m.expert_ffn + m.hidden * m.experts
    else:
        feed_forward = matrices * m.hidden * m.ffn
    embeddings = m.vocab * m.hidden * (1 if m.tied else 2)
    return m.layers * (attention + feed_forward) + embeddings
