"""Memory and time of Hugging Face Transformers' own modules, which run operator by operator under autocast.

All byte counts are derived from the code of LlamaDecoderLayer, PEFT's LoRA layers and Trainer (transformers 5.17, peft
0.21, torch 2.11), and were compared with 21 runs on an H100 and with shadow runs, in which the framework's own code
runs without a GPU (docs/lab/simulators-training.md). The column `hub` is the bytes per weight: 4 if weights are cast to
16 bits for each GEMM, 2 if the optimizer state also has 16 bits. The residual stream has the weights' precision."""

import numpy as np

from autoscout.simulate.training.inputs import Inputs

Array = np.ndarray
# Peak bytes per logit at the loss: 16-bit logits, fp32 logits and log-softmax, minus tensors that are freed before the
# peak. Before transformers 4.45, shifting the logits also copied them (rank_memory.WHOLE_LOGITS).
LOGITS = 11.3
SCORE = 6.0  # bytes kept per unfused attention score: its softmax in fp32 and in 16 bits
ADAM = 10.0  # bytes moved per byte of weights to clip gradients, and to read and write moments and weights
ISSUED = 3.5  # operators that a LoRA adapter adds to a linear layer, per pass (forward or backward)
# Bytes that a norm's operators move per element: forward, by bytes per element of the residual stream; backward.
_STREAM_FORWARD = {2: 36.0, 4: 28.0}
_STREAM_BACKWARD = 76.0
# GPT-2's GELU consists of ten operators, mostly in fp32. Bytes per inner element: kept, moved forward, moved backward.
COMPOSED_GELU = (16.0, 76.0, 110.0)
SOFTMAX_BACKWARD = 28.0  # bytes moved per unfused score


def on(x: Inputs) -> bool:
    return bool(np.any(x.hub > 0))


def kept_of_hub(x: Inputs, tokens: Array) -> tuple[Array, Array]:
    """((n,) bytes that one layer keeps for the backward pass of one micro batch, without unfused scores; (n,) bytes of
    unfused scores). A norm keeps its input in fp32 and, for its weight's gradient, its output. Each linear layer with
    32-bit weights, and each adapter, keeps a 16-bit copy of its input."""
    h, attended, keys = x.hidden, x.heads * x.head_dim, 2 * x.kv_heads * x.head_dim
    wide, frozen = x.hub == 4, x.lora > 0
    inputs = np.where(x.gated > 0, 2.0, 1.0)  # number of linear layers that read the second norm's output
    one_kernel = x.bias > 0  # LayerNorm is one kernel and keeps its input
    norm = np.where(one_kernel, x.hub, 4.0 + np.where(frozen, 0.0, x.hub))
    # Bytes of input copies per hidden element: 2 for each linear layer with cast weights, or for each adapter;
    # otherwise the linear layers share the two norms' outputs.
    copies = np.where(np.where(frozen, x.adapters > 0, wide), (3.0 + inputs) * 2, 4.0)
    stream = h * (2 * norm + copies)
    core = 4.0 * attended + 2.0 * keys  # bytes of queries, keys, values and output
    read = np.where(frozen & (x.adapters == 0), 0.0, 2.0)  # bytes per element of the next linear layer's input
    plain = np.where(x.gated > 0, 6.0, 2.0) + read
    activated = np.where(_composed(x), COMPOSED_GELU[0], plain) * x.ffn
    apart = np.where(frozen & (x.adapters > 0), 2.0 * attended, 0.0)  # an adapter's copy of the attention output
    return tokens * (stream + core + activated + apart), SCORE * tokens * x.heads * x.seq_len * (x.attention == 0)


def states(x: Inputs, weights: Array, products: Array, own: Array) -> tuple[Array, Array, Array]:
    """(n,) bytes of weights, of gradients and of optimizer state on a rank. `weights`: number of parameters of the
    rank; `products`: number of parameters that matrix products cast to 16 bits; `own`: number of trained parameters."""
    sharded = x.zero == 3
    group = np.where(sharded, np.where(np.isnan(x.zero_group), x.dp, x.zero_group), 1.0)
    cast = np.where((x.hub == 4) & ~sharded, 2.0 * products, 0.0)  # 16-bit weights live until the backward pass
    each = np.where(x.lora > 0, 4.0, x.hub)  # PEFT keeps adapters in fp32
    return x.hub * weights / group + cast, each * own / group, 2 * each * own / group


def gradients_at_peak(x: Inputs, gradients: Array, activations: Array) -> Array:
    """(n,) bytes of gradients to add at the memory peak. In the first micro batch, gradients are allocated while the
    backward pass frees activations; in later micro batches they exist already. DDP has a copy of all gradients in its
    buckets. An optimizer without a fused kernel makes another copy after the backward pass (torch/optim/adamw.py,
    _multi_tensor_adamw)."""
    buckets = np.where((x.dp > 1) & (x.zero < 2), gradients, 0.0)
    backward = np.where(x.micro_batches > 1, gradients, np.maximum(gradients - activations, 0.0))
    return buckets + np.maximum(backward, np.where(x.foreach > 0, 2 * gradients - activations, 0.0))


def moved(x: Inputs, tokens: Array) -> tuple[Array, Array]:
    """(n,) bytes that a layer's memory-bound operators read and write in the forward and in the backward pass."""
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
    summed = (1 + inputs) * np.where(wide, 12.0, 6.0)  # sums of the gradients of linear layers with a common input
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
    """(n,) bytes that adapters with `width` inputs and as many outputs read and write, forward and backward: inputs are
    cast to fp32 and back; outputs are scaled and added to the output of the frozen linear layer."""
    return tokens * width * 24.0, tokens * width * 28.0


def cast_weights(x: Inputs, products: Array) -> tuple[Array, Array]:
    """(n,) bytes moved to cast a layer's weights to 16 bits (forward), and to cast gradients back and add them to the
    gradients of earlier micro batches (backward)."""
    wide = x.hub == 4
    return np.where(wide, 6.0 * products, 0.0), np.where(wide & (x.lora == 0), 18.0 * products, 0.0)


def vocabulary_moved(x: Inputs) -> tuple[Array, Array]:
    """(n,) bytes moved, forward and backward, by the casts of the output layer's weights and by the embedding's
    gradient, which is as large as the embedding table: it is zeroed and then accumulated."""
    table = x.vocab * x.hidden
    forward, backward = cast_weights(x, table)
    return forward, backward + np.where(x.lora > 0, 0.0, 4.0 * x.hub * table)
