"""What learned members say of themselves and of each other: why one counts for less, what the trees are grown with,
which rows of a table cannot be true."""

from typing import Any

import numpy as np
import pytest
from frozen_values import drawn
from test_frozen_learned import ROWS, Rough, truth

from autoscout.simulate.learned.linear import DEVICES, LinearMember
from autoscout.simulate.learned.stack import Ensemble
from autoscout.simulate.learned.trees import Trees
from autoscout.simulate.serving.weight_formats import WEIGHT_BYTES
from autoscout.simulate.validation import measured


def test_why_a_member_counts_for_less():
    """One that errs more than others on rows held out, one that never could say anything, one too far from its rows,
    one with too few of them; nothing is said of those that count."""
    columns: dict[str, Any] = drawn(ROWS, 20, 6)
    rough = [Rough("good", 0.0, 0.02, 0.1), Rough("bad", -0.9, 0.7, 0.2), Rough("silent", 0.0, 0.1, 0.1, 0)]
    lines = [LinearMember("few", (DEVICES, "tp", "pp")), LinearMember("many", tuple(ROWS))]
    ensemble = Ensemble([*rough, *lines], "stacked")
    ensemble.fit(columns, truth(columns))

    def why(**other: Any) -> dict[str, str]:
        return {said.member: said.why for said in ensemble.explain({**columns, **other})[1]}

    assert {"good", "few"} >= ensemble.weights.keys() > set()
    inside = why()
    assert all((inside[name] == "") == (name in ensemble.weights) for name in ("good", "bad", "silent", "few", "many"))
    assert inside["bad"] == f"its error on held-out rows is {ensemble.mape['bad']:.0%}; other models err less"
    assert inside["silent"] == "no held-out row tests this model"
    assert inside["many"] == f"not fitted: this model needs at least {lines[1].min_rows} measured rows"
    far = why(tp=np.full(20, 64))
    assert far["few"] == "outside the range it was fitted on: tp 64 (seen 1 to 8)"
    assert far["bad"] == inside["bad"]


def test_how_trees_are_grown():
    """Sixty trees of at most sixteen leaves of five rows: the same ones whenever they are grown."""
    trees = Trees()
    columns = drawn(ROWS, 40, 8)
    trees.fit(columns, truth(columns))
    grown = trees._model.get_params()
    chosen = ("max_iter", "learning_rate", "max_leaf_nodes", "min_samples_leaf", "early_stopping", "random_state")
    assert [grown[name] for name in chosen] == [60, 0.2, 16, 5, False, 0]
    assert trees._model.n_iter_ == 60


@pytest.mark.parametrize(
    ("dtype", "bytes_each"), [("4bit", 0.5), ("int4", WEIGHT_BYTES["int4"]), ("fp8", 1.0), ("", 1.0)]
)
def test_weights_are_read_once_a_token(dtype: str, bytes_each: float):
    """A layer of one head of 10 beside 1,000 and a block of 3 × 1,000 × 2,000: 6.04 million weights."""
    shape = {"layers": 1.0, "hidden": 1000, "heads": 1, "kv_heads": 1, "head_dim": 10, "ffn": 2000, "gated": 1.0}
    shape |= {"output_len": 3.0, "tp": 1.0, "topk": 0.0, "expert_ffn": 0.0, "dp": 1.0, "pp": 1.0, "batch": 1.0}
    shape |= {"input_len": 0.0, "window": 0.0, "kv_lora_rank": 0.0}
    columns = {name: np.array([value]) for name, value in shape.items()}
    columns |= {name: np.array([""]) for name in ("quantization", "kv_cache_dtype")}
    columns |= {"dtype": np.array([dtype]), "gpu": np.array(["a100"])}
    hw = measured.hardware("a100")
    assert hw is not None
    least_ms = 2 * 6.04 * bytes_each / hw.memory_gb_s
    assert measured._too_fast(columns, {"e2el_mean_ms": np.array([least_ms * 0.999])})[0]
    assert not measured._too_fast(columns, {"e2el_mean_ms": np.array([least_ms * 1.001])})[0]
