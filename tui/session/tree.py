"""The tree of evaluated configurations, which branches on knobs in the order that won the tournament."""

import msgspec

from tui.session.state import BESIDE, Run, State
from tui.text import knob_value


class RunNode(msgspec.Struct, kw_only=True):
    """A node: all runs with the knob values on its path ("pp 2", "tp 1", …). `best`, `mean`: of the objective."""

    path: tuple[str, ...]
    visits: int = 0
    failed: int = 0
    best: float | None = None
    mean: float | None = None
    holds_best: bool = False
    children: list["RunNode"] = msgspec.field(default_factory=list)


def grow(state: State) -> RunNode:
    """Builds the tree. A knob with the same value in all runs is left out."""
    runs = [r for r in state.runs if r.measurement is not None and r.purpose not in BESIDE]
    order = _ordering(state, runs)
    varying = [k for k in order if len({str(r.configuration.knobs.get(k)) for r in runs}) > 1]
    return _node(state, (), runs, varying)


def _ordering(state: State, runs: list[Run]) -> list[str]:
    if state.rounds:
        last = state.rounds[-1]
        return last.orderings[last.kept[0]]
    return list(dict.fromkeys(name for run in runs for name in run.configuration.knobs))


def _node(state: State, path: tuple[str, ...], runs: list[Run], order: list[str]) -> RunNode:
    minimized = state.job is None or bool(state.job.objective.minimize)
    values = [r.value for r in runs if r.value is not None]
    best = (min(values) if minimized else max(values)) if values else None
    top = state.best.value if state.best else None
    node = RunNode(
        path=path,
        visits=len(runs),
        failed=sum(r.value is None for r in runs),
        best=best,
        mean=sum(values) / len(values) if values else None,
        holds_best=best is not None and best == top,
    )
    for i, knob in enumerate(order):
        groups: dict[str, list[Run]] = {}
        for run in runs:
            groups.setdefault(_shown(run, knob), []).append(run)
        if len(groups) > 1:
            children = [_node(state, (*path, f"{knob} {v}"), group, order[i + 1 :]) for v, group in groups.items()]
            node.children = sorted(children, key=lambda n: -n.visits)
            break
    return node


def _shown(run: Run, knob: str) -> str:
    value = run.configuration.knobs.get(knob)
    return "inactive" if value is None else knob_value(value)
