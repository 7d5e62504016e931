"""What records of the simulators are when little is known, and that their fields are given by name."""

from typing import Any

import msgspec
import pytest

from autoscout.simulate.hardware.device import Hardware
from autoscout.simulate.learned.stack import Said
from autoscout.simulate.member import Prediction
from autoscout.simulate.serving.offloading import Generation, Machine
from autoscout.simulate.shadow import pricing, served, traced
from autoscout.simulate.shadow.overlap_replay import Exchange
from autoscout.simulate.shadow.traced import Rank, Timed


def test_records_say_what_was_traced_and_nothing_else():
    """What a trace did not tell is not written, and reads as nothing."""
    said: dict[Any, dict[str, Any]] = {
        Rank: {"rank": 3, "verdict": "starts"},
        served.Served: {"verdict": "starts"},
        Timed: {"rank": 3, "verdict": "starts"},
        traced.Shadow: {
            "job": "j", "name": "n", "configuration": {}, "verdict": "starts", "sentence": "s", "world": 2, "ranks": [],
        },
    }  # fmt: skip
    said[served.ServingShadow] = {n: v for n, v in said[traced.Shadow].items() if n != "ranks"} | {"engines": 1}
    ones = {"imbalance", "replicas", "concurrent_batches"}
    for kind, told in said.items():
        made = msgspec.convert(told, kind)
        for field in msgspec.structs.fields(kind):
            if field.name not in told:
                value = getattr(made, field.name)
                assert value == 1 if field.name in ones else not value, field.name
        if kind in (Rank, served.Served):
            assert msgspec.to_builtins(made) == told
        else:
            assert len(msgspec.to_builtins(made)) == len(msgspec.structs.fields(kind))
    assert Exchange() == Exchange(before=0.0, after=0.0, between=0.0, hidden=0.0)


def test_fields_of_records_are_given_by_name():
    kinds: tuple[Any, ...] = (
        Rank, Timed, traced.Step, traced.Shadow, served.Served, served.ServingShadow, Exchange, pricing.Priced,
        pricing.Stage, Prediction, Machine, Generation, Hardware, Said,
    )  # fmt: skip
    for kind in kinds:
        with pytest.raises(TypeError, match="positional"):
            kind(*[None] * len(msgspec.structs.fields(kind)))
