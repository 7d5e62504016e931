"""Runs several experiments of a session at the same time, each on its own devices, in its own thread and with its own
profiler. Only the session's thread, which waits for their ends here, calls the engine."""

import os
import queue
import threading
from collections import Counter
from collections.abc import Callable, Sequence

from autoscout.running.cluster.choosing import reached
from autoscout.running.cluster.devices import used_nodes
from autoscout.running.cluster.placement import Device, Host, Placement
from autoscout.running.cluster.scheduler import Request, Scheduler, SlotPart
from autoscout.running.interfaces import Profiler
from autoscout.running.outcome import HOST_LOST
from autoscout.running.roster import DRAINED
from autoscout.targets.jobs import profiler_of
from kb.records import AutoscoutError, Configuration, Job, Measurement

Run = Callable[[Profiler], Measurement]


def hosts_of(job: Job) -> list[Host]:
    """The hosts on which a session's experiments run. Errors: AutoscoutError (exit 2), see choosing.reached."""
    if not job.cluster.hosts:  # placeholders, since the launcher chooses devices of this machine itself
        count = job.devices * max(1, job.cluster.together)
        return [Host(os.uname().nodename, tuple(Device(str(index)) for index in range(count)))]
    return reached(job.cluster)


def alone_on(hosts: list[Host]) -> list[Host]:
    """The same hosts with all devices in one group, so that each host runs only one experiment at a time."""
    return [Host(h.name, tuple(Device(d.index, d.kind, group="host") for d in h.devices), h.address) for h in hosts]


