"""Whatever is submitted, killed, lost or restarted: no device is given twice, none is lost, and nobody starves."""

import hypothesis.strategies as st
import pytest
from hypothesis import settings
from hypothesis.stateful import Bundle, RuleBasedStateMachine, invariant, rule

from autoscout.running.cluster.placement import Device, Host
from autoscout.running.cluster.scheduler import Scheduler, SlotPart
from kb.records import AutoscoutError

SIZES = (8, 8, 4, 2)  # uneven


def hosts(group: int = 0) -> list[Host]:
    """`group`: devices that disturb each other, in a row; 0 none."""
    return [
        Host(f"n{i}", tuple(Device(str(j), "gpu", group=str(j // group) if group else "") for j in range(size)))
        for i, size in enumerate(SIZES)
    ]


class Machine(RuleBasedStateMachine):
    names = Bundle("names")

    def __init__(self) -> None:
        super().__init__()
        self.hosts = hosts(group=2)
        self.scheduler = Scheduler(self.hosts)
        self.now = 0.0
        self.down: set[str] = set()
        self.wanted: set[str] = set()

    @rule(target=names, number=st.integers(0, 30), count=st.sampled_from([1, 2, 3, 4, 8]), limit=st.floats(1, 100))
    def submit(self, number, count, limit):
        name = f"e{number}"
        try:
            self.scheduler.submit(name, (SlotPart("gpu", count),), limit)
            self.wanted.add(name)
        except AutoscoutError:
            assert self.down
        return name

    @rule(count=st.sampled_from([2, 4]))
    def submit_over_two_hosts(self, count):
        name = f"two{count}"
        try:
            self.scheduler.submit(name, (SlotPart("gpu", count), SlotPart("gpu", count)), 10.0)
            self.wanted.add(name)
        except AutoscoutError:
            assert self.down

    @rule(seconds=st.floats(0, 50))
    def start(self, seconds):
        self.now += seconds
        for name, placement in self.scheduler.start(self.now):
            assert name in self.wanted
            assert not {host.name for host in placement.hosts} & self.down

    @rule(name=names)
    def end_or_kill(self, name):
        if name in self.scheduler.running:
            self.wanted.discard(name)
        self.scheduler.end(name)  # what does not run is left alone

    @rule(name=names)
    def withdraw(self, name):
        if name not in self.scheduler.running:
            self.wanted.discard(name)
        self.scheduler.withdraw(name)

    @rule(number=st.integers(0, len(SIZES) - 1))
    def lose(self, number):
        victims = self.scheduler.lose(f"n{number}")
        self.down.add(f"n{number}")
        assert set(victims) <= set(self.scheduler.waiting)

    @rule(number=st.integers(0, len(SIZES) - 1))
    def regain(self, number):
        self.scheduler.regain(f"n{number}")
        self.down.discard(f"n{number}")

    @rule()
    def restart(self):
        """Whoever drives it was killed: what runs is known from where it was written down."""
        new = Scheduler(self.hosts)
        for name, ran in self.scheduler.running.items():
            new.restore(name, ran.request, ran.placement, ran.limit_s, self.now)
            new.restore(name, ran.request, ran.placement, ran.limit_s, self.now)  # twice is once
        for host in self.down:
            assert new.lose(host) == []
        for name in self.scheduler.waiting:
            new.submit(name, *self.scheduler._known[name][:2]) if not new.lacking(self.scheduler._known[name][0]) else (
                self.wanted.discard(name)
            )
        self.scheduler = new

    @invariant()
    def nothing_is_leaked_or_given_twice(self):
        running = self.scheduler.running.values()
        given = [(h.name, d.index) for ran in running for h in ran.placement.hosts for d in h.devices]
        assert len(given) == len(set(given))
        groups = [group for ran in running for group in ran.groups]
        assert len(groups) == len(set(groups))
        free = self.scheduler.free
        everything = {(h.name, d.index) for h in self.hosts for d in h.devices if h.name not in self.down}
        beside = sum(sum(n for _, _, n in ran.held) for ran in running)  # with what its groups keep from others
        assert len(set(free)) == len(free)
        assert not set(free) & set(given)
        assert len(free) + beside == len(everything)
        assert {*self.scheduler.waiting, *self.scheduler.running} == self.wanted


Machine.TestCase.settings = settings(max_examples=40, stateful_step_count=40, deadline=None)
test_whatever_happens = Machine.TestCase


def one(count: int) -> tuple[SlotPart, ...]:
    return (SlotPart("gpu", count),)


def test_the_oldest_is_not_delayed_by_those_that_go_ahead_of_it():
    scheduler = Scheduler([Host("n", tuple(Device(str(i), "gpu") for i in range(8)))])
    scheduler.submit("runs", one(6), 100)
    assert [name for name, _ in scheduler.start(0)] == ["runs"]
    scheduler.submit("wide", one(8), 100)  # the oldest that waits: at 100
    scheduler.submit("long", one(2), 101)  # would make it wait until 101
    scheduler.submit("short", one(1), 99)
    assert [name for name, _ in scheduler.start(0)] == ["short"]
    scheduler.end("short")
    scheduler.end("runs")
    assert [name for name, _ in scheduler.start(50)] == ["wide"]


def test_nobody_starves_among_small_ones_that_never_end():
    scheduler = Scheduler([Host("n", tuple(Device(str(i), "gpu") for i in range(4)))])
    for i in range(4):
        scheduler.submit(f"s{i}", one(1), 10)
    scheduler.start(0)
    scheduler.submit("wide", one(4), 10)
    ends = {f"s{i}": 10.0 - i for i in range(4)}
    now, number, started_at = 0.0, 4, None
    while started_at is None and number < 200:
        name = min(ends, key=lambda each: ends[each])
        now = ends.pop(name)
        scheduler.end(name)
        scheduler.submit(f"s{number}", one(1), 10)
        number += 1
        for begun, _ in scheduler.start(now):
            ends[begun] = now + 10
            started_at = now if begun == "wide" else started_at
    assert started_at == 10.0


def test_devices_that_disturb_each_other_go_to_one_experiment():
    scheduler = Scheduler([Host("n", tuple(Device(str(i), "gpu", group=str(i // 2)) for i in range(4)))])
    for i in range(3):
        scheduler.submit(f"e{i}", one(1), 10)
    started = dict(scheduler.start(0))
    assert [p.spelled for p in started.values()] == ["n:0", "n:2"]


def test_two_of_four_devices_run_side_by_side_on_a_node_of_eight():
    scheduler = Scheduler([Host("n", tuple(Device(str(i), "gpu") for i in range(8)))])
    scheduler.submit("a", one(4), 10)
    scheduler.submit("b", one(4), 10)
    assert [p.spelled for _, p in scheduler.start(0)] == ["n:0,1,2,3", "n:4,5,6,7"]


def test_parts_are_on_hosts_of_their_own_and_more_than_a_host_has_is_whole_hosts():
    scheduler = Scheduler([Host(f"n{i}", tuple(Device(str(j), "gpu") for j in range(4))) for i in range(3)])
    scheduler.submit("two", (SlotPart("gpu", 2), SlotPart("gpu", 2)), 10)
    scheduler.submit("wide", one(8), 10)
    ((_, two),) = scheduler.start(0)
    assert [len(host.devices) for host in two.hosts] == [2, 2]
    scheduler.end("two")
    ((_, wide),) = scheduler.start(1)
    assert wide.spelled == "n0:0,1,2,3 n1:0,1,2,3"
    assert (wide.ranks, wide.first_rank(1)) == (8, 4)


def test_what_there_never_is_is_refused_in_a_sentence():
    scheduler = Scheduler([Host("n1", (Device("0", "a40"),)), Host("n2", (Device("0", "a100"),))])
    with pytest.raises(AutoscoutError, match="needs 2 a100, but there are n1: 1 a40, 0 a100; n2: 0 a40, 1 a100"):
        scheduler.submit("e", (SlotPart("a100", 2),), 10)


def test_what_ran_on_a_lost_host_comes_back_to_its_place():
    scheduler = Scheduler([Host("n1", (Device("0", "gpu"),)), Host("n2", (Device("0", "gpu"),))])
    for name in ("first", "second", "third"):
        scheduler.submit(name, one(1), 10)
    scheduler.start(0)
    assert scheduler.lose("n1") == ["first"]
    assert scheduler.waiting == ["first", "third"]
    scheduler.end("second")
    assert [(n, p.spelled) for n, p in scheduler.start(1)] == [("first", "n2:0")]


def test_devices_that_others_took_meanwhile_are_not_restored():
    scheduler = Scheduler([Host("n", (Device("0", "gpu"),))])
    scheduler.submit("a", one(1), 10)
    ((_, placement),) = scheduler.start(0)
    with pytest.raises(AutoscoutError, match="n:0 is not free"):
        scheduler.restore("b", one(1), placement, 10, 0)
