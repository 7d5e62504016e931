"""Transformers' own modules (Hugging Face), trained by PyTorch's loop: one operator after the other, under autocast.

Counted from the code of LlamaDecoderLayer, PEFT's LoRA layers and Trainer (transformers 5.17, peft 0.21, torch 2.11),
and compared with 21 runs on an H100 and their shadows (docs/lab/simulators-training.md). `hub` is the bytes per weight:
4 if weights are cast to 16 bits for each product, 2 if the optimizer's state has 16 bits, too. The residual stream is
as wide as the weights.
"""

import numpy as np

from autoscout.simulate.training.inputs import Inputs

Array = np.ndarray
# Bytes per logit at the loss: in 16 bits, in fp32 and as log-softmax, minus what is freed meanwhile. Before
# transformers 4.45 the rows were copied to shift them (rank_memory.WHOLE_LOGITS).
LOGITS = 11.3
SCORE = 6.0  # bytes per unfused score: its softmax in fp32 and in 16 bits
ADAM = 10.0  # bytes moved per byte of weights: gradients clipped, moments and weights read and written
ISSUED = 3.5  # operators of an adapted product in the forward pass; as many in the backward pass
# Bytes that a norm reads and writes per element, operator by operator.
_STREAM_FORWARD = {2: 36.0, 4: 28.0}
_STREAM_BACKWARD = 76.0
# GPT-2's GELU is ten operators, most in fp32: bytes kept per inner element, and moved forward and backward.
COMPOSED_GELU = (16.0, 76.0, 110.0)
SOFTMAX_BACKWARD = 28.0  # bytes moved per unfused score


def on(x: Inputs) -> bool:
    return bool(np.any(x.hub > 0))


def kept_of_hub(x: Inputs, tokens: Array) -> tuple[Array, Array]:
    """(Bytes that one layer keeps for the backward pass of one micro batch, the unfused scores among them). A norm
    keeps its input in fp32 and, for its weight's gradient, its output; products of 32-bit weights each keep a copy of
    their input, and adapters always keep one in fp32."""
    h, attended, keys = x.hidden, x.heads * x.head_dim, 2 * x.kv_heads * x.head_dim
    wide, frozen = x.hub == 4, x.lora > 0
    inputs = np.where(x.gated > 0, 2.0, 1.0)  # products that read the second norm's output
    one_kernel = x.bias > 0  # LayerNorm, which keeps its input
    norm = np.where(one_kernel, x.hub, 4.0 + np.where(frozen, 0.0, x.hub))
    # One copy per product or adapter. Otherwise all products share the norm's 16-bit output, or two adapters read it.
    copies = np.where(np.where(frozen, x.adapters > 0, wide), (3.0 + inputs) * 2, 4.0)
    stream = h * (2 * norm + copies)
    core = 4.0 * attended + 2.0 * keys  # queries, keys, values and the output
    read = np.where(frozen & (x.adapters == 0), 0.0, 2.0)  # bytes read by the product that follows, or by its adapter
    plain = np.where(x.gated > 0, 6.0, 2.0) + read
    activated = np.where(_composed(x), COMPOSED_GELU[0], plain) * x.ffn
    apart = np.where(frozen & (x.adapters > 0), 2.0 * attended, 0.0)  # the adapter's own copy of attention's output
    return tokens * (stream + core + activated + apart), SCORE * tokens * x.heads * x.seq_len * (x.attention == 0)


def states(x: Inputs, weights: Array, products: Array, own: Array) -> tuple[Array, Array, Array]:
    """Bytes of weights, gradients and optimizer state of a rank. `weights`: its parameters; `products`: those that are
    cast for products; `own`: trained ones."""
    sharded = x.zero == 3
    group = np.where(sharded, np.where(np.isnan(x.zero_group), x.dp, x.zero_group), 1.0)
    cast = np.where((x.hub == 4) & ~sharded, 2.0 * products, 0.0)  # kept until the backward pass
    each = np.where(x.lora > 0, 4.0, x.hub)  # PEFT keeps adapters in fp32
    return x.hub * weights / group + cast, each * own / group, 2 * each * own / group


def gradients_at_peak(x: Inputs, gradients: Array, activations: Array) -> Array:
    """Bytes of gradients at the peak of the activations. If gradients are dropped after a step, they appear while the
    activations are freed. Gradients of earlier micro batches stay, and DDP has a copy of all in its buckets. Later, an
    optimizer that is not one fused kernel makes another copy (torch/optim/adamw.py, _multi_tensor_adamw)."""
    buckets = np.where((x.dp > 1) & (x.zero < 2), gradients, 0.0)
    backward = np.where(x.micro_batches > 1, gradients, np.maximum(gradients - activations, 0.0))
    return buckets + np.maximum(backward, np.where(x.foreach > 0, 2 * gradients - activations, 0.0))


def moved(x: Inputs, tokens: Array) -> tuple[Array, Array]:
    """Bytes that a layer's operators other than products and attention read and write, forward and backward."""
    h, attended = x.hidden, x.heads * x.head_dim
    wide, inputs = x.hub == 4, np.where(x.gated > 0, 2.0, 1.0)
    cast = np.where(wide, 6.0, 0.0)
    rotary = np.where(x.learned_positions > 0, 0.0, 18.0 * (attended + x.kv_heads * x.head_dim))
    norm = np.where(x.bias > 0, 10.0, np.where(wide, _STREAM_FORWARD[4], _STREAM_FORWARD[2]))
    added = 2 * np.where(wide, 10.0, 6.0)
    forward = (
        h * (2 * norm + added + (3 + inputs) * cast)
        + rotary
        + x.ffn * np.where(x.gated > 0, 10.0, np.where(_composed(x), COMPOSED_GELU[1], 4.0))
    )
    summed = (1 + inputs) * np.where(wide, 12.0, 6.0)  # gradients that are summed at a norm's output
    backward = h * (
        2 * np.where(x.bias > 0, 20.0, _STREAM_BACKWARD) + 2 * np.where(wide, 12.0, 6.0) + (3 + inputs) * cast + summed
    )
    backward = (
        backward + 1.2 * rotary + x.ffn * np.where(x.gated > 0, 18.0, np.where(_composed(x), COMPOSED_GELU[2], 6.0))
    )
    return tokens * forward, tokens * backward


def _composed(x: Inputs) -> Array:
    return (x.gated == 0) & (x.learned_positions > 0)


def adapters_moved(tokens: Array, width: Array) -> tuple[Array, Array]:
    """Bytes that adapters read and write, with `width` inputs and as many outputs: inputs are cast to fp32 and back,
    outputs are scaled and added to those of the frozen product."""
    return tokens * width * 24.0, tokens * width * 28.0


def cast_weights(x: Inputs, products: Array) -> tuple[Array, Array]:
    """Bytes moved to cast a layer's weights to 16 bits and their gradients back, and to add the gradients to the
    existing ones, as happens in all but a step's first micro batch."""
    wide = x.hub == 4
    return np.where(wide, 6.0 * products, 0.0), np.where(wide & (x.lora == 0), 18.0 * products, 0.0)


def vocabulary_moved(x: Inputs) -> tuple[Array, Array]:
    """Bytes moved by the same casts of the output layer's weights, and by the embedding's gradient. That is as large as
    the table: it is set to zero, then added to the output layer's gradient if weights are tied, else to its own."""
    table = x.vocab * x.hidden
    forward, backward = cast_weights(x, table)
    return forward, backward + np.where(x.lora > 0, 0.0, 4.0 * x.hub * table)
