"""Software of a job that does not state it: a prior over software profiles, which measured rows of the job settle.

A profile is what a trainer's code decides beyond shapes: whether norms, activation and attention are fused, in how
many bits gradients are kept and reduced, what the loss keeps. Rows whose column `software` is "unknown" are predicted
as a mixture over PROFILES; what such a row does state (its attention, its dropout) holds in every one of them.
"""

from typing import Any, NamedTuple

import numpy as np

from autoscout.simulate.member import Columns

Array = np.ndarray
UNKNOWN = "unknown"
TELLING = 3.0  # rows: the most that a job's rows weigh together as evidence
CONTRADICTED = 0.02  # factor on a fused-norm profile's share where a row says that its norms are not fused


class Profile(NamedTuple):
    """`share`: prior probability. `columns`: as in inputs.DEFAULTS, where a row does not say."""

    share: float
    columns: dict[str, Any]


# Shares are assumed, not measured. Unfused attention, of Megatron-LM of 2021-22, is the rarest.
_LAYERS = {
    "fused kernels": (0.5, {"te": 1.0}),
    "plain PyTorch": (0.5, {"te": 0.0, "fused_norm": 0.0, "fused_activation": 0.0, "attention": "flash2"}),
}
_GRADIENTS = {"gradients in 16 bits": (0.4, {"grad_bytes": 2.0}), "gradients in 32 bits": (0.6, {"grad_bytes": 4.0})}
_LOSS = {"loss split over tp": (0.65, {"split_loss": 1.0}), "loss of whole rows": (0.35, {"split_loss": 0.0})}
_EARLY = 0.1
# Every combination, by its parts' names.
PROFILES = {
    ", ".join(names): Profile((1 - _EARLY) * shares, columns)
    for names, shares, columns in (
        ((layers, gradients, loss), a * b * c, {**of_layers, **of_gradients, **of_loss})
        for layers, (a, of_layers) in _LAYERS.items()
        for gradients, (b, of_gradients) in _GRADIENTS.items()
        for loss, (c, of_loss) in _LOSS.items()
    )
} | {"unfused attention of 2021-22": Profile(_EARLY, {"te": 0.0, "attention": "unfused", "dropout": 1.0})}


class Variant(NamedTuple):
    """One profile: the log of its (n,) probabilities, -inf where rows state their software, and the rows under it."""

    name: str
    log_share: Array
    columns: Columns


def variants(columns: Columns, blind_to: frozenset[str] = frozenset()) -> list[Variant]:
    """One, with the columns as they are, where every row states its software. `blind_to`: columns that the caller
    ignores; profiles that differ only in these are merged."""
    said = np.atleast_1d(np.asarray(columns.get("software", ""), dtype=str))
    unknown = said == UNKNOWN
    if not unknown.any():
        return [Variant("", np.zeros(1), columns)]
    plain_norm = np.atleast_1d(np.asarray(columns.get("fused_norm", np.nan), dtype=float)) == 0
    found: dict[Any, Variant] = {}
    for name, profile in PROFILES.items():
        own = {column: value for column, value in profile.columns.items() if column not in blind_to}
        key = tuple(own.items())
        known = 0.0 if not found or key == next(iter(found)) else -np.inf
        share = np.where(unknown, np.log(profile.share), known)
        if profile.columns.get("fused_norm", 1.0) > 0:
            share = np.where(unknown & plain_norm, share + np.log(CONTRADICTED), share)
        if key in found:
            found[key] = found[key]._replace(
                log_share=np.where(unknown, np.logaddexp(found[key].log_share, share), known)
            )
            continue
        filled = {column: _filled(columns.get(column), value, unknown) for column, value in own.items()}
        found[key] = Variant(name, share, {**columns, **filled})
    return list(found.values())


def side_by_side(some: list[Variant]) -> dict[str, Any]:
    """The columns of all variants: (profiles, n) where they differ."""
    found: dict[str, Any] = {}
    for name in {name: None for variant in some for name in variant.columns}:
        each = [variant.columns.get(name, "" if name == "attention" else np.nan) for variant in some]
        alike = all(one is each[0] for one in each)
        found[name] = each[0] if alike else np.stack(np.broadcast_arrays(*map(np.atleast_1d, each)))
    return found


def stacked(some: list[Variant], n: int) -> dict[str, Any]:
    """The (n,) rows of all variants, one after the other: one call predicts them all."""
    return {
        name: value if np.ndim(value) == 0 or name == "degrees" else np.broadcast_to(value, (len(some), n)).reshape(-1)
        for name, value in side_by_side(some).items()
    }


def _filled(given: Any, value: Any, unknown: Array) -> Array:
    """`value` in rows of unknown software that state none of their own."""
    if isinstance(value, str):
        own = np.asarray("" if given is None else given, dtype=str)
        return np.where(unknown & (own == ""), value, own)
    own = np.asarray(np.nan if given is None else given, dtype=float)
    return np.where(unknown & np.isnan(own), value, own)


def evidence(found: list[Variant], residuals: list[Array], spread: float) -> dict[str, float]:
    """Log likelihood of each profile, from log(measured / predicted) of the (n,) rows that do not state their software;
    NaN where a row tells nothing. Rows of a job err together, so all of them weigh at most as much as TELLING."""
    told: dict[str, float] = {}
    for variant, residual in zip(found, residuals, strict=True):
        seen = np.isfinite(residual) & np.broadcast_to(np.isfinite(variant.log_share), len(residual))
        weight = min(1.0, TELLING / max(int(seen.sum()), 1))
        told[variant.name] = float(-0.5 * weight * np.square(residual[seen] / spread).sum())
    return told


def probabilities(log_share: list[Array], n: int) -> Array:
    """(profiles, n)"""
    weights = np.array([np.broadcast_to(s, n) for s in log_share])
    weights = np.exp(weights - weights.max(axis=0))
    return weights / weights.sum(axis=0)


def mixed(values: list[Array], log_share: list[Array]) -> tuple[Array, Array, Array]:
    """(geometric mean, standard deviation of the logarithm between profiles, (profiles, n) probabilities)."""
    n = max(len(v) for v in (*values, *log_share))
    weights = probabilities(log_share, n)
    return *middle(np.array([np.broadcast_to(v, n) for v in values]), weights), weights


def middle(values: Array, weights: Array) -> tuple[Array, Array]:
    """Of (profiles, n) values: the geometric mean, and the standard deviation of the logarithm between profiles."""
    logs = np.where(weights > 0, np.log(values), 0.0)
    mean = (weights * logs).sum(axis=0)
    between = (weights * (logs - mean) ** 2).sum(axis=0)
    return np.exp(mean), np.sqrt(between)
