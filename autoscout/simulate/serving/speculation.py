"""Speculative decoding: expected tokens of a step that verifies draft tokens (called guesses here), and their cost.

A guess is accepted with probability a if all previous ones were (Leviathan et al. 2023, "Fast Inference from
Transformers via Speculative Decoding", equation 1), so a step that verifies k guesses yields (1 - a^(k + 1)) / (1 - a)
tokens. The rate a depends on the texts and on the method, so the job (`launch.accepted`) or the column `accepted` must
state it; vLLM logs it as the first of the acceptance rates by position. The model is not verified: no public table has
such runs."""

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np

from autoscout.job.words import nearest_name

Array = np.ndarray
# vLLM's method → (layers of the served model's size, products with its vocabulary) computed per guess. n-grams are
# looked up on the host. Draft models are not listed, because their size is unknown.
COSTS = {
    "ngram": (0.0, 0.0),
    "eagle": (1.0, 1.0),
    "eagle3": (1.0, 1.0),
    "mtp": (1.0, 1.0),
    "medusa": (0.0, 1.0),
    "mlp_speculator": (0.0, 1.0),
}
METHODS = (*COSTS, "draft_model")


class Speculation(NamedTuple):
    """Speculation of n configurations, (n,) each. `guesses`: draft tokens per step; 0 without speculation."""

    guesses: Array
    tokens: Array  # expected tokens that a step yields
    layers: Array  # layers computed per guess
    heads: Array  # products with the vocabulary per guess


def speculation(columns: Mapping[str, Any], n: int) -> Speculation:
    method = _methods(columns, n)
    on = _on(method)
    guesses = np.broadcast_to(np.asarray(columns.get("spec_tokens", 0.0), dtype=float), (n,))
    guesses = np.where(on, np.maximum(np.nan_to_num(guesses), 1.0), 0.0)
    layers, heads = (_of_method(method, {name: cost[i] for name, cost in COSTS.items()}, 0.0) for i in (0, 1))
    return Speculation(guesses, expected_tokens(_accepted(columns, method), guesses), layers, heads)


def expected_tokens(accepted: Array, guesses: Array) -> Array:
    a = np.clip(np.nan_to_num(accepted), 0.0, 1.0 - 1e-9)
    return (1 - a ** (guesses + 1)) / (1 - a)


def refused(columns: Mapping[str, Any], n: int) -> dict[str, Array]:
    """Reason why rows cannot be predicted → (n,) mask of these rows."""
    method = _methods(columns, n)
    on, known = _on(method), np.isin(method, list(COSTS))
    untold = on & known & ~(_accepted(columns, method) > 0)
    shares = ", ".join(f"{name} = 0.3" for name in np.unique(method[untold]))
    return {
        f"speculative decoding depends on how many drafted tokens are accepted; set launch.accepted = {{ {shares} "
        "}, the share of first drafted tokens that are accepted": untold,
        "the speed of a draft model is not known": on & ~known,
    }


def rate_problems(accepted: Mapping[str, float]) -> Iterator[str]:
    """Problems of a job's `launch.accepted`, one sentence each."""
    for method, share in accepted.items():
        if method not in COSTS:
            yield f"launch.accepted: '{method}'{nearest_name(method, list(COSTS))}"
        elif not 0 < share < 1:
            yield (
                f"launch.accepted.{method} = {share:g} is the share of first drafted tokens that are accepted; it "
                "must be between 0 and 1"
            )


def _methods(columns: Mapping[str, Any], n: int) -> Array:
    return np.broadcast_to(np.asarray(columns.get("spec", "none"), dtype=str), (n,))


def _on(method: Array) -> Array:
    return ~np.isin(method, ["none", "", "nan"])


def _accepted(columns: Mapping[str, Any], method: Array) -> Array:
    """(n,) probability that a guess is accepted; NaN where it is not given."""
    told = columns.get("accepted", np.nan)
    if isinstance(told, Mapping):
        return _of_method(method, told, np.nan)
    return np.broadcast_to(np.asarray(told, dtype=float), method.shape)


def _of_method(method: Array, values: Mapping[str, float], otherwise: float) -> Array:
    names, which = np.unique(method, return_inverse=True)
    return np.array([values.get(str(name), otherwise) for name in names], dtype=float)[which]
