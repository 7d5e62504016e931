"""Seconds of one micro batch on one pipeline stage, forward and backward, broken down into parts."""

import numpy as np

from autoscout.simulate.hardware.collectives import Topology
from autoscout.simulate.hardware.device import Hardware
from autoscout.simulate.hardware.roofline import memory_bound
from autoscout.simulate.training.inputs import Inputs
from autoscout.simulate.training.layer import Times
from autoscout.simulate.training.rank_parameters import frozen_layers, layer_weights, rank_weights, trained

Array = np.ndarray
Parts = dict[str, Array]
IN_STAGE = ("compute", "recompute", "tp", "cp", "ep", "pp", "dp", "host")
NCCL_MULTIPROCESSORS = 20  # multiprocessors that an overlapped NCCL collective takes from the layers' kernels; assumed
HOST_LINK = 0.8  # share of the data sheet's host bandwidth that copies reach; a usual figure, not measured here
# DeepSpeed's ZeRO-3 runs Python hooks before and after every module, forward and backward, which may slow kernel
# launches below the device's speed. HOOKS_US: microseconds per module and pass, from fixtures/deepspeed/second.csv
# (stage 3 minus stage 2 with micro batch 1 and all weights persistent, minimum of ten runs each). MODULES: modules per
# layer.
HOOKS_US, MODULES = 500.0, 12.0
HIDDEN_TP = 0.8  # share of tensor parallel communication that Transformer Engine's pipelined GEMMs can hide; assumed


def stage(hw: Hardware, links: Topology, x: Inputs, layers: Array, layer: Times, head: Times | None) -> Parts:
    """Seconds of a micro batch on a stage of `layers` layers, forward and backward, by component. `head`: times of the
    output layer if the stage is the last one."""
    back = layers - frozen_layers(x)
    again = recomputed(x)
    compute = layers * layer.forward + back * layer.backward + gradients_apart(hw, x, layers)
    parts = x.again_core * layer.core + x.again_norms * layer.norms + x.again_up * layer.up
    parts = parts + np.where(x.again_block > 0, layer.block, x.again_activation * layer.activation)
    repeated = back * (again * layer.forward + parts)
    gathers = again + 0.5 * x.again_block  # block recomputation repeats half of the forward pass's collectives
    tp = layers * layer.tp_forward + back * (gathers * layer.tp_forward + layer.tp_backward)
    bare = layers * layer.bare_forward + back * (gathers * layer.bare_forward + layer.bare_backward)
    compute, tp = _overlap_tp(hw, x, compute, tp - bare)
    tp = tp + bare
    # In ring attention, computing with one block of keys hides the transfer of the next block.
    sent = layers * layer.cp + back * layer.cp_backward
    whole = sent + back * again * layer.cp
    cp = np.where(x.cp_comm > 0, whole, np.maximum(whole - 0.5 * (layers + 2 * back) * layer.core, 0.2 * sent))
    ep = (layers + back * (1 + again + x.again_block)) * layer.ep
    compute, ep = _overlap_ep(hw, x, compute, ep)
    shown = np.where(x.tp_comm_overlap > 0, 1 - HIDDEN_TP, 1.0)
    forward = layer.forward + layer.ep + layer.cp + layer.bare_forward
    forward = forward + shown * (layer.tp_forward - layer.bare_forward)
    backward = layer.backward + layer.ep + layer.cp_backward + layer.bare_backward
    backward = backward + shown * (layer.tp_backward - layer.bare_backward)
    hooks = np.where((x.zero == 3) & (x.masters_apart > 0), 1e-6 * HOOKS_US * MODULES, 0.0)
    waits = (layers + back * again) * waiting(hw, layer.host_forward + hooks, forward)
    waits = waits + back * waiting(hw, layer.host_backward + hooks, backward)
    waits = np.where(x.graphs > 0, 0.0, waits)
    dp = _gathered_layers(hw, links, x, layer, layers, again)
    if head is not None:
        compute = compute + head.forward + head.backward
        tp = tp + head.tp_forward + head.tp_backward
        waits = waits + waiting(hw, head.host_forward + head.host_backward, head.forward + head.backward)
    return {
        "compute": compute,
        "recompute": repeated,
        "tp": tp,
        "cp": cp,
        "ep": ep,
        "pp": sends(links, x),
        "dp": dp,
        "host": waits,
    }


def gradients_apart(hw: Hardware, x: Inputs, layers: Array) -> Array:
    """Seconds per micro batch to accumulate gradients in separate tensors. After every micro batch but the first, a
    kernel reads two gradients and writes their sum; once per step, all gradients are copied into buckets and back."""
    if not np.any(x.grads_apart):
        return np.zeros(1)
    parameters = sum(trained(x, *rank_weights(x, layers)), np.zeros(1))
    passes = 3.0 * (1 - 1 / x.micro_batches) + 4.0 / x.micro_batches
    moved = memory_bound(hw, passes * x.grad_bytes * parameters, hw.elementwise.bandwidth)
    return np.where(x.grads_apart > 0, moved, 0.0)


def waiting(hw: Hardware, issue: Array, busy: Array) -> Array:
    """Seconds per pass of a layer that a device waits because the host needs longer (`issue`) to launch the layer than
    the device to compute it (`busy`). The head start that the host gains during the output layer is neglected, because
    it is used up within one micro batch. A CPU launches and computes sequentially."""
    return issue + 0 * busy if hw.cores else np.maximum(issue - busy, 0)


