"""Records of the searches are values: fields of what a search is made of are given by name, and none can be changed.

The searches are imported by the test, not by this file: so mutants.py knows that it reads every record."""

import dataclasses
import importlib
import pkgutil

import msgspec
import pytest

KEPT = ("Prior", "Proposal", "Rows", "Theta", "_Pairs")


def test_records_are_values():
    package = importlib.import_module("autoscout.search")
    names = [m.name for m in pkgutil.walk_packages(package.__path__, "autoscout.search.")]
    found = [v for name in names for v in vars(importlib.import_module(name)).values()]
    own = {each for each in found if isinstance(each, type) and each.__module__.startswith("autoscout.search")}
    structs = [each for each in own if issubclass(each, msgspec.Struct)]
    assert {"Hyper", "Kind", "Past", "Search"} <= {each.__name__ for each in structs}
    assert all(each.__struct_config__.frozen for each in structs)
    made = {each.__name__: vars(each)["__dataclass_params__"].frozen for each in own if dataclasses.is_dataclass(each)}
    assert all(made.get(name, True) for name in KEPT)
    by_name = {f"autoscout.search.{module}" for module in ("hyper", "strategy", "earlier")}
    for kind in (each for each in structs if each.__module__ in by_name):
        with pytest.raises(TypeError, match="positional"):
            kind(*[None] * len(msgspec.structs.fields(kind)))
