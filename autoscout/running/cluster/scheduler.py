"""Decides which experiment starts next and on which devices: first come, first served, with backfill that delays no
older experiment.

The scheduler has no clock (callers pass the time) and starts no process. Devices of one host that disturb each other's
measurements form a group, which is given to only one experiment. The oldest experiment that does not fit gets a
reservation for the earliest time at which the time limits of running experiments guarantee enough free devices. Others
may start earlier if they end before that time or do not need the reserved devices (EASY backfill: Lifka 1995, with
enforced limits).
"""

from collections import deque
from collections.abc import Iterable, Sequence
from itertools import islice

import msgspec
import numpy as np

from autoscout.running.cluster.placement import Device, Host, Placement
from kb.records import AutoscoutError

_LOOK = 4  # number of the oldest waiting experiments with the same request that are tried for backfill


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
    limit_s: float
    ends: float  # latest possible end, by the time limit
    ticket: int
    held: tuple[_Share, ...]  # all devices in `groups`, including those that the request does not need


class Scheduler:
    """Schedules experiments on `hosts` with all their devices. The caller names the experiments."""

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
        self._waiting: dict[Request, deque[tuple[int, str]]] = {}
        self._known: dict[str, tuple[Request, float, int]] = {}  # waiting experiment → (request, time limit, ticket)
        self._tickets = 0
        self.running: dict[str, Running] = {}

    @property
    def waiting(self) -> list[str]:
        """Waiting experiments, the one that has waited longest first."""
        return sorted(self._known, key=lambda name: self._known[name][2])

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

    def submit(self, name: str, request: Request, limit_s: float) -> None:
        """Adds an experiment; submitting it again changes nothing. Errors: AutoscoutError (exit 2) if it needs more
        than all hosts together have."""
        if name in self._known or name in self.running:
            return
        if lacking := self.lacking(request):
            raise AutoscoutError(lacking, 2)
        self._tickets += 1
        self._wait(name, request, limit_s, self._tickets)

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

    def start(self, now: float) -> list[tuple[str, Placement]]:
        """Gives devices to all waiting experiments that fit now, the longest waiting first, until `end` is called."""
        started: list[tuple[str, Placement]] = []
        while (name := self._oldest()) is not None:
            shares = self._fit(self._known[name][0], self._room)
            if shares is None:
                started += self._backfill(name, now)
                break
            started.append((name, self._take(name, shares, now)))
        return started

    def end(self, name: str) -> None:
        """Frees the devices of an experiment that ended in any way; does nothing for one that is not running."""
        ran = self.running.pop(name, None)
        if ran is not None:
            for number, group in ran.groups:
                self._free[number].add(group)
            _add(self._room, [share for share in ran.held if self._up[share[0]]])

    def withdraw(self, name: str) -> None:
        """Removes a waiting experiment. Has no effect on a running one, for which the caller must end the processes and
        then call `end`."""
        known = self._known.pop(name, None)
        if known is not None:
            queue = self._waiting[known[0]]
            queue.remove((known[2], name))
            if not queue:
                del self._waiting[known[0]]

    def restore(self, name: str, request: Request, placement: Placement, limit_s: float, now: float) -> None:
        """Registers an experiment that was running when the caller restarted. Errors: AutoscoutError if its devices are
        in use or gone."""
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
        self._tickets += 1
        self._book(name, request, limit_s, self._tickets, placement, tuple(dict.fromkeys(groups)), now)

    # ---- hosts come and go ----------------------------------------------------------------------------------------

    def lose(self, host: str) -> list[str]:
        """Takes a host out of use and requeues its experiments, whose processes the caller must end."""
        number = self._number[host]
        self._up[number] = False
        victims = [name for name, ran in self.running.items() if any(n == number for n, _ in ran.groups)]
        for name in victims:
            ran = self.running[name]
            self.end(name)
            self._wait(name, ran.request, ran.limit_s, ran.ticket)
        self._room[number] = 0
        return victims

    def regain(self, host: str) -> None:
        number = self._number[host]
        if not self._up[number]:
            self._up[number] = True
            self._free[number] = set(self._groups[number])
            self._room[number] = self._whole[number]

    def _wait(self, name: str, request: Request, limit_s: float, ticket: int) -> None:
        self._known[name] = request, limit_s, ticket
        queue = self._waiting.setdefault(request, deque())
        queue.append((ticket, name))
        if len(queue) > 1 and queue[-2][0] > ticket:  # the experiment waited before, so it gets its old position back
            self._waiting[request] = deque(sorted(queue))

    def _oldest(self) -> str | None:
        return min((queue[0] for queue in self._waiting.values()), default=(0, None))[1]

    def _backfill(self, oldest: str, now: float) -> list[tuple[str, Placement]]:
        """Starts experiments that may run before the `oldest`, for which there are too few free devices now."""
        request = self._known[oldest][0]
        reserved = self._reservation(request, now)
        # The oldest experiment cannot start before a lost host returns, so no other experiment has to wait for it.
        if reserved is None:
            until, spare = float("inf"), self._room.copy()
        else:
            until, spare = reserved
        started = []
        for wanted in sorted(self._waiting, key=lambda wanted: self._waiting[wanted][0]):
            if wanted == request or self._fit(wanted, self._room) is None:
                continue
            for _, name in list(islice(self._waiting[wanted], _LOOK)):
                ends_before = now + self._known[name][1] <= until
                shares = self._fit(wanted, self._room if ends_before else np.minimum(self._room, spare))
                if shares is not None:
                    started.append((name, self._take(name, shares, now)))
                    if not ends_before:
                        _add(spare, self.running[name].held, -1)
        return started

    def _reservation(self, request: Request, now: float) -> tuple[float, Room] | None:
        """Returns the time by which enough devices for the request are free at the latest, and the devices left over
        at that time; None if there will never be enough."""
        ends = sorted(self.running.values(), key=lambda ran: ran.ends)
        after = np.zeros((len(ends) + 1, *self._room.shape), dtype=int)  # free devices after the first n have ended
        after[0] = self._room
        for row, ran in zip(after[1:], ends, strict=True):
            _add(row, ran.held)
        after = after.cumsum(axis=0)
        low, high = 0, len(ends)
        if self._fit(request, after[high]) is None:
            return None
        while low < high:
            middle = (low + high) // 2
            low, high = (low, middle) if self._fit(request, after[middle]) is not None else (middle + 1, high)
        room = after[low]
        _add(room, self._fit(request, room) or (), -1)
        return (max(now, ends[low - 1].ends) if low else now), room

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

    def _take(self, name: str, shares: list[_Share], now: float) -> Placement:
        request, limit_s, ticket = self._known[name]
        self.withdraw(name)
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
        self._book(name, request, limit_s, ticket, placement, tuple(groups), now)
        return placement

    def _chosen(self, number: int, kind: str, count: int, taken: list[tuple[int, str]]) -> Iterable[str]:
        """Yields free groups with `count` devices together: first groups used as a whole, then the smallest group that
        has enough devices for the rest."""
        of = {g: n for g in self._groups[number] if g in self._free[number] and (number, g) not in taken
              if (n := sum(d.kind == kind for d in self._groups[number][g]))}  # fmt: skip
        while count > 0:
            group = next((g for g, n in of.items() if n <= count), None) or min(of, key=lambda g: of[g])
            count -= of.pop(group)
            yield group

    def _book(
        self,
        name: str,
        request: Request,
        limit_s: float,
        ticket: int,
        placement: Placement,
        groups: tuple[tuple[int, str], ...],
        now: float,
    ) -> None:
        held: dict[tuple[int, int], int] = {}
        for number, group in groups:
            self._free[number].remove(group)
            for device in self._groups[number][group]:
                at = number, self._kind[device.kind]
                held[at] = held.get(at, 0) + 1
        shares = tuple((number, kind, count) for (number, kind), count in held.items())
        _add(self._room, shares, -1)
        self.running[name] = Running(request, placement, groups, limit_s, now + limit_s, ticket, shares)


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
