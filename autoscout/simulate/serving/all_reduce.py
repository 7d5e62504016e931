"""Microseconds of communication between the devices of one serving engine."""

import numpy as np

from autoscout.simulate.hardware.collectives import Topology
from autoscout.simulate.hardware.device import at
from autoscout.simulate.serving.serving_device import ServingDevice


def all_reduce_us(
    device: ServingDevice, world: np.ndarray, message: np.ndarray, nodes: Topology | None = None
) -> np.ndarray:
    """(n,) microseconds of an all-reduce of `message` bytes over `world` devices; 0 for a single device. `nodes`: the
    network, needed if a group spans nodes, where engines use NCCL instead of their own kernels."""
    world, message = np.broadcast_arrays(world, np.maximum(message, 1.0))
    us, several = np.zeros(world.shape), world > 1
    if several.any():
        us[several] = _several_us(device, world[several], message[several])
    if nodes is None or not np.any(world > nodes.per_node):
        return us
    return np.where(world > nodes.per_node, 1e6 * nodes.all_reduce(message, world, np.ones(1)), us)


def hand_over_us(
    device: ServingDevice, tp: np.ndarray, pp: np.ndarray, message: np.ndarray, nodes: Topology
) -> np.ndarray:
    """(n,) microseconds to send activations of `message` bytes through all stages of a pipeline, also between nodes."""
    if np.all(pp == 1):
        return np.zeros(1)
    near = all_reduce_us(device, np.where(pp > 1, 2.0, 1.0), message) / 2
    borders = np.ceil(pp / np.maximum(nodes.per_node // tp, 1)) - 1
    away = 1e6 * nodes.send(message / nodes.per_node, nodes.per_node)
    return (pp - 1 - borders) * near + borders * away


def _several_us(device: ServingDevice, world: np.ndarray, message: np.ndarray) -> np.ndarray:
    """Like `all_reduce_us` in one node, by log-log interpolation; proportional to size above the largest measured."""
    table, us = device.all_reduce, np.zeros(world.shape)
    # index of the smallest measured group with at least `world` devices, or else of the largest group
    places = np.searchsorted([2, 4], world)
    for place, known in enumerate((table.gpus_2_us, table.gpus_4_us, table.gpus_8_us)):
        of_size = places == place
        if of_size.any():
            own, times = message[of_size], known or table.gpus_2_us
            inside = np.exp(np.interp(np.log(own), np.log(table.bytes), np.log(times)))
            us[of_size] = inside * np.maximum(1.0, own / table.bytes[-1])
    ring = _ring_us(device, world, message)
    us = us if device.cpu else np.minimum(us, ring) if device.island.peers else ring
    return us * device.kernels.exchange_times


def _ring_us(device: ServingDevice, world: np.ndarray, message: np.ndarray) -> np.ndarray:
    """Microseconds of NCCL's all-reduce inside a node, for messages above the limit of an engine's own kernels."""
    links = device.island
    latency, bus = at(links.all_reduce.latency_us, links.ranks, world), links.bus_gb_s(links.all_reduce, world)
    return latency + 2 * (world - 1) / world * message / (1e3 * bus)
