"""Spaces whose rules couple too many knobs for a diagram. They are represented by a uniform sample of their valid
configurations.

The rules with the most knobs are omitted until a diagram of the remaining rules is small enough. Configurations are
drawn uniformly from this diagram. Those that also satisfy the omitted rules are a uniform sample of the valid
configurations, and their fraction gives an estimate of the number of valid configurations. If the diagram is small
enough to list, all its configurations are tested, and the number is exact."""

from typing import NamedTuple

import numpy as np

from autoscout.space.compiled import build
from autoscout.space.compiled.constraints import Columns, Constraint
from autoscout.space.compiled.diagram import Diagram
from autoscout.space.compiled.feasible import structures_of, table_of
from autoscout.space.compiled.merge import from_rows
from autoscout.space.compiled.packing import packed
from autoscout.space.knob import Knob
from kb.records import AutoscoutError

_MOST_LISTED = 3_000_000  # a diagram with up to this many configurations is listed completely, not sampled
_SAMPLE = 100_000  # number of configurations in the sample
_DRAWS = 4_000_000  # maximum number of draws for the sample
_BATCH = 200_000


class Sampled(NamedTuple):
    codes: np.ndarray  # (n, knobs), all rows different
    total: int  # number of valid configurations, or its estimate
    exact: bool


def diagram_of(knobs: list[Knob], constraints: list[Constraint], columns: Columns) -> tuple[Diagram | None, int | None]:
    """Returns (diagram, estimated number of valid configurations). The diagram is None if no configuration is valid.
    The number is None unless the diagram has only a sample of the valid configurations."""
    try:
        return build.from_constraints(knobs, constraints, columns), None
    except build.TooWide:
        codes, count, exact = sampled(knobs, constraints, columns)
        return from_rows(codes, knobs), None if exact else count


def sampled(knobs: list[Knob], constraints: list[Constraint], columns: Columns) -> Sampled:
    """Returns all valid configurations, or a random sample if there are many. Errors: AutoscoutError if no draw is
    valid."""
    return sampled_from(*_relaxed(knobs, constraints, columns), knobs, columns)


def sampled_from(diagram: Diagram, left_out: list[Constraint], knobs: list[Knob], columns: Columns) -> Sampled:
    """Returns the diagram's configurations (or a sample) that satisfy `left_out`, the constraints omitted from it."""
    if diagram.count <= _MOST_LISTED:
        codes = table_of(diagram, knobs, *structures_of(diagram, knobs))
        codes = codes[_valid(codes, left_out, knobs, columns)]
        return Sampled(codes, len(codes), True)
    rng = np.random.default_rng(0)
    kept: list[np.ndarray] = []
    drawn = passed = 0
    while drawn < _DRAWS and passed < _SAMPLE:
        codes = diagram.sample(_BATCH, rng)
        valid = codes[_valid(codes, left_out, knobs, columns)]
        drawn, passed = drawn + len(codes), passed + len(valid)
        kept.append(valid)
    if not passed:
        texts = "; ".join(c.text for c in left_out)
        raise AutoscoutError(
            f"none of {drawn:,} random configurations obeys these rules: {texts}; the rules couple too many knobs "
            "for an exact search; replace them by implied knobs, or reduce values with [space] limit",
            3,
        )
    codes = np.concatenate(kept)
    key = packed(codes, [len(knob.values) + 1 for knob in knobs])[0]
    return Sampled(codes[np.unique(key, return_index=True)[1]], round(diagram.count * passed / drawn), False)


def _relaxed(knobs: list[Knob], constraints: list[Constraint], columns: Columns) -> tuple[Diagram, list[Constraint]]:
    """Returns (a diagram of as many constraints as possible, the omitted constraints)."""
    kept = list(constraints)
    by_width = sorted((c for c in constraints if c.rule is not None), key=lambda c: -len(c.names))
    for i, widest in enumerate(by_width):
        kept.remove(widest)
        try:
            diagram = build.from_constraints(knobs, kept, columns)
        except build.TooWide:
            continue
        if diagram is not None:
            return diagram, by_width[: i + 1]
        break
    raise AutoscoutError(
        "the knobs' conditions couple too many knobs for an exact search; reduce values with [space] limit", 1
    )


def _valid(codes: np.ndarray, rules: list[Constraint], knobs: list[Knob], columns: Columns) -> np.ndarray:
    """Returns whether each row satisfies the rules, (n,). A rule that is undefined on a row counts as broken."""
    place = {knob.name: i for i, knob in enumerate(knobs)}
    valid = np.ones(len(codes), dtype=bool)
    for rule in rules:
        holds, undefined = columns.test(rule, {n: codes[:, place[n]] for n in rule.names}, len(codes), {})
        valid &= holds & ~undefined
    return valid
