"""Times of all-reduces between the devices of one engine."""

import numpy as np

from autoscout.simulate.serving.serving_device import ServingDevice

# Cards whose only measured links are those of one machine, at 0.7 to 5 GB/s for 4 and 8 of them. Eight RTX 4090, which
# talk through the host, take a prompt of Llama-3-70B (AccelMark) as if they had 6 GB/s; L40S reach each other over PCIe
# 4.0 as two of that machine did (eight A40 had 26 GB/s: Vidur).
_AT_LEAST_GB_S = {"l40s": 20.0, "rtx": 6.0}


def all_reduce_us(device: ServingDevice, world: np.ndarray, message: np.ndarray) -> np.ndarray:
    """Log-log interpolation between the measured sizes; beyond them the last rate."""
    table = device.all_reduce
    world, message = np.broadcast_arrays(world, np.maximum(message, 1.0))
    us = np.zeros(world.shape)
    for size, known in ((2, table.gpus_2_us), (4, table.gpus_4_us), (8, table.gpus_8_us)):
        of_size = world > size / 2
        times = known or table.gpus_2_us
        if of_size.any():
            inside = np.exp(np.interp(np.log(message), np.log(table.bytes), np.log(times)))
            us = np.where(of_size, inside * np.maximum(1.0, message / table.bytes[-1]), us)
    if device.name == "cpu":
        return us
    return np.where(world > 1, np.minimum(us, _ring_us(device, world, message)), us)


def _ring_us(device: ServingDevice, world: np.ndarray, message: np.ndarray) -> np.ndarray:
    """NCCL's all-reduce, which engines take for messages that are too large for their own kernels."""
    links = device.ring
    latency, bus = (np.interp(world, links.ranks, of) for of in (links.latency_us, links.bus_gb_s))
    bus = np.maximum(bus, next((least for card, least in _AT_LEAST_GB_S.items() if device.name.startswith(card)), 0.0))
    return latency + 2 * (world - 1) / world * message / (1e3 * bus)
