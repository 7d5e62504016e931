"""Seconds of collectives: latency + bytes / bus bandwidth, with both constants depending on the group's size.

A group inside one node uses the curves measured on the node's links (`Island`). A group that spans nodes is priced
hierarchically, like NCCL's rings and trees: its ranks within a node use the node's links, and all groups of a node
share the node's network cards."""

import numpy as np

from autoscout.simulate.hardware.device import Curve, Hardware, at

Array = np.ndarray
ANY = np.array(np.inf)  # no limit on the number of NCCL's channels


class Topology:
    """The links of a job's ranks: `per_node` devices per node, and `node_gb_s`, the bandwidth between nodes in GB/s."""

    def __init__(self, hw: Hardware, per_node: Array, node_gb_s: Array) -> None:
        self.hw = hw
        self.per_node = per_node
        self.node_gb_s = node_gb_s

    def all_reduce(self, size: Array, group: Array, stride: Array, channels: Array = ANY) -> Array:
        """Seconds to sum `size` bytes of every rank; neighbours are `stride` ranks apart; NCCL may use at most
        `channels` channels."""
        return self._ring(size, group, stride, self.hw.island.all_reduce, 2.0, channels)

    def all_gather(self, size: Array, group: Array, stride: Array, channels: Array = ANY) -> Array:
        """Seconds until every rank has all `size` bytes."""
        return self._ring(size, group, stride, self.hw.island.all_gather, 1.0, channels)

    def reduce_scatter(self, size: Array, group: Array, stride: Array, channels: Array = ANY) -> Array:
        return self._ring(size, group, stride, self.hw.island.reduce_scatter, 1.0, channels)

    def late(self, group: Array) -> Array:
        """Extra seconds that a collective takes between a layer's kernels, because ranks reach it at different times,
        compared to a collective that runs alone."""
        island = self.hw.island
        return np.where(group > 1, 1e-6 * at(island.inside_us, island.ranks, group), 0.0)

    def all_to_all(
        self, size: Array, group: Array, stride: Array, each: Array | float = 0.0, copies: Array | float = 0.0
    ) -> Array:
        """Seconds of an all-to-all in which every rank sends `size` bytes in equal pieces; ranks of a node share its
        network bandwidth equally. If `each` > 0, `size` is `copies` copies of a rank's tokens, of `each` bytes in
        total, to random ranks, and duplicates are avoided: a token is sent once per destination rank and crosses the
        network once per destination node (DeepEP and HybridEP, `is_token_in_rank`)."""
        inside = self._inside(group, stride)

        def leaving(places: Array) -> Array:
            """Bytes that leave their rank or node, given the number of ranks or nodes (`places`)."""
            all_copies = size * (1 - 1 / places)
            once = each * (places - 1) * (1 - (1 - 1 / places) ** copies)
            return np.where(np.asarray(each) > 0, np.minimum(once, all_copies), all_copies)

        local = self._island(leaving(np.maximum(group, 1)), inside, self.hw.island.all_to_all)
        crossing = leaving(np.maximum(group / np.maximum(inside, 1), 1))
        network = crossing * np.minimum(self.per_node, group * stride) / self._network()
        away = 1e-6 * self.hw.network.latency_us + network
        return np.where(group <= 1, 0.0, np.where(group > inside, np.maximum(local, away), local))

    def send(self, size: Array, distance: Array) -> Array:
        """Seconds to send `size` bytes from each rank to the rank `distance` ranks away; all ranks may send at once."""
        curve = self.hw.island.send
        local = 1e-6 * curve.latency_us[0] + size / (1e9 * curve.bus_gb_s[0])
        away = 1e-6 * self.hw.network.latency_us + size * np.minimum(self.per_node, distance) / self._network()
        return np.where(distance >= self.per_node, away, local)

    def _ring(self, size: Array, group: Array, stride: Array, curve: Curve, passes: float, channels: Array) -> Array:
        inside = self._inside(group, stride)
        moved = passes * size * (group - 1) / np.maximum(group, 1)
        local = np.maximum(self._island(moved, inside, curve), self._of_channels(moved, channels))
        rings = np.minimum(self.per_node, stride)  # number of groups that share a node's network cards
        # Each channel leaves a node through one network card. A node has one card per device.
        cards = np.minimum(self.per_node / rings, channels)
        nodes = np.ceil(group / inside)
        steps = passes * np.log2(np.maximum(nodes, 2))  # latency as in NCCL's trees, bandwidth as in its rings
        away = 1e-6 * self.hw.network.latency_us * steps + moved * self.per_node / (cards * self._network())
        return np.where(group <= 1, 0.0, np.where(nodes > 1, np.maximum(local, away), local))

    def _of_channels(self, moved: Array, channels: Array) -> Array:
        """Lower bound in seconds from the bandwidth of a limited number of channels inside a node; 0 where the
        bandwidth of one channel is unknown."""
        each = self.hw.channel_gb_s
        return moved / (1e9 * each * channels) if each else np.zeros(())

    def _island(self, moved: Array, group: Array, curve: Curve) -> Array:
        island = self.hw.island
        latency = at(curve.latency_us, island.ranks, group)
        return 1e-6 * latency + moved / (1e9 * island.bus_gb_s(curve, group))

    def _inside(self, group: Array, stride: Array) -> Array:
        """Number of a group's ranks within one node."""
        return np.clip(self.per_node // np.maximum(stride, 1), 1, group)

    def _network(self) -> Array:
        return 1e9 * self.node_gb_s * self.hw.network.efficiency
