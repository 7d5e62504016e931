"""Finds stragglers (ranks for which other ranks wait), by comparing the devices' times for the same arithmetic without
collectives."""

import statistics

import msgspec

from kb.records import Measurement

SLOWED = 1.3  # a device is reported as slow if it takes at least this many times as long as the other devices


class Slowest(msgspec.Struct, frozen=True):
    """The slowest rank. `times`: ratio of its time for the same arithmetic to the median of the other ranks (of those
    with the same kind of device, if there are any)."""

    rank: int
    device: str  # "host:kind:index"; "": unknown
    times: float
    alike: bool  # whether the rank was compared with ranks on the same kind of device

    @property
    def sentence(self) -> str:
        where = f" ({self.device})" if self.device else ""
        others = "the others'" if self.alike else "the other devices'"
        return f"slowest: rank {self.rank}{where}, {self.times:.2f}× {others} time for the same arithmetic"


def slowest(measurement: Measurement) -> Slowest | None:
    """The rank that is slowest relative to the others on its kind of device, if it takes SLOWED times as long; else the
    rank with the longest time. None if ranks did not report `alone_s`, or there is only one."""
    alone = measurement.per_rank.get("alone_s", [])
    if len(alone) < 2 or min(alone) <= 0:
        return None
    devices = measurement.rank_devices
    if len(devices) != len(alone):
        devices = [""] * len(alone)
    found = [_against_peers(rank, alone, devices) for rank in range(len(alone))]
    among_alike = max((s for s in found if s.alike), key=lambda s: s.times, default=None)
    if among_alike is not None and among_alike.times >= SLOWED:
        return among_alike
    return found[max(range(len(alone)), key=alone.__getitem__)]


def _against_peers(rank: int, alone: list[float], devices: list[str]) -> Slowest:
    others = [s for i, s in enumerate(alone) if i != rank]
    peers = [s for i, s in enumerate(alone) if i != rank and kind(devices[i]) == kind(devices[rank])]
    return Slowest(rank, devices[rank], alone[rank] / statistics.median(peers or others), bool(peers))


def slowed(measurement: Measurement) -> str:
    """A sentence on the slowest rank if it takes at least SLOWED times as long as ranks on the same kind of device;
    else ""."""
    found = slowest(measurement)
    return found.sentence if found is not None and found.alike and found.times >= SLOWED else ""


def kind(device: str) -> str:
    return ":".join(device.split(":")[1:-1])
