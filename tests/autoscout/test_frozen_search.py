"""What the published algorithm and the searches beside it decide, value by value, where no linear algebra decides: as
test_frozen.py, and written anew in the same way:

    UPDATE_FROZEN=1 python -m pytest tests/autoscout/test_frozen_search.py
"""

import itertools
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest
from frozen_values import Values, hold, kept
from test_conformance import answer, fine, toy
from test_frozen import failing_now_and_then

from autoscout.search.hyper import PaperHyper
from autoscout.search.strategy import Strategy, strategy
from autoscout.space.graph import Space
from kb.journal import Decided, Rewarded
from kb.records import Configuration, Measurement, Objective

HERE = Path(__file__).parent / "frozen"
VARIANTS = {
    "as it is": PaperHyper(),
    "five trees": PaperHyper(k=5, c_uct=0.3, near=0.2, c0=0.2, gamma=0.8),
    "in turns": PaperHyper(k=2, bandit=False, control_limit=1.4),
    "sparse only": PaperHyper(k=3, dense=False, unvisited=0.5),
}


def told(
    chosen: Strategy, space: Space, batches: int, respond: Callable[[Space, Configuration], Measurement]
) -> tuple[list[float | str | None], list[float | str | None]]:
    """What the configurations of each batch cost where nothing fails, and what the arms were told to have earned."""
    asked, earned = [], []
    for _ in range(batches):
        batch = chosen.ask()
        chosen.tell([respond(space, c) for c in batch])
        for event in chosen.drain():
            if isinstance(event, Decided):
                asked += [fine(space, c).metrics["step_time_s"] for c in event.configurations]
            if isinstance(event, Rewarded):
                earned += [event.delta_sparse, event.delta_dense, event.interaction or 0.0]
                earned += [value for arm in event.arms.values() for value in arm]
    return kept(asked), kept(earned)


def paper() -> Values:
    """With simulators first and then experiments, and with failures."""
    space, found = toy()[0], {}
    for name, hyper in VARIANTS.items():
        chosen = strategy("paper", space, seed=3, hyper=hyper)
        asked, earned = told(chosen, space, 14, predicted)
        chosen.switch_to_profiling()
        more, late = told(chosen, space, 24, failing_now_and_then)
        best = chosen.recommend()
        assert best is not None
        found[f"{name}: asked"] = [*asked, *more, *kept(fine(space, best).metrics["step_time_s"])]
        found[f"{name}: earned"] = [*earned, *late]
    return found


def predicted(space: Space, configuration: Configuration) -> Measurement:
    value = 0.5 * fine(space, configuration).metrics["step_time_s"] ** 1.5
    told = failing_now_and_then(space, configuration)
    told = answer(space, configuration, value) if told.status == "ok" else told
    return msgspec.structs.replace(told, fidelity="predicted")


# No linear algebra decides in these.
RIVALS = {
    "ants": (None, 0), "deepspeed-grid": (None, 3), "deepspeed-random": (9, 0), "deepspeed-staged": (None, 0),
    "genetic": (None, 2), "grid": (None, 0), "metis": (None, 0), "udo": (None, 1), "walker": (None, 0),
}  # fmt: skip


def training() -> Space:
    """Stages that shard more, micro batches that fit or do not, a switch with a size of its own."""
    rows = []
    for stage, mbs, tp, off, bucket in itertools.product((0, 1, 2, 3), (1, 2, 3, 4, 6, 8, 12), (1, 2), (0, 1), (8, 32)):
        row = {"zero_stage": stage, "mbs": mbs, "tp": tp, "pp": 2 // tp, "offload": off}
        rows.append({**row, "bucket": bucket} if off else row)
    return Space.from_table(rows, ["zero_stage", "tp", "pp", "offload"], ["mbs", "bucket"], Objective(minimize="s"))


def trained(space: Space, configuration: Configuration) -> Measurement:
    k = {name: float(str(value)) for name, value in configuration.knobs.items()}
    seconds = (1 + 1 / k["mbs"]) * (1 + 0.05 * k["zero_stage"] + 0.1 * k["tp"]) * (1 + 0.2 * k["offload"])
    seconds += k.get("bucket", 0.0) / 200
    fits = k["mbs"] <= 3 * (1 + k["zero_stage"]) * (1 + k["offload"]) / k["pp"]
    return answer(space, configuration, seconds if fits else None, "ok" if fits else "oom")


def rivals() -> Values:
    space, found = training(), {}
    numbers = {c.id: float(i) for i, c in enumerate(space.configurations())}
    for name, (patience, seed) in RIVALS.items():
        chosen = strategy(name, space, seed, space.feasible.configuration(40), patience=patience)
        asked: list[float] = []
        for _ in range(70):
            batch = chosen.ask()
            asked += [numbers[c.id] for c in batch]
            chosen.tell([trained(space, c) for c in batch])
        best = chosen.recommend()
        assert best is not None
        found[name] = kept([*asked, numbers[best.id]])
    return found


@pytest.mark.parametrize("values", [paper, rivals])
def test_every_decision_is_as_it_was(values: Callable[[], Values]):
    hold(f"search/{values.__name__}", values())
