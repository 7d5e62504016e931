"""Whatever is taken, ended, lost or restored: no device is given twice, and none is lost."""

import hypothesis.strategies as st
import pytest
from hypothesis import settings
from hypothesis.stateful import Bundle, RuleBasedStateMachine, invariant, rule

from autoscout.running.cluster.device_pool import DevicePool, SlotPart
from autoscout.running.cluster.placement import Device, Host, Placement
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
        self.pool = DevicePool(self.hosts)
        self.down: set[str] = set()

    def _take(self, name: str, *parts: SlotPart) -> None:
        if name not in self.pool.running:
            placement = self.pool.take(name, parts)
            assert placement is None or not {host.name for host in placement.hosts} & self.down

    @rule(target=names, number=st.integers(0, 30), count=st.sampled_from([1, 2, 3, 4, 8]))
    def take(self, number, count):
        self._take(f"e{number}", SlotPart("gpu", count))
        return f"e{number}"

    @rule(count=st.sampled_from([2, 4]))
    def take_on_two_hosts(self, count):
        self._take(f"two{count}", SlotPart("gpu", count), SlotPart("gpu", count))

    @rule(name=names)
    def end_or_kill(self, name):
        self.pool.end(name)  # what does not run is left alone
        assert name not in self.pool.running

    @rule(number=st.integers(0, len(SIZES) - 1))
    def lose(self, number):
        self.pool.lose(f"n{number}")
        self.down.add(f"n{number}")

    @rule()
    def restart(self):
        """Whoever drives it was killed: what runs is known from where it was written down."""
        new = DevicePool(self.hosts)
        for name, ran in self.pool.running.items():
            new.restore(name, ran.request, ran.placement)
            new.restore(name, ran.request, ran.placement)  # twice is once
        for host in self.down:
            new.lose(host)
        assert new.running.keys() == self.pool.running.keys()
        self.pool = new

    @invariant()
    def nothing_is_leaked_or_given_twice(self):
        running = self.pool.running.values()
        given = [(h.name, d.index) for ran in running for h in ran.placement.hosts for d in h.devices]
        assert len(given) == len(set(given))
        groups = [group for ran in running for group in ran.groups]
        assert len(groups) == len(set(groups))
        free = self.pool.free
        everything = {(h.name, d.index) for h in self.hosts for d in h.devices if h.name not in self.down}
        beside = sum(sum(n for _, _, n in ran.held) for ran in running)  # with what its groups keep from others
        assert len(set(free)) == len(free)
        assert not set(free) & set(given)
        assert len(free) + beside == len(everything)


Machine.TestCase.settings = settings(max_examples=40, stateful_step_count=40, deadline=None)
test_whatever_happens = Machine.TestCase


def one(count: int) -> tuple[SlotPart, ...]:
    return (SlotPart("gpu", count),)


def spelled(placement: Placement | None) -> str:
    return placement.spelled if placement else ""


def test_devices_that_disturb_each_other_go_to_one_experiment():
    pool = DevicePool([Host("n", tuple(Device(str(i), "gpu", group=str(i // 2)) for i in range(4)))])
    assert [spelled(pool.take(f"e{i}", one(1))) for i in range(3)] == ["n:0", "n:2", ""]


def test_two_of_four_devices_run_side_by_side_on_a_node_of_eight():
    pool = DevicePool([Host("n", tuple(Device(str(i), "gpu") for i in range(8)))])
    assert [spelled(pool.take(name, one(4))) for name in "ab"] == ["n:0,1,2,3", "n:4,5,6,7"]


def test_parts_are_on_hosts_of_their_own_and_more_than_a_host_has_is_whole_hosts():
    pool = DevicePool([Host(f"n{i}", tuple(Device(str(j), "gpu") for j in range(4))) for i in range(3)])
    two = pool.take("two", (SlotPart("gpu", 2), SlotPart("gpu", 2)))
    assert two is not None
    assert [len(host.devices) for host in two.hosts] == [2, 2]
    assert pool.take("wide", one(8)) is None
    pool.end("two")
    wide = pool.take("wide", one(8))
    assert wide is not None
    assert wide.spelled == "n0:0,1,2,3 n1:0,1,2,3"
    assert (wide.ranks, wide.first_rank(1)) == (8, 4)


def test_what_there_never_is_is_named_in_a_sentence():
    pool = DevicePool([Host("n1", (Device("0", "a40"),)), Host("n2", (Device("0", "a100"),))])
    assert "needs 2 a100, but there are n1: 1 a40, 0 a100; n2: 0 a40, 1 a100" in pool.lacking((SlotPart("a100", 2),))


def test_a_lost_host_is_not_given_again():
    pool = DevicePool([Host("n1", (Device("0", "gpu"),)), Host("n2", (Device("0", "gpu"),))])
    assert [spelled(pool.take(name, one(1))) for name in ("first", "second", "third")] == ["n1:0", "n2:0", ""]
    pool.lose("n1")
    assert [*pool.running] == ["second"]
    assert pool.take("first", one(1)) is None
    pool.end("second")
    assert spelled(pool.take("first", one(1))) == "n2:0"


def test_devices_that_others_took_meanwhile_are_not_restored():
    pool = DevicePool([Host("n", (Device("0", "gpu"),))])
    placement = pool.take("a", one(1))
    assert placement is not None
    with pytest.raises(AutoscoutError, match="n:0 is not free"):
        pool.restore("b", one(1), placement)
