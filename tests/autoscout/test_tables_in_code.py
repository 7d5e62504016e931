"""Tables that the simulators' code holds: shapes of public models, and the software that an unknown trainer may run.

They are imported by the test, not by this file: so tests/tools/mutants.py knows that it reads them."""

import importlib
from typing import Any

import pytest
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

    profiles = importlib.import_module("autoscout.simulate.training.software").PROFILES
    assert sum(profile.share for profile in profiles.values()) == pytest.approx(1.0)
    early = profiles["unfused attention of 2021-22"]
    assert (early.share, early.columns) == (0.1, {"te": 0.0, "attention": "unfused", "dropout": 1.0})
    plain = {"te": 0.0, "fused_norm": 0.0, "fused_activation": 0.0, "attention": "flash2"}
    expected = []
    for a, of_layers in ((0.5, {"te": 1.0}), (0.5, plain)):
        for b, grad_bytes in ((0.4, 2.0), (0.6, 4.0)):
            for c, split in ((0.65, 1.0), (0.35, 0.0)):
                columns = {**of_layers, "grad_bytes": grad_bytes, "split_loss": split}
                expected.append((pytest.approx(0.9 * a * b * c), columns))
    assert [(p.share, p.columns) for p in profiles.values() if p is not early] == expected
