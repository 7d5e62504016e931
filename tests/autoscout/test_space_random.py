"""Properties that hold in any space, on random ones: random knobs, conditions, implications and rules."""

import itertools

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from random_spaces import random_spaces, raw_spaces, verdict
from scipy.stats import chisquare

from autoscout.search.strategy import strategy
from autoscout.space.compiled import build, entangled
from autoscout.space.compiled.constraints import Columns, constraints
from autoscout.space.compiled.feasible import structures_of, table_of
from autoscout.space.graph import Space
from kb.records import AutoscoutError, Configuration, Measurement

QUICK = [HealthCheck.too_slow, HealthCheck.filter_too_much, HealthCheck.data_too_large]
examples = settings(suppress_health_check=QUICK)
ATTRIBUTES = {"total": 2}


@given(raw_spaces())
@settings(suppress_health_check=QUICK)
def test_a_space_is_what_evaluating_every_assignment_one_by_one_says(raw):
    """Exactly the valid ones; exit 3 if there are none; exit 2 if an expression has no value where all else holds."""
    knobs, rules = raw
    expected = verdict(knobs, rules, ATTRIBUTES)
    if isinstance(expected, int):
        with pytest.raises(AutoscoutError) as refused:
            Space(knobs, rules, ATTRIBUTES)
        assert refused.value.exit_code == expected
        return
    space = Space(knobs, rules, ATTRIBUTES)
    listed = [c.id for c in space.configurations()]
    assert set(listed) == expected
    assert len(listed) == len(expected) == space.count == len(space.feasible)


@given(random_spaces())
@examples
def test_an_assignment_is_valid_exactly_if_no_reason_against_it_is_found(space):
    choices = [[*((k.name, v) for v in k.values), (k.name, None)] for k in space.knobs]
    for combination in itertools.islice(itertools.product(*choices), 400):
        assigned = Configuration({n: v for n, v in combination if v is not None})
        assert space.is_valid(assigned) == (not space.violations(assigned))


@given(random_spaces(), st.randoms())
@examples
def test_any_order_and_states_that_remember_parts_give_the_same_table(space, random):
    order = list(range(len(space.knobs)))
    random.shuffle(order)
    order.sort(key=lambda i: space.knobs[i].kind == "dense")
    for parts in (False, True):
        coupled, columns = constraints(space.knobs, space.rules), Columns(space.knobs, space.attributes)
        diagram = build.in_order(order, space.knobs, coupled, columns, parts=parts)
        assert diagram is not None
        table = table_of(diagram, space.knobs, *structures_of(diagram, space.knobs))
        assert np.array_equal(table, space.feasible.codes)


@given(random_spaces())
@examples
def test_a_space_and_the_table_of_its_configurations_are_the_same_space(space):
    names = {kind: [k.name for k in space.knobs if k.kind == kind] for kind in ("sparse", "dense")}
    rows = [c.knobs for c in space.configurations()]
    acting = {name for row in rows for name in row}
    sparse, dense = ([n for n in names[kind] if n in acting] for kind in ("sparse", "dense"))
    table = Space.from_table(rows + rows[:3], sparse, dense)
    assert {c.id for c in table.configurations()} == {c.id for c in space.configurations()}
    for i in range(0, len(space.structures), 3):
        s = space.structure(i)
        assert table.mask(s) == space.mask(s)


@given(random_spaces())
@examples
def test_rows_and_configurations_find_each_other(space):
    for i in range(len(space.feasible)):
        configuration = space.feasible.configuration(i)
        assert space.feasible.index(configuration) == i
        assert space.is_valid(configuration)
        s, x = space.split(configuration)
        row = space.row(s)
        assert row is not None
        assert space.structure(row) == s
        assert space.project(s, x) == x
        assert space.configuration(s, x) == configuration
        assert all(x[name] in values for name, values in space.mask(s).items() if name in x)


@given(random_spaces(), st.data())
@examples
def test_domains_and_activity_under_a_partial_assignment_are_those_of_the_rows_that_agree(space, data):
    chosen = data.draw(st.sets(st.sampled_from([k.name for k in space.knobs]), max_size=2))
    partial = {n: data.draw(st.sampled_from([*space.knob[n].values, None])) for n in chosen}
    agreeing = [
        c.knobs
        for c in space.configurations()
        if all(type(c.knobs.get(n)) is type(v) and c.knobs.get(n) == v for n, v in partial.items())
    ]
    acts = space.active(partial)
    for knob in space.knobs:
        taken = {(type(k[knob.name]), k[knob.name]) for k in agreeing if knob.name in k}
        assert {(type(v), v) for v in space.domain(knob.name, partial)} == taken
        share = {knob.name in k for k in agreeing} or {False}
        assert acts[knob.name] == (None if len(share) == 2 else share.pop())


