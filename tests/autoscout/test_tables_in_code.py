"""Tables that the simulators' code holds: shapes of public models.

They are imported by the test, not by this file: so tests/tools/mutants.py knows that it reads them."""

import importlib
from typing import Any

from frozen_values import hold, kept


def test_tables_are_what_they_were():
    shapes = importlib.import_module("autoscout.simulate.validation.shapes")
    # Every number of each model, weighted by its place.
    of_all: dict[str, Any] = {name: shapes.shape_of(name) for name in shapes.SHAPES | shapes.MIXTURES}
    found = {name: kept(sum(i * v for i, v in enumerate(shape.values(), 1))) for name, shape in of_all.items()}
    hold("tables/shapes", found, rel=1e-9)
    for name, shape in of_all.items():
        assert shape["heads"] % shape["kv_heads"] == 0, name
        assert shape["hidden"] % 64 == 0, name
