"""The work that happens once per step: replicas exchange gradients and weights, and the optimizer runs."""

from typing import NamedTuple

import numpy as np

from autoscout.simulate.hardware.collectives import Topology
from autoscout.simulate.hardware.device import Hardware
from autoscout.simulate.hardware.roofline import memory_bound
from autoscout.simulate.training import hub_layers as hub
from autoscout.simulate.training.inputs import Inputs
from autoscout.simulate.training.rank_parameters import rank_weights, trained
from autoscout.simulate.training.stage import NCCL_MULTIPROCESSORS, from_host

Array = np.ndarray
MIB = 2.0**20  # bytes
# Bytes moved per parameter by Adam in mixed precision: the gradient is read for its norm, scaled, and read again;
# master weight and two moments are read and written; the weight is written; the gradient buffer is zeroed.
OPTIMIZER_BYTES = 48.0
# HOST_BYTES: bytes moved per parameter by Adam on a host (ZeRO-Offload's CPU Adam, Ren et al. 2021): gradient, master
# weight and two moments are read; master weight, moments and a 16-bit weight are written. HOST_GB_S: memory bandwidth
# of a server with two sockets, a usual figure, not measured here. CROSSING_BYTES: a rank sends fp32 gradients and
# receives 16-bit weights (stage_1_and_2.py).
HOST_BYTES, HOST_GB_S, CROSSING_BYTES = 30.0, 120.0, 6.0


class Exchange(NamedTuple):
    """Seconds of communication between replicas, (n,) each. `whole`: total; `gradients`: the part that the backward
    pass can hide; `weights`: the part that a forward pass (half as long) can hide. `gain`: seconds saved per hidden
    second, below 1 because communication takes multiprocessors from the layers. `each`: communication after every micro
    batch but the last."""

    whole: Array
    gradients: Array
    weights: Array
    gain: Array
    each: Array

    def exposed(self, backward: Array, others: Array) -> Array:
        """(n,) seconds added to a step, given the seconds of a backward pass and the number `others` of micro batches
        before the last one."""
        gradients = np.minimum(self.gradients, backward)
        hidden = gradients + np.minimum(self.weights, backward / 2)
        again = np.where(self.each > 0, others * (self.each - self.gain * gradients), 0.0)
        return self.whole - self.gain * hidden + again


def exchange(hw: Hardware, links: Topology, x: Inputs, layers: Array) -> Exchange:
    """The communication of a stage of `layers` layers. With overlap_grad, the last backward pass hides all buckets but
    the last one. DeepSpeed's ZeRO-1 and ZeRO-2 all-reduce gradients, and each rank keeps only its part
    (stage_1_and_2.py: use_multi_rank_bucket_allreduce). So they send as much as stage 0, and also gather weights."""
    dense, expert = trained(x, *rank_weights(x, layers))
    group, stride = x.dp * x.cp, x.tp
    expert_group = np.maximum(group * x.tp / (x.ep * x.etp), 1)
    sharded = (x.distopt > 0) | (x.zero == 1) | (x.zero == 2)
    bucket = np.where(x.overlap_grad > 0, x.ddp_bucket * MIB * x.grad_bytes / 4, np.inf)
    bucket = np.where(np.isnan(x.reduce_elements), bucket, np.maximum(x.reduce_elements, 1) * x.grad_bytes)
    # On a CPU, latency is the wait for a time slice, and Megatron's buckets wait concurrently, so they count as one.
    sent_in = np.where((hw.cores > 0) & np.isnan(x.reduce_elements), np.inf, bucket)
    channels = np.nan_to_num(x.dp_channels, nan=np.inf)
    reduce = _in_buckets(links, x.grad_bytes * dense, sent_in, (group, stride, channels), x.distopt > 0)
    shared = np.where(np.isnan(x.zero_group), group, x.zero_group)
    gather = links.all_gather(x.gathered_bytes * dense, shared, stride, channels)
    if np.any(x.experts):
        expert_stride = x.ep * x.etp
        sparse = x.grad_bytes * expert
        among = expert_group, expert_stride, channels
        reduce = reduce + _in_buckets(links, sparse, sent_in, among, x.distopt > 0)
        gather = gather + links.all_gather(x.gathered_bytes * expert, *among)
    in_layers = x.zero == 3  # ZeRO-3 communicates layer by layer, see stage.py
    reduce = np.where(in_layers, 0.0, reduce)
    gather = np.where(sharded & ~in_layers, gather, 0.0)
    tied = np.where(
        (x.tied > 0) & (x.pp > 1) & (x.lora == 0),
        links.all_reduce(x.grad_bytes * x.vocab * x.hidden / x.tp, np.full(1, 2.0), x.tp * x.cp * x.dp),
        0.0,
    )
    buckets = np.maximum(x.grad_bytes * (dense + expert) / bucket, 1)
    return Exchange(
        whole=reduce + gather + tied,
        gradients=np.where(x.overlap_grad > 0, reduce - reduce / buckets, 0.0),
        weights=np.where(x.overlap_param > 0, gather - gather / buckets, 0.0),
        gain=np.full(1, 1 - NCCL_MULTIPROCESSORS / hw.multiprocessors),
        each=np.where(x.reduced_each > 0, reduce, 0.0),
    )


def optimizer(hw: Hardware, x: Inputs, layers: Array) -> Array:
    """(n,) seconds of the optimizer step on a rank of a stage of `layers` layers."""
    dense, expert = trained(x, *rank_weights(x, layers))
    group = x.dp * x.cp
    shards = np.where((x.distopt > 0) | (x.zero > 0), np.where(np.isnan(x.zero_group), group, x.zero_group), 1.0)
    expert_shards = np.where(shards > 1, np.maximum(group * x.tp / (x.ep * x.etp), 1), 1.0)
    own = dense / shards + expert / expert_shards
    each = np.where(x.hub > 0, hub.ADAM * np.where(x.lora > 0, 4.0, x.hub), OPTIMIZER_BYTES)
    here = memory_bound(hw, each * own * (1 - x.cpu_adam), hw.elementwise.bandwidth, 20)
    return here + (on_host(hw, x, own * x.cpu_adam) if np.any(x.cpu_adam) else 0.0)


def on_host(hw: Hardware, x: Inputs, own: Array) -> Array:
    """(n,) seconds to update `own` parameters of a rank on its host, whose memory bandwidth the node's ranks share."""
    ranks = np.minimum(np.where(np.isnan(x.per_node), hw.per_node, x.per_node), x.gpus)
    return ranks * HOST_BYTES * own / (1e9 * HOST_GB_S) + from_host(hw, CROSSING_BYTES * own)


def _in_buckets(
    links: Topology, size: Array, bucket: Array, among: tuple[Array, Array, Array], scatter: Array
) -> Array:
    """(n,) seconds to reduce `size` bytes of gradients in buckets. `among`: size and stride of the group, and NCCL's
    channels. Every bucket adds the latency, because NCCL runs them one after another."""
    number = np.maximum(np.ceil(size / bucket), 1)
    each = size / number
    return number * np.where(scatter, links.reduce_scatter(each, *among), links.all_reduce(each, *among))