class Lanes:
    """The concurrent experiments of one session. All methods may raise AutoscoutError, also from profilers."""

    def __init__(self, job: Job, first: Profiler, on_note: Callable[[str], None]) -> None:
        self.job, self.on_note = job, on_note
        self._hosts = hosts_of(job)
        self.scheduler = Scheduler(self._hosts)
        self._kinds = {device.kind for host in self.scheduler.hosts for device in host.devices}
        self._request = self._parts(Configuration({}))  # devices of the whole job
        if lacking := self.scheduler.lacking(self._request):
            raise AutoscoutError(f"cluster.nodes: {lacking}", 2)
        self._profilers = [first]  # the session, not this object, closes `first`
        self._idle: list[Profiler] = [first]
        self._ended: queue.SimpleQueue[tuple[int, Measurement | BaseException]] = queue.SimpleQueue()
        self._running: dict[int, Profiler] = {}
        self._failures: Counter[str] = Counter()
        self.most = self._most()
        self.crowd: list[Placement] = []  # placements that fill one host together; [] if cluster.together is set
        if job.cluster.hosts and not job.cluster.together:
            self.crowd = self._crowd()
        if self.crowd:
            self.share(False)

    @property
    def decision(self) -> str:
        """How many experiments run side by side, and why, as shown to the user."""
        hosts = len(self.scheduler.hosts)
        if not self.job.cluster.hosts or self.job.cluster.together:
            why = f"cluster.together = {self.job.cluster.together}"
        elif self.crowd:
            why = (
                f"{len(self.crowd)} fit on a host; after the reference's run, a test shows whether they disturb "
                "each other"
            )
        else:
            why = "each on its own devices; cluster.together sets the limit"
        return f"{self.most} experiments at once on {hosts} {'host' if hosts == 1 else 'hosts'} ({why})"

    @property
    def shape(self) -> str:
        """Devices of an experiment and of its host, such as "2 of 8 a100". For each of these shapes the knowledge base
        remembers whether experiments on one host disturb each other."""
        host = next(h for h in self.scheduler.hosts if h.name == self.crowd[0].hosts[0].name)
        return f"{self.crowd[0].ranks} of {len(host.devices)} {self.job.cluster.nodes[0].device}"

    def share(self, allowed: bool) -> None:
        """Sets whether later experiments may share a host. Must not be called while an experiment runs."""
        self.scheduler = Scheduler(self._hosts if allowed else alone_on(self._hosts))
        for name, failures in self._failures.items():
            if failures >= DRAINED:
                self.scheduler.lose(name)
        self.most = self._most()

    def together(self, prepare: Callable[[Profiler, Placement], None], run: Run) -> list[Measurement]:
        """Runs copies of one experiment at the same time, one on each placement of `crowd`."""
        self.share(True)
        for number, placement in enumerate(self.crowd):
            self.scheduler.restore("next", self._request, placement, self.job.launch.timeout_s, 0.0)
            self.run(-number - 1, placement, lambda profiler, at=placement: prepare(profiler, at), run)
        return [self.wait()[1] for _ in self.crowd]

    @property
    def running(self) -> list[int]:
        return sorted(self._running)

    @property
    def room(self) -> bool:
        """Whether enough devices are free for one more experiment, the smallest possible."""
        if len(self._running) >= self.most:
            return False
        found = any(self._started("look", parts) for parts in self._least)
        self.scheduler.end("look")
        return found

    def reserve(self, configuration: Configuration, before: Sequence[Configuration] = ()) -> Placement | None:
        """Reserves devices for a configuration, until `run` or `give_back` is called; None if too few are free, or if
        an experiment that has waited longer (`before`) needs devices of the same kind."""
        self.give_back()
        parts = self._parts(configuration)
        kinds = {part.kind for part in parts}
        if any(part.kind in kinds for other in before for part in self._parts(other)):
            return None
        return self.reserved if self._started("next", parts) else None

    @property
    def reserved(self) -> Placement | None:
        held = self.scheduler.running.get("next")
        return self._as_asked(held.placement) if held else None

    def give_back(self) -> None:
        self.scheduler.end("next")

    def run(self, number: int, placement: Placement, prepare: Callable[[Profiler], None], run: Run) -> None:
        """Starts an experiment on the reserved devices: calls `prepare`, and then `run` in a new thread."""
        request = self.scheduler.running["next"].request
        self.give_back()
        self.scheduler.restore(str(number), request, placement, self.job.launch.timeout_s, 0.0)
        if not self._idle:
            self._profilers.append(profiler_of(self.job))
            self._idle.append(self._profilers[-1])
        profiler = self._running[number] = self._idle.pop(0)
        prepare(profiler)

        def work() -> None:
            try:
                self._ended.put((number, run(profiler)))
            except BaseException as error:
                self._ended.put((number, error))

        threading.Thread(target=work, name=f"experiment {number}", daemon=True).start()

    def wait(self) -> tuple[int, Measurement]:
        """Blocks until the next experiment ends."""
        number, found = self._ended.get()
        self._idle.insert(0, self._running.pop(number))
        ran = self.scheduler.running.get(str(number))
        self.scheduler.end(str(number))
        if isinstance(found, BaseException):
            raise found
        if ran is not None and HOST_LOST in found.conditions:
            self._blame(ran.placement, found.evidence)
        return number, found

    def interrupt(self) -> None:
        for profiler in list(self._running.values()):
            profiler.interrupt()

    def close(self) -> None:
        """Ends running experiments, and the processes that are kept alive between experiments."""
        while self._running:
            self.interrupt()
            try:
                self.wait()
            except Exception:
                continue
        for profiler in self._profilers[1:]:
            profiler.close()

    def _most(self) -> int:
        count = 0
        while self.job.cluster.together == 0 or count < self.job.cluster.together:
            if not any(self._started(f"try {count}", parts) for parts in self._least):
                break
            count += 1
        for name in list(self.scheduler.running):
            self.scheduler.end(name)
        return count

    def _parts(self, configuration: Configuration) -> Request:
        """Devices that a configuration needs, node by node; all the job's nodes unless there are several kinds."""
        known = len(self._kinds) > 1
        nodes = used_nodes(self.job, configuration if known else Configuration({}))
        return tuple(SlotPart(node.device if node.device in self._kinds else "", node.count) for node in nodes)

    @property
    def _least(self) -> list[Request]:
        """The smallest possible requests of an experiment: one node of any kind; the whole job if it has one kind."""
        return [(part,) for part in dict.fromkeys(self._request)] if len(self._kinds) > 1 else [self._request]

    def _started(self, name: str, parts: Request) -> bool:
        """Allocates devices for an experiment, if enough are free; returns whether they were."""
        if self.scheduler.lacking(parts):
            return False
        self.scheduler.submit(name, parts, self.job.launch.timeout_s)
        started = bool(self.scheduler.start(0.0))
        self.scheduler.withdraw(name)
        return started

    def _crowd(self) -> list[Placement]:
        """The placements of as many experiments as fit on one host together; [] if only one fits."""
        found: dict[str, list[Placement]] = {}
        names = [f"try {i}" for i in range(self.most)]
        for name in names:
            if self._started(name, self._request):
                placement = self._as_asked(self.scheduler.running[name].placement)
                if len(placement.hosts) == 1:
                    found.setdefault(placement.hosts[0].name, []).append(placement)
        for name in names:
            self.scheduler.end(name)
        fullest = max(found.values(), key=len, default=[])
        return fullest if len(fullest) > 1 else []

    def _blame(self, placement: Placement, evidence: str) -> None:
        """Stops using a host that was lost DRAINED times. Errors: AutoscoutError if the remaining hosts are too few."""
        names = [host.name for host in placement.hosts]
        for name in names if len(names) == 1 else [name for name in names if name in evidence]:
            self._failures[name] += 1
            if self._failures[name] == DRAINED:
                for other in self.scheduler.lose(name):  # experiments on this host will end with an error
                    self.scheduler.withdraw(other)
                sentence = f"{name} was lost {DRAINED} times and is no longer used"
                if self.scheduler.lacking(self._request):
                    raise AutoscoutError(f"{sentence}; no experiment fits on the remaining hosts: {evidence}")
                self.on_note(sentence)

    def _as_asked(self, placement: Placement) -> Placement:
        """The placement with unknown device kinds filled in from the job's nodes, if each node has its own host."""
        if all(device.kind for host in placement.hosts for device in host.devices):
            return placement
        nodes = self.job.cluster.nodes
        kinds = [node.device for node in nodes]
        if len(nodes) != len(placement.hosts):
            kinds = [nodes[0].device if len(set(kinds)) == 1 else ""] * len(placement.hosts)
        return Placement(
            tuple(
                Host(h.name, tuple(Device(d.index, kind) for d in h.devices), h.address)
                for h, kind in zip(placement.hosts, kinds, strict=True)
            )
        )
