"""CPU seconds to launch a layer's operators and collectives. If they exceed the device's time, the device waits
(stage.waiting), unless CUDA graphs replace the launches."""

import numpy as np

from autoscout.simulate.hardware.device import Hardware
from autoscout.simulate.training import hub_layers as hub
from autoscout.simulate.training import ring_attention as ring
from autoscout.simulate.training.inputs import Inputs

Array = np.ndarray
# Operators of a layer's two adapters per pass, separate and fused: dropout, two GEMMs, scaling and adding for each. (In
# the backward pass, the adapters' weight gradients replace those of the four frozen GEMMs.) ADAPTED_SENT: additional
# collectives with tensor parallelism, two for the adapters' inner values and one for an output.
ADAPTED, ADAPTED_SENT = (10.0, 6.0), 3.0
# Operators per pass that experts add to a dense layer's. GROUPED: with Transformer Engine's grouped GEMMs; fitted to
# Megatron-Bridge's Qwen3-30B-A3B on H100, a layer of which takes 9.4 to 9.7 ms for one sequence, with 8 as with 16
# experts a rank (docs/lab/simulators-training.md). APART: otherwise, besides three launches for each expert.
GROUPED, APART = 34.0, 10.0


def issued(hw: Hardware, x: Inputs) -> tuple[Array, Array]:
    """((n,) seconds forward, (n,) seconds backward) per layer."""
    adapted = np.where(x.lora > 0, np.where(x.op_fuser > 0, ADAPTED[1], ADAPTED[0]), 0.0)
    products = np.where(x.adapters > 0, 5 + np.where(x.gated > 0, 2.0, 1.0), 2.0)
    adapted = np.where((x.hub > 0) & (x.lora > 0), hub.ISSUED * products, adapted)
    layer = np.where(x.attention > 0, 10.0, 13.0) + _of_experts(x) + adapted
    forward, backward = (layer + rings for rings in ring.operators(x))
    split = 2.0 * np.where(x.sp > 0, 2, 1) + np.where(x.lora > 0, ADAPTED_SENT, 0.0)
    collectives = np.where(x.tp > 1, split, 0.0) + np.where(x.ep > 1, 2.0 * (1 - x.dense_layers / x.layers), 0.0)
    messages = ring.steps(x)  # ring messages; backward sends one more
    host = hw.host
    return (
        1e-6 * (forward * host.forward_us + (collectives + messages) * host.collective_us),
        # The calibration timed input gradients only, so weight gradients add four operators.
        1e-6 * ((backward + 4) * host.backward_us + (collectives + messages + (messages > 0)) * host.collective_us),
    )


def _of_experts(x: Inputs) -> Array:
    """(n,) operators per pass, averaged over layers with and without experts."""
    if not np.any(x.experts):
        return np.zeros(1)
    local = np.maximum(x.experts / x.ep, 1)
    each = np.where(x.te > 0, GROUPED, APART + 3 * local) + np.where(x.shared_ffn > 0, 4.0, 0.0)
    return np.where(x.experts > 0, (1 - x.dense_layers / x.layers) * each, 0.0)
