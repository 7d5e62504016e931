"""Spaces that cannot be listed answer every question all the same."""

import math

import msgspec
import numpy as np
import pytest
from landscape import job_of

from autoscout.search.strategy import strategy
from autoscout.space.compiled import build
from autoscout.space.compiled.constraints import Columns, constraints
from autoscout.space.graph import Space
from autoscout.space.knob import Knob, Rule
from autoscout.space.language.expression import Expression
from autoscout.targets.jobs import JobSpace
from kb.records import AutoscoutError, Cluster, Measurement, Node, Traffic

RNG = np.random.default_rng(0)


def knob(name, values, sparse=False):
    kind = "sparse" if sparse else "dense"
    return Knob(name=name, kind=kind, layer="l", values=tuple(values), meaning="", sets="", off=0)


def rule(name, holds):
    return Rule(id=name, holds=Expression(holds), reason=f"{holds} must hold", source="", checked="ours")


@pytest.fixture(scope="module")
def sums() -> Space:
    """Thirty digits with a sum of at most 100: a rule that couples everything."""
    names = [f"d{i}" for i in range(30)]
    knobs = [knob(name, range(10), sparse=i < 15) for i, name in enumerate(names)]
    return Space(knobs, [rule("sum", " + ".join(names) + " <= 100")], {})


def test_thirty_knobs_under_one_sum_are_counted_exactly(sums):
    ways = [1]  # with so many digits, by their sum
    for _ in range(30):
        ways = [sum(ways[s - d] for d in range(10) if 0 <= s - d < len(ways)) for s in range(len(ways) + 9)]
    assert sums.count == sum(ways[:101]) > 10**28
    assert sums.count_is_exact
    assert not sums.enumerable


def test_they_are_sampled_masked_and_projected(sums):
    for row in sums.sample_many(50, RNG).tolist():
        assert sum(row) <= 100
        c = sums.of_codes(row)
        assert sums.is_valid(c)
        s, x = sums.split(c)
        assert sums.configuration(s, x) == c
        full = sums.project(s, dict.fromkeys(x, 9))
        assert sum(map(int, full.values())) == min(100 - sum(map(int, s.values())), 9 * 15)
    assert sum(map(int, sums.sample(RNG).knobs.values())) <= 100
    assert sums.domain("d3", {f"d{i}": 9 for i in range(10, 20)} | {"d0": 8}) == (0, 1, 2)


def test_the_nearest_of_them_changes_as_little_as_it_can(sums):
    wanted = {f"d{i}": 4 for i in range(30)}
    found = sums.nearest(wanted)
    assert found is not None
    assert sum(map(int, found.knobs.values())) == 100
    other = sums.nearest(wanted, firm={"d0": 9})
    assert other is not None
    assert other.knobs["d0"] == 9
    assert sums.nearest({"d29": 9}, firm={f"d{i}": 9 for i in range(12)}) is None


def test_what_cannot_be_listed_says_so_and_what_to_do_instead(sums):
    for listing in ("feasible", "structures"):
        with pytest.raises(AutoscoutError, match="too many to list"):
            getattr(sums, listing)


@pytest.mark.parametrize("name", ["autoscout", "paper", "random"])
def test_strategies_that_need_every_row_search_a_sample(sums, name):
    default = sums.nearest({})
    space = sums.sampled(2_000, RNG, including=[default])
    assert space.is_valid(default)
    assert 1_900 < len(space.feasible) <= 2_001
    assert space.count == sums.count
    assert not space.count_is_exact
    assert [v.rule for v in space.violations(sums.sample(RNG))] == ["sample"]
    chosen = strategy(name, space, default=default)
    for _ in range(10):
        batch = chosen.ask()
        assert batch
        assert all(not sums.violations(c) for c in batch)
        chosen.tell(
            [
                Measurement(
                    configuration=c,
                    name="",
                    context="",
                    status="ok",
                    metrics={"step_time_s": 1.0 + sum(map(int, c.knobs.values()))},
                )
                for c in batch
            ]
        )


def test_independent_groups_multiply():
    knobs = [knob(f"{group}{i}", range(8)) for group in "abcdef" for i in range(4)]
    rules = [rule(group, " + ".join(f"{group}{i}" for i in range(4)) + " == 14") for group in "abcdef"]
    one = Space(knobs[:4], rules[:1], {}).count
    assert Space(knobs, rules, {}).count == one**6


def test_a_thousand_gpus():
    job = job_of("qwen3-30b-a3b")
    job = msgspec.structs.replace(
        job,
        cluster=Cluster(nodes=[Node(device="a100", count=1024)]),
        traffic=Traffic(seq_len=4096, global_batch=2048),
        launch=msgspec.structs.replace(job.launch, transformer_engine=True),
    )
    space = JobSpace.of_job(job)
    assert space.count > 10**8
    assert space.count_is_exact
    for row in space.sample_many(200, RNG).tolist():
        c = space.of_codes(row)
        assert not space.violations(c)
        assert math.prod(int(c.knobs[n]) for n in ("pp", "tp", "cp", "dp")) == 1024
        for near in space.neighbours(c)[:10]:
            assert not space.violations(near)


def test_rules_too_entangled_for_any_diagram_leave_a_uniform_sample(monkeypatch):
    monkeypatch.setattr(build, "_MOST_STATES", (300,))
    names = [f"k{i}" for i in range(9)]
    rules = [rule(f"r{i}", f"(k{i} * k{(i + 4) % 9} + k{(i + 7) % 9}) % 5 != 3") for i in range(9)]
    knobs = [knob(name, range(7)) for name in names]
    space = Space(knobs, rules, {})
    assert not space.count_is_exact
    assert len(space.feasible) > 50_000
    codes = space.feasible.codes.astype(int)
    assert all(((codes[:, i] * codes[:, (i + 4) % 9] + codes[:, (i + 7) % 9]) % 5 != 3).all() for i in range(9))
    monkeypatch.undo()
    truth = Space(knobs, rules, {})
    assert truth.count_is_exact
    assert space.count == pytest.approx(truth.count, rel=0.05)
    outside = next(c for row in truth.sample_many(500, RNG).tolist() if not space.is_valid(c := truth.of_codes(row)))
    assert [v.rule for v in space.violations(outside)] == ["sample"]


def test_states_that_remember_parts_are_fewer():
    knobs = [knob(f"k{i}", [2**j for j in range(6)]) for i in range(8)]
    coupled = constraints(knobs, [rule("product", " * ".join(k.name for k in knobs) + " <= 4096")])
    columns = Columns(knobs, {})
    with pytest.raises(build.TooWide):
        build.in_order(list(range(8)), knobs, coupled, columns, most_states=50)
    diagram = build.in_order(list(range(8)), knobs, coupled, columns, most_states=50, parts=True)
    assert diagram is not None
    ways = np.ones(1, dtype=object)
    for _ in range(8):
        ways = np.convolve(ways, np.ones(6, dtype=object))
    assert diagram.count == sum(ways[:13])
