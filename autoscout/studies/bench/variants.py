"""Parses the strategy names of `bench`: a plain name such as `udo`; with hyper-parameters, such as `paper:k=10:tau=3`;
or with simulated proposals (hints.py), such as `autoscout@worst`."""

from collections.abc import Sequence
from typing import Any

import msgspec

from autoscout.job.words import nearest_name
from autoscout.search.strategy import kind_of
from autoscout.studies.bench.hints import hinted
from autoscout.studies.bench.landscape import Landscape
from kb.records import AutoscoutError


def variant(name: str) -> tuple[str, Any]:
    """Returns (strategy, its hyper-parameters or None). Errors: AutoscoutError (exit 2) with the nearest name."""
    plain, *changes = name.partition("@")[0].split(":")
    if hinted(name) and not kind_of(plain).listens:
        raise AutoscoutError(f"{name}: the strategy {plain} takes no proposals", 2)
    hyper = kind_of(plain).hyper
    if not changes:
        return plain, None
    if hyper is None:
        raise AutoscoutError(f"{name}: the strategy {plain} has no hyper-parameters to change", 2)
    fields = hyper.__struct_fields__
    wanted: dict[str, Any] = {}
    for change in changes:
        key, _, value = change.partition("=")
        if key not in fields:
            raise AutoscoutError(f"{name}: the hyper-parameter '{key}'{nearest_name(key, fields)}", 2)
        wanted[key] = value.split("+") if value and "+" in value else value
    try:
        return plain, msgspec.convert(wanted, hyper, strict=False)
    except msgspec.ValidationError as error:
        raise AutoscoutError(f"{name}: {error}", 2) from error


def usable(names: Sequence[str], landscapes: Sequence[Landscape]) -> tuple[list[str], dict[str, str]]:
    """Returns first the strategies that can run on these landscapes; second the reason for each other strategy, by
    name. Errors: AutoscoutError (exit 2) if no strategy can run."""
    left_out: dict[str, str] = {}
    for name in names:
        plain, _ = variant(name)
        if why := kind_of(plain).missing:
            left_out[name] = why
        elif plain == "expert" and any(landscape.default is None for landscape in landscapes):
            left_out[name] = "strategy 'expert' needs a job: a table does not say what an expert would choose"
    chosen = [name for name in dict.fromkeys(names) if name not in left_out]
    if not chosen:
        raise AutoscoutError("; ".join(left_out.values()) or "--strategies names no strategy", 2)
    return chosen, left_out