def total(parts: Parts) -> Array:
    return sum((parts[name] for name in IN_STAGE), np.zeros(1))


def recomputed(x: Inputs) -> Array:
    """(n,) share of the layers whose whole forward pass is recomputed."""
    per_chunk = np.maximum(x.layers / (x.pp * x.vpp), 1)
    block = np.clip(x.ar_layers / per_chunk, 0, 1)
    full = np.where(x.ar_method == 1, block, 1.0)
    whole = np.where(x.ar == 2, full, 0.0)
    return np.where(np.isnan(x.recomputed), whole, x.recomputed)


def embedding(hw: Hardware, x: Inputs) -> Array:
    """Seconds of the embedding lookup and of accumulating its gradients, on the first stage."""
    b = 4 if x.dtype == "fp32" else 2
    tokens = x.mbs * x.seq_len / x.cp
    return memory_bound(hw, 8.0 * tokens * x.hidden * b, hw.elementwise.bandwidth, 4)


def _overlap_tp(hw: Hardware, x: Inputs, compute: Array, tp: Array) -> tuple[Array, Array]:
    """(compute seconds, exposed seconds of tp communication) with tp_comm_overlap. Communication takes tp_comm
    multiprocessors from the GEMMs that hide it; more make it faster, up to the number that NCCL itself would use."""
    if not np.any(x.tp_comm_overlap):
        return compute, tp
    moving = tp * np.maximum(16 / np.maximum(x.tp_comm, 1), 0.8)
    hidden = np.minimum(HIDDEN_TP * moving, compute)
    lost = hidden * x.tp_comm / hw.multiprocessors
    on = x.tp_comm_overlap > 0
    return np.where(on, compute + lost, compute), np.where(on, moving - hidden, tp)


def _overlap_ep(hw: Hardware, x: Inputs, compute: Array, ep: Array) -> tuple[Array, Array]:
    """(compute seconds, exposed seconds of expert communication) with overlap_experts: one micro batch's tokens are
    exchanged while another one computes, except for the first and the last. The exchange takes multiprocessors from
    compute."""
    if not np.any(x.overlap_experts):
        return compute, ep
    hidden = np.where(x.overlap_experts > 0, np.minimum(ep, compute) * (1 - 1 / x.micro_batches), 0.0)
    return compute + hidden * NCCL_MULTIPROCESSORS / hw.multiprocessors, ep - hidden


def _gathered_layers(hw: Hardware, links: Topology, x: Inputs, layer: Times, layers: Array, again: Array) -> Array:
    """Seconds that the communication of ZeRO-3 (FSDP) adds to a micro batch. Every layer's weights are gathered before
    it runs, forward and backward, and its gradients are scattered afterwards, overlapped with another layer's compute
    (unless `in_turn`). This sends 3 times the weights instead of ZeRO-2's 2 (Rajbhandari et al. 2020, "ZeRO", section
    7). ZeRO++'s hpZ gathers the second time within a smaller group (Wang et al. 2023, section 4.2)."""
    if not np.any(x.zero == 3):
        return np.zeros(1)
    weights = layer_weights(x)
    group = np.where(np.isnan(x.zero_group), x.dp * x.cp, x.zero_group)
    stride, b = x.tp, 2.0
    loaded = x.offload_weights * from_host(hw, b * weights / group)
    gather = links.all_gather(b * weights, group, stride) + loaded
    near = links.all_gather(b * weights, np.where(x.near_group > 0, x.near_group, group), stride)
    gathered = near + np.where(x.near_group > 0, 0.0, loaded)
    scatter = np.where(x.lora > 0, 0.0, links.reduce_scatter(b * weights, group, stride))
    # Share of weights that stay gathered until the backward pass, so that it need not gather them.
    kept = np.clip(x.kept_elements / (layers * weights), 0, 1)
    forward = layer.forward
    backward = layer.backward + again * layer.forward
    taken = NCCL_MULTIPROCESSORS / hw.multiprocessors

    def adds(sent: Array, computed: Array) -> Array:
        beside = np.maximum(sent - computed, 0) + taken * np.minimum(sent, computed)
        return np.where(x.in_turn > 0, sent, beside)

    back = (1 - kept) * adds(gathered + scatter, backward) + kept * adds(scatter, backward)
    return np.where(x.zero == 3, layers * (adds(gather, forward) + back) + gather + scatter, 0.0)


def from_host(hw: Hardware, size: Array) -> Array:
    return size / (1e9 * hw.host_gb_s * HOST_LINK)


def sends(links: Topology, x: Inputs) -> Array:
    """(n,) exposed seconds per micro batch to send activations to the next stage and gradients to the previous."""
    b = 4 if x.dtype == "fp32" else 2
    size = x.mbs * x.seq_len / x.cp * x.hidden * b / np.where(x.sp > 0, x.tp, 1)
    both = 2 * links.send(size, x.tp * x.cp * x.dp) * x.vpp
    hidden = (x.overlap_p2p > 0) & (x.vpp > 1)
    return np.where(x.pp > 1, np.where(hidden, 0.2, 1.0) * both, 0.0)