@given(random_spaces(), st.data())
@examples
def test_the_nearest_is_at_least_as_near_as_any_other(space, data):
    wanted = {k.name: data.draw(st.sampled_from(k.values)) for k in space.knobs}
    firm_name = data.draw(st.sampled_from([k.name for k in space.knobs]))
    found = space.nearest(wanted, firm={firm_name: wanted[firm_name]})

    def changed(c):  # structure first: how many sparse choices differ, for spaces of names and switches
        return sum(c.knobs.get(k.name) != wanted[k.name] for k in space.sparse)

    agreeing = [
        c
        for c in space.configurations()
        if c.knobs.get(firm_name, space.knob[firm_name].off) == wanted[firm_name]
        and isinstance(c.knobs.get(firm_name, space.knob[firm_name].off), bool) == isinstance(wanted[firm_name], bool)
    ]
    if found is None:
        assert not agreeing
    else:
        assert space.is_valid(found)
        if any(changed(c) == 0 for c in agreeing):
            assert changed(found) == 0
    exact = space.feasible.configuration(0)
    assert space.nearest(exact.knobs) == exact


@given(random_spaces())
@examples
def test_neighbours_are_valid_different_and_one_move_away(space):
    for configuration in list(space.configurations())[:5]:
        near = space.neighbours(configuration)
        assert len({c.id for c in near} | {configuration.id}) == len(near) + 1
        assert all(space.is_valid(c) for c in near)
        if space.count > 1:
            assert near


@given(random_spaces(), st.data())
@examples
def test_the_canonical_form_is_idempotent_and_leaves_what_is_valid_alone(space, data):
    for configuration in space.configurations():
        assert space.canonical(configuration.knobs) == configuration
    anything = {k.name: data.draw(st.sampled_from(k.values)) for k in space.knobs}
    canonical = space.canonical(anything)
    assert space.canonical(canonical.knobs) == canonical
    assert not any(v.rule == "inactive" for v in space.violations(canonical))


@given(random_spaces(), st.randoms())
@examples
def test_orderings_put_every_knob_after_those_that_decide_it(space, random):
    rng = np.random.default_rng(random.randrange(2**32))
    for ordering in (space.ordering(), space.ordering(rng)):
        assert sorted(ordering) == sorted(k.name for k in space.sparse)
        for a, b, kind in space.graph.edges(data="kind"):
            if kind != "narrows" and b in ordering:
                assert ordering.index(a) < ordering.index(b)


@given(random_spaces())
@settings(suppress_health_check=QUICK)
def test_samples_are_uniform(space):
    if not 2 <= space.count <= 60:
        return
    rng = np.random.default_rng(0)
    n = 60 * space.count
    many = [space.feasible.index(space.of_codes(row)) for row in space.sample_many(n, rng).tolist()]
    single = [space.feasible.index(space.sample(rng)) for _ in range(n)]
    for rows in (many, single):
        assert None not in rows
        counts = np.bincount(np.array(rows, dtype=int), minlength=space.count)
        assert chisquare(counts).pvalue > 1e-6


@given(random_spaces())
@settings(suppress_health_check=QUICK)
def test_rules_that_are_left_out_of_the_diagram_are_obeyed_by_the_sample(space):
    """What a space too entangled for a diagram is made of: the same configurations, counted exactly where few."""
    coupled, columns = constraints(space.knobs, space.rules), Columns(space.knobs, space.attributes)
    rules = [c for c in coupled if c.rule is not None]
    diagram = build.from_constraints(space.knobs, [c for c in coupled if c.rule is None], columns)
    assert diagram is not None
    found = entangled.sampled_from(diagram, rules, space.knobs, columns)
    assert (found.exact, found.total) == (True, space.count)
    assert np.array_equal(found.codes, space.feasible.codes)


@pytest.mark.parametrize("name", ["autoscout", "paper", "random"])
@given(random_spaces(), st.integers(0, 100))
@settings(suppress_health_check=QUICK)
def test_no_strategy_proposes_what_is_infeasible_or_the_same_twice_in_a_batch(name, space, seed):
    default = space.feasible.configuration(0)
    chosen = strategy(name, space, seed=seed, default=default)
    cost = np.random.default_rng(seed).random(space.count)
    measured: dict[str, Measurement] = {}
    for _ in range(200):
        batch = chosen.ask()
        if not batch or len(measured) >= 30:
            break
        assert len({c.id for c in batch}) == len(batch)
        for c in batch:
            row = space.feasible.index(c)
            assert row is not None
            measured[c.id] = Measurement(  # what a grid needs again is answered, not run
                configuration=c, name=space.name(c), context="", status="ok", metrics={"step_time_s": cost[row]}
            )
        chosen.tell([measured[c.id] for c in batch])
    assert len(measured) >= min(space.count, 10)
