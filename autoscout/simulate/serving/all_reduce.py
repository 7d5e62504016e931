"""What the devices of one engine send each other: microseconds."""

import numpy as np

from autoscout.simulate.hardware.collectives import Topology
from autoscout.simulate.serving.serving_device import ServingDevice

# Cards whose only measured links are those of one machine, at 0.7 to 5 GB/s for 4 and 8 of them. Eight RTX 4090, which
# talk through the host, take a prompt of Llama-3-70B (AccelMark) as if they had 6 GB/s; L40S reach each other over PCIe
# 4.0 as two of that machine did (eight A40 had 26 GB/s: Vidur), and RTX PRO 6000, which do, too, over PCIe 5.0.
_AT_LEAST_GB_S = {"l40s": 20.0, "rtx-pro": 40.0, "rtx": 6.0}
# Cards that do not reach each other's memory: engines' own kernels need that, and NCCL goes through the host's, two as
# slowly as four (io.net's runs on two RTX 4090).
_APART = ("rtx4090", "rtx5090")
# AMD's take twice what the data sheets let assume (engines' own as on H100, the ring by the links): AMD's own table of
# Llama-3.1 70B and 405B in FP8 on eight MI300X.
_AMD = 2.0


def all_reduce_us(
    device: ServingDevice, world: np.ndarray, message: np.ndarray, nodes: Topology | None = None
) -> np.ndarray:
    """0 where a device is alone. Engines' own kernels end with the node; beyond, it is NCCL's over the network."""
    world, message = np.broadcast_arrays(world, np.maximum(message, 1.0))
    us, several = np.zeros(world.shape), world > 1
    us[several] = _several_us(device, world[several], message[several])
    if nodes is None or not np.any(world > nodes.per_node):
        return us
    return np.where(world > nodes.per_node, 1e6 * nodes.all_reduce(message, world, np.ones(1)), us)


def hand_over_us(
    device: ServingDevice, tp: np.ndarray, pp: np.ndarray, message: np.ndarray, nodes: Topology
) -> np.ndarray:
    """From the first stage of a pipeline to the last: within a node, and where as many stages as fit on one end."""
    near = all_reduce_us(device, np.where(pp > 1, 2.0, 1.0), message) / 2
    borders = np.ceil(pp / np.maximum(nodes.per_node // tp, 1)) - 1
    away = 1e6 * nodes.send(message / nodes.per_node, nodes.per_node)
    return (pp - 1 - borders) * near + borders * away


def _several_us(device: ServingDevice, world: np.ndarray, message: np.ndarray) -> np.ndarray:
    """Log-log interpolation between the measured sizes; beyond them the last rate."""
    table, us = device.all_reduce, np.zeros(world.shape)
    places = np.searchsorted([2, 4], world)  # of the smallest measured world that holds so many; else of the largest
    for place, known in enumerate((table.gpus_2_us, table.gpus_4_us, table.gpus_8_us)):
        of_size = places == place
        if of_size.any():
            own, times = message[of_size], known or table.gpus_2_us
            inside = np.exp(np.interp(np.log(own), np.log(table.bytes), np.log(times)))
            us[of_size] = inside * np.maximum(1.0, own / table.bytes[-1])
    ring = _ring_us(device, world, message)
    us = us if device.name == "cpu" else ring if device.name.startswith(_APART) else np.minimum(us, ring)
    return us * _AMD if device.name.startswith("mi3") else us


def _ring_us(device: ServingDevice, world: np.ndarray, message: np.ndarray) -> np.ndarray:
    """NCCL's all-reduce, which engines take for messages that are too large for their own kernels."""
    links = device.ring
    latency, bus = (np.interp(world, links.ranks, of) for of in (links.latency_us, links.bus_gb_s))
    least = next((least for card, least in _AT_LEAST_GB_S.items() if device.name.startswith(card)), 0.0)
    bus = np.full(np.shape(bus), least) if device.name.startswith(_APART) else np.maximum(bus, least)
    return latency + 2 * (world - 1) / world * message / (1e3 * bus)
