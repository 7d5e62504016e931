"""Strategy names as `bench` takes them: `udo`, or a variant with other hyper-parameters such as `paper:k=10:tau=3`."""

from collections.abc import Sequence
from typing import Any

import msgspec

from autoscout.bench.landscape import Landscape
from autoscout.job.words import nearest_name
from autoscout.search.hyper import Hyper
from autoscout.search.rivals.registry import RIVALS, missing
from kb.records import AutoscoutError

_HYPER = {"autoscout": Hyper, "paper": Hyper}
KNOWN = (*_HYPER, *RIVALS)


def variant(name: str) -> tuple[str, Any]:
    """(strategy, its hyper-parameters or None). Errors: AutoscoutError (exit 2) with the nearest name."""
    plain, *changes = name.split(":")
    if plain not in KNOWN:
        raise AutoscoutError(f"strategy '{plain}'{nearest_name(plain, KNOWN)}", 2)
    if not changes:
        return plain, None
    if plain not in _HYPER:
        raise AutoscoutError(f"{name}: {plain} has no hyper-parameters to change", 2)
    fields = _HYPER[plain].__struct_fields__
    wanted: dict[str, Any] = {}
    for change in changes:
        key, _, value = change.partition("=")
        if key not in fields:
            raise AutoscoutError(f"{name}: the hyper-parameter '{key}'{nearest_name(key, fields)}", 2)
        wanted[key] = value.split("+") if value and "+" in value else value
    try:
        return plain, msgspec.convert(wanted, _HYPER[plain], strict=False)
    except msgspec.ValidationError as error:
        raise AutoscoutError(f"{name}: {error}", 2) from error


def usable(names: Sequence[str], landscapes: Sequence[Landscape]) -> tuple[list[str], dict[str, str]]:
    """The strategies that can run here, and why the others cannot. Errors: AutoscoutError (exit 2) if none can."""
    left_out: dict[str, str] = {}
    for name in names:
        plain, _ = variant(name)
        if why := missing(plain):
            left_out[name] = why
        elif plain == "expert" and any(landscape.default is None for landscape in landscapes):
            left_out[name] = "strategy 'expert' knows jobs; of a table nobody knows the expert's configuration"
    chosen = [name for name in dict.fromkeys(names) if name not in left_out]
    if not chosen:
        raise AutoscoutError("; ".join(left_out.values()) or "--strategies names none", 2)
    return chosen, left_out
