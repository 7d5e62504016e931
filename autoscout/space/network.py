"""Prepares the knobs of a space: applies the job's limits, orders knobs by dependency, and builds their graph."""

import graphlib
import heapq
import math
from collections.abc import Collection, Iterable, Mapping
from typing import TYPE_CHECKING

import msgspec
import numpy as np

from autoscout.job.words import listed, nearest_name
from autoscout.space.knob import Knob, Rule
from kb.records import AutoscoutError, SpaceLimits, Value

if TYPE_CHECKING:
    import networkx as nx

_MOST_VALUES = 2**15 - 1  # codes are stored in 16 bits


def limited(knob: Knob, limits: SpaceLimits) -> Knob:
    """Returns the knob with the job's limits applied. Errors: AutoscoutError (exit 2) if no value is left, or for a
    limit outside the domain."""
    if not knob.values:
        raise AutoscoutError(f"the knob {knob.name} has no possible value in this job; correct its `values`", 2)
    if len(knob.values) > _MOST_VALUES:
        count = f"{len(knob.values):,} values, more than {_MOST_VALUES:,}"
        raise AutoscoutError(f"the knob {knob.name} has {count}; give it fewer values", 2)
    wanted = list(limits.limit.get(knob.name, knob.values))
    if knob.name in limits.fix:
        wanted = [limits.fix[knob.name]]
    domain = {key(v) for v in knob.values}
    if knob.name in limits.fix and key(limits.fix[knob.name]) not in {
        key(v) for v in limits.limit.get(knob.name, wanted)
    }:
        raise AutoscoutError(
            f"[space] fixes {knob.name} = {limits.fix[knob.name]}, but limits it to "
            f"{listed(limits.limit[knob.name])}; correct the fixed value or the limit",
            2,
        )
    for value in wanted:
        if key(value) not in domain:
            raise AutoscoutError(
                f"[space] wants {knob.name} = {value}, but in this job {knob.name} is one of {listed(knob.values)}",
                2,
            )
    if not wanted:
        raise AutoscoutError(f"[space] excludes all values of {knob.name}; keep some of {listed(knob.values)}", 2)
    kept = {key(v) for v in wanted}
    return msgspec.structs.replace(knob, values=tuple(v for v in knob.values if key(v) in kept))


def ordered(knobs: list[Knob], limits: SpaceLimits) -> list[Knob]:
    """Returns the knobs in topological order of the activation graph, and otherwise in declared order. Errors:
    AutoscoutError (exit 2) for limits of unknown knobs, and for knobs that activate each other."""
    place = {knob.name: i for i, knob in enumerate(knobs)}
    for name in [*limits.fix, *limits.limit, *limits.allow]:
        if name not in place:
            raise AutoscoutError(f"[space]: '{name}'{nearest_name(name, place)}", 2)
    try:
        order = _by_rank(conditions(knobs), place)
    except graphlib.CycleError as error:
        circle = " → ".join(error.args[1][:-1])  # graphlib's cycle ends with its first name again
        raise AutoscoutError(
            f"the conditions of these knobs form a cycle: {circle}; remove one of the conditions", 2
        ) from error
    return [knobs[place[name]] for name in order]


def conditions(knobs: list[Knob]) -> dict[str, set[str]]:
    """Returns for each knob the knobs that activate or imply it."""
    names = {knob.name for knob in knobs}
    of = {knob.name: [e for e in (knob.when, knob.implied) if e is not None] for knob in knobs}
    return {name: {other for e in expressions for other in e.names} & names for name, expressions in of.items()}


def _by_rank(before: Mapping[str, Iterable[str]], rank: Mapping[str, float]) -> list[str]:
    """Returns the names, each after the names in `before[name]`; otherwise by rank, then by position. Errors:
    graphlib.CycleError."""
    place = {name: i for i, name in enumerate(before)}
    sorter = graphlib.TopologicalSorter(before)
    sorter.prepare()
    order: list[str] = []
    ready: list[tuple[float, int, str]] = []
    while sorter.is_active():
        for name in sorter.get_ready():
            heapq.heappush(ready, (rank[name], place[name], name))
        order.append(heapq.heappop(ready)[2])
        sorter.done(order[-1])
    return order


def check_names(knobs: list[Knob], rules: list[Rule], attributes: Collection[str]) -> None:
    """Checks the names in conditions and rules. Errors: AutoscoutError (exit 2) for a condition on a dense knob, and
    for a name that is neither a knob nor an attribute (the message has the most similar name)."""
    kinds = {knob.name: knob.kind for knob in knobs}
    known = {*kinds, *attributes}
    for owner, expression in [
        *((k.name, e) for k in knobs for e in (k.when, k.implied) if e is not None),
        *((r.id, r.holds) for r in rules),
    ]:
        for name in expression.names:
            if kinds.get(name) == "dense" and owner in kinds:
                raise AutoscoutError(
                    f"{owner} depends on '{name}', which is a dense knob, but only sparse knobs can activate other "
                    f"knobs; declare '{name}' with kind = \"sparse\"",
                    2,
                )
            if name not in known:
                raise AutoscoutError(f"{owner}: '{expression.text}': '{name}'{nearest_name(name, known)}", 2)


def network(knobs: list[Knob], rules: list[Rule]) -> "nx.DiGraph":
    """Returns the dependency graph of the knobs. Kinds of edges: `activates` and `implies` (conditions), and `narrows`
    (from each knob of a rule to the rule's last knob)."""
    import networkx as nx  # imported late: it takes a quarter of a command's start-up time, and few commands need it

    position = {knob.name: i for i, knob in enumerate(knobs)}
    graph = nx.DiGraph()
    for knob in knobs:
        graph.add_node(knob.name, kind=knob.kind, layer=knob.layer)
    for rule in rules:
        touched = sorted((n for n in rule.holds.names if n in position), key=position.__getitem__)
        for name in touched[:-1]:
            graph.add_edge(name, touched[-1], kind="narrows", rule=rule.id)
    for knob in knobs:
        for kind, expression in (("implies", knob.implied), ("activates", knob.when)):
            for name in expression.names if expression else ():
                if name in position:
                    graph.add_edge(name, knob.name, kind=kind, rule=expression.text if expression else "")
    return graph


def topological(before: Mapping[str, set[str]], names: list[str], rng: np.random.Generator | None) -> list[str]:
    """Returns `names`, each after the names in `before[name]`, and otherwise in the given or a random order."""
    rank = {name: float(i) for i, name in enumerate(names)}
    if rng is not None:
        rank = dict(zip(names, rng.random(len(names)).tolist(), strict=True))
    return _by_rank({name: before[name] & rank.keys() for name in names}, rank)


def distance(a: Value, b: Value) -> float:
    """Returns the distance between two values of a knob: |log₂| of their ratio for positive numbers; else 1 if they
    differ, 0 if not."""
    if key(a) == key(b):
        return 0.0
    if isinstance(a, bool | str) or isinstance(b, bool | str) or a <= 0 or b <= 0:
        return 1.0
    return abs(math.log2(a / b))


def key(value: Value) -> tuple[str, Value]:
    """Returns a key for dictionaries that distinguishes True from 1, which are equal in Python."""
    return ("bool" if isinstance(value, bool) else "", value)
