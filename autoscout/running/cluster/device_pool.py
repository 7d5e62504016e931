"""Gives experiments devices of their own, on the hosts of a session.

Devices of one host that disturb each other's measurements form a group, which is given to only one experiment.
"""

from collections.abc import Iterable, Sequence

import msgspec
import numpy as np

from autoscout.running.cluster.placement import Device, Host, Placement
from kb.records import AutoscoutError


class SlotPart(msgspec.Struct, frozen=True):
    """A request for devices of one kind on one host. The devices may be on several hosts only if no host has that
    many."""

    kind: str
    count: int


Request = tuple[SlotPart, ...]
Room = np.ndarray  # (hosts, kinds): number of free devices, which excludes those in a group that is in use
_Share = tuple[int, int, int]  # index of the host, index of the kind, number of devices


class Running(msgspec.Struct, frozen=True):
    request: Request
    placement: Placement
    groups: tuple[tuple[int, str], ...]  # (host, group) of the devices in use
    held: tuple[_Share, ...]  # all devices in `groups`, including those that the request does not need


class DevicePool:
    """The devices of `hosts`. `running`: the experiments that have devices; the caller names them."""

    def __init__(self, hosts: Sequence[Host]) -> None:
        self.hosts = list(hosts)
        self._number = {host.name: i for i, host in enumerate(self.hosts)}
        self._groups = [_groups(host) for host in self.hosts]
        self._free = [set(groups) for groups in self._groups]
        kinds = dict.fromkeys(device.kind for host in self.hosts for device in host.devices)
        self._kind = {kind: i for i, kind in enumerate(kinds)}
        self._whole = np.array([[_count(h.devices, k) for k in kinds] for h in self.hosts]).reshape(-1, len(kinds))
        self._room: Room = self._whole.copy()
        self._up = np.ones(len(self.hosts), dtype=bool)
        self.running: dict[str, Running] = {}

    @property
    def free(self) -> list[tuple[str, str]]:
        """(host, device) of all free devices of hosts that are not lost."""
        return [
            (host.name, device.index)
            for number, host in enumerate(self.hosts)
            if self._up[number]
            for group in self._groups[number]
            if group in self._free[number]
            for device in self._groups[number][group]
        ]

    def lacking(self, request: Request) -> str:
        """A sentence on requested devices that no host has, even when idle; "" if the hosts have all of them."""
        if self._fit(request, np.where(self._up[:, None], self._whole, 0)) is not None:
            return ""
        asked = ", ".join(f"{part.count} {part.kind}" for part in request)
        there = "; ".join(
            f"{host.name}: {', '.join(f'{_count(host.devices, kind)} {kind}' for kind in self._kind)}"
            for host, up in zip(self.hosts, self._up, strict=True)
            if up
        )
        return (
            f"an experiment needs {asked}, but there are {there or 'no hosts left'}; add hosts, or reduce cluster.nodes"
        )

    def take(self, name: str, request: Request) -> Placement | None:
        """Gives free devices to an experiment, until `end` is called; None if too few are free."""
        shares = self._fit(request, self._room)
        if shares is None:
            return None
        groups: list[tuple[int, str]] = []
        hosts: dict[int, list[Device]] = {}
        kinds = list(self._kind)
        for number, at, count in shares:
            kind = kinds[at]
            for group in self._chosen(number, kind, count, groups):
                groups.append((number, group))
                devices = [d for d in self._groups[number][group] if d.kind == kind][:count]
                hosts.setdefault(number, []).extend(devices)
                count -= len(devices)
        order = {d.index: i for host in self.hosts for i, d in enumerate(host.devices)}
        placement = Placement(
            tuple(
                Host(h.name, tuple(sorted(devices, key=lambda d: order[d.index])), h.address)
                for h, devices in ((self.hosts[number], devices) for number, devices in hosts.items())
            )
        )
        self._book(name, request, placement, tuple(groups))
        return placement

    def end(self, name: str) -> None:
        """Frees the devices of an experiment that ended in any way; does nothing for one that is not running."""
        ran = self.running.pop(name, None)
        if ran is not None:
            for number, group in ran.groups:
                self._free[number].add(group)
            _add(self._room, [share for share in ran.held if self._up[share[0]]])

    def restore(self, name: str, request: Request, placement: Placement) -> None:
        """Gives the devices of a placement to an experiment; giving them again changes nothing. Errors: AutoscoutError
        if they are in use or gone."""
        if name in self.running:
            return
        groups = []
        for host in placement.hosts:
            number = self._number.get(host.name, -1)
            of = {d.index: g for g, ds in self._groups[number].items() for d in ds} if number >= 0 else {}
            for device in host.devices:
                group = of.get(device.index)
                if group is None or (group not in self._free[number] and (number, group) not in groups):
                    raise AutoscoutError(
                        f"{name} ran on {placement.spelled}, but device {host.name}:{device.index} is not free now"
                    )
                groups.append((number, group))
        self._book(name, request, placement, tuple(dict.fromkeys(groups)))

    def lose(self, host: str) -> None:
        """Takes a host out of use. Its experiments lose their devices on all hosts; the caller must end their
        processes."""
        number = self._number[host]
        self._up[number] = False
        for name in [name for name, ran in self.running.items() if any(n == number for n, _ in ran.groups)]:
            self.end(name)
        self._room[number] = 0

    def _fit(self, request: Request, room: Room) -> list[_Share] | None:
        """Assigns each part of the request to the host with the fewest free devices that suffice, if possible to a
        different host per part; a part larger than every host gets whole hosts. None if the request does not fit."""
        shares: list[_Share] = []
        left = room.copy()
        used = np.zeros(len(left), dtype=bool)
        for part in request:
            kind = self._kind.get(part.kind)
            if kind is None:
                return None
            free = left[:, kind]
            fitting = np.flatnonzero(free >= part.count)
            if len(fitting):
                best = fitting[np.lexsort((free[fitting], used[fitting]))[0]]
                found = [(int(best), kind, part.count)]
            else:
                found = self._over_hosts(kind, part.count, free)
            if not found:
                return None
            shares += found
            _add(left, found, -1)
            used[[number for number, _, _ in found]] = True
        return shares

    def _over_hosts(self, kind: int, count: int, free: np.ndarray) -> list[_Share]:
        whole = self._whole[:, kind]
        if len(whole) and whole.max() >= count:
            return []  # a single host has that many devices, so wait for that host
        found: list[_Share] = []
        idle = np.flatnonzero((free > 0) & (free == whole))
        for number in idle[np.argsort(-whole[idle], kind="stable")].tolist():
            found.append((number, kind, min(count, int(whole[number]))))
            count -= found[-1][2]
            if not count:
                return found
        return []

    def _chosen(self, number: int, kind: str, count: int, taken: list[tuple[int, str]]) -> Iterable[str]:
        """Yields free groups with `count` devices together: first groups used as a whole, then the smallest group that
        has enough devices for the rest."""
        of = {g: n for g in self._groups[number] if g in self._free[number] and (number, g) not in taken
              if (n := sum(d.kind == kind for d in self._groups[number][g]))}  # fmt: skip
        while count > 0:
            group = next((g for g, n in of.items() if n <= count), None) or min(of, key=lambda g: of[g])
            count -= of.pop(group)
            yield group

    def _book(self, name: str, request: Request, placement: Placement, groups: tuple[tuple[int, str], ...]) -> None:
        held: dict[tuple[int, int], int] = {}
        for number, group in groups:
            self._free[number].remove(group)
            for device in self._groups[number][group]:
                at = number, self._kind[device.kind]
                held[at] = held.get(at, 0) + 1
        shares = tuple((number, kind, count) for (number, kind), count in held.items())
        _add(self._room, shares, -1)
        self.running[name] = Running(request, placement, groups, shares)


def _groups(host: Host) -> dict[str, tuple[Device, ...]]:
    """Name → devices that disturb each other, in the host's order. A device that disturbs no other is a group alone."""
    found: dict[str, list[Device]] = {}
    for device in host.devices:
        found.setdefault(f"group {device.group}" if device.group else device.index, []).append(device)
    return {name: tuple(devices) for name, devices in found.items()}


def _count(devices: Sequence[Device], kind: str) -> int:
    return sum(device.kind == kind for device in devices)


def _add(room: Room, shares: Iterable[_Share], sign: int = 1) -> None:
    for number, kind, count in shares:
        room[number, kind] += sign * count
