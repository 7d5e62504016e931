"""Bytes moved by experts whose layers have biases and whose gates are clamped (gpt-oss), besides their GEMMs and fused
activation. Counted from Megatron-core 0.16 (moe/experts.py: _apply_bias, fusions/fused_bias_geglu.py), which runs these
operators one by one."""

import numpy as np

from autoscout.simulate.training.inputs import Inputs

Array = np.ndarray
# Bytes per element of the first layer's output, forward and backward: its halves are clamped (read and written, 4) and
# concatenated (4); backward, clamping reads gradient and input and writes (6), and the halves are concatenated (4).
CLAMPED = (8.0, 10.0)
# Bytes per element of the second layer's output. Forward in fp32: bias times probability is written (4) and added to
# the output (10), experts are concatenated (8), and the sum is cast to 16 bits (6). Backward: the gradient is cast to
# fp32 (6) and back for the GEMM (6), experts' gradients are concatenated (4); the bias's gradient and the probability's
# are products (8 each) and sums (4 each).
BIASED = (28.0, 40.0)


def moved(x: Inputs, routed: Array) -> tuple[Array, Array]:
    """(n,) bytes forward and backward for `routed` tokens on a rank's experts."""
    inner = np.where(x.gated > 0, 2.0, 0.0) * x.expert_ffn / x.etp
    forward, backward = (
        np.where(x.expert_bias > 0, routed * (clamped * inner + biased * x.hidden), 0.0)
        for clamped, biased in zip(CLAMPED, BIASED, strict=True)
    )
    return forward, backward
