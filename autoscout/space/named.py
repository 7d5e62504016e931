"""A configuration from its short name, such as pp2_dp2_distopt_mbs8: the inverse of `Space.name`."""

from collections.abc import Iterator, Sequence

from autoscout.space.codes import name_of
from autoscout.space.graph import Space
from autoscout.space.knob import Knob
from kb.records import Configuration, Value


def named(space: Space, name: str) -> Configuration | None:
    """The valid configuration whose name this is; None if there is none. Knobs that the name leaves out are as in a
    plain run."""
    plain = {knob.name: knob.off for knob in space.knobs if knob.off is not None and knob.off in knob.values}
    for said in _readings(name, space.knobs):
        found = space.nearest({**plain, **said}, given={**plain, **said}, firm=said)
        if found is not None and space.name(found) == name:
            return found
    return None


def _readings(name: str, knobs: Sequence[Knob]) -> Iterator[dict[str, Value]]:
    """Every way to read a name as knobs in their order: names and values may themselves contain "_" and digits."""
    if not name:
        yield {}
        return
    for i, knob in enumerate(knobs):
        for value in knob.values:
            part = name_of(knob.name, value)
            if name == part or name.startswith(f"{part}_"):
                for rest in _readings(name[len(part) + 1 :], knobs[i + 1 :]):
                    yield {knob.name: value, **rest}
