"""Records of the simulators are values: their fields are given by name and cannot be changed, files with unknown names
are refused, and what a trace did not tell is not written and reads as nothing.

The simulators are imported by the test, not by this file: so mutants.py knows that it reads every record."""

import dataclasses
import importlib
import pkgutil
from typing import Any

import msgspec
import pytest

BY_NAME = {
    "hardware.device": ["Hardware"],
    "learned.stack": ["MemberPrediction"],
    "member": ["Prediction"],
    "shadow.overlap_replay": ["ReplayedExchange"],
    "shadow.pricing": ["PricedTrace", "PricedStage"],
    "shadow.served": ["ServedTrace", "ServingShadow"],
    "shadow.traced": ["Rank", "Shadow", "Step", "Timed"],
}
FROM_FILES = {
    "hardware.device": "Attention Clocks Curve Elementwise Gemm Hardware HostWork Island Network Tile",
    "serving.operators": "Decode ServingElementwise Experts ServingGemm Prefill",
    "serving.serving_device": "AllReduce ServingHost Kernels ServingDevice",
}
SHADOW: dict[str, Any] = {
    "job": "j", "name": "n", "configuration": {}, "verdict": "starts", "sentence": "s", "world": 2,
}  # fmt: skip
TOLD: dict[tuple[str, str], dict[str, Any]] = {
    ("shadow.traced", "Rank"): {"rank": 3, "verdict": "starts"},
    ("shadow.traced", "Timed"): {"rank": 3, "verdict": "starts"},
    ("shadow.traced", "Shadow"): {**SHADOW, "ranks": []},
    ("shadow.served", "ServedTrace"): {"verdict": "starts"},
    ("shadow.served", "ServingShadow"): {**SHADOW, "engines": 1},
}
ONES = ("imbalance", "replicas", "concurrent_batches")


def of(module: str, name: str) -> Any:
    return getattr(importlib.import_module(f"autoscout.simulate.{module}"), name)


def test_records_are_values():
    package = importlib.import_module("autoscout.simulate")
    names = [m.name for m in pkgutil.walk_packages(package.__path__, "autoscout.simulate.")]
    found = [v for name in names for v in vars(importlib.import_module(name)).values()]
    own = [each for each in found if isinstance(each, type) and each.__module__.startswith("autoscout.simulate")]
    structs = [each for each in own if issubclass(each, msgspec.Struct)]
    assert len(structs) > 25
    assert all(each.__struct_config__.frozen for each in structs)
    made = [each for each in own if dataclasses.is_dataclass(each)]
    assert len(made) > 5
    assert all(vars(each)["__dataclass_params__"].frozen for each in made)
    for kind in (of(module, name) for module, kinds in BY_NAME.items() for name in kinds):
        with pytest.raises(TypeError, match="positional"):
            kind(*[None] * len(msgspec.structs.fields(kind)))
    for kind in (of(module, name) for module, kinds in FROM_FILES.items() for name in kinds.split()):
        assert kind.__struct_config__.forbid_unknown_fields
    for (module, name), told in TOLD.items():
        kind = of(module, name)
        record = msgspec.convert(told, kind)
        for field in msgspec.structs.fields(kind):
            if field.name not in told:
                value = getattr(record, field.name)
                assert value == 1 if field.name in ONES else not value, field.name
        short = name in ("Rank", "ServedTrace")
        assert msgspec.to_builtins(record).keys() == (
            told.keys() if short else {f.name for f in msgspec.structs.fields(kind)}
        )
    nothing = of("shadow.overlap_replay", "ReplayedExchange")()
    assert [nothing.before, nothing.after, nothing.between, nothing.hidden] == [0, 0, 0, 0]
    limits = of("serving.held_back", "EngineLimits")(kv_tokens=5)
    assert dataclasses.astuple(limits) == (5, 256, 8192, 16, True, 2**62, True, 1, 0.0, 0, 0, 0, 0, False)
