"""Fills in missing figures of a device record from the similar record that its key `like` names."""

import math
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from autoscout.job.words import nearest_name
from kb.records import AutoscoutError

Content = Mapping[str, Any]  # the parsed TOML file of a record

# `_OWN`: keys that are not copied from the record `like`. (A user's record of the same name still gets `_NAMES`.)
_NAMES = ("names", "series", "form")
_OWN = ("name", "names", "series", "form", "source", "sources", "calibrated", "doubt", "like", "links")
SECTIONS = ("network", "clocks", "gemm", "attention", "elementwise", "island", "host")
# Tables in [serving]: constants of the serving model. A missing table is copied as a whole.
GROUPS = ("gemm", "elementwise", "decode", "prefill", "experts", "all_reduce", "host")
_SERVING_KEYS = (*GROUPS, "kernels", "like", "tflops", "memory_share", "same", "borrowed", "lender")


def completed(
    stated: Mapping[str, Content], known: Mapping[str, Content], where: Callable[[str], Path]
) -> dict[str, Content]:
    """Returns all records in `stated`, with missing figures copied from the records that their keys `like` and `links`
    name. Those records are looked up in `stated` first, then in `known` (complete records). A user's record may be
    `like` the shipped record of the same name. `where`: returns the path of a record's file.

    Errors: AutoscoutError (exit 2) for a cycle of such references, or a reference to an unknown record."""
    found: dict[str, Content] = {}

    def complete(stem: str, asking: tuple[str, ...]) -> Content:
        if stem in asking:
            circle = " → ".join((*asking, stem))
            raise AutoscoutError(
                f"{where(stem)}: its `like` refers back to itself: {circle}; remove one of these references", 2
            )
        if stem not in found:
            own = stated[stem]
            for problem in _shapeless(own):
                raise AutoscoutError(f"{where(stem)}: {problem}", 2)
            serving = own.get("serving", {})
            asked = {"like": own.get("like", ""), "links": own.get("links", ""), "serving": serving.get("like", "")}
            lent = {key: other_of(stem, key, other, asking) for key, other in asked.items()}
            found[stem] = {
                **(_named(lent["like"]) if asked["like"] == stem else {}),
                **_joined(own, lent["like"], lent["links"]),
                "serving": _served(own, lent["like"], lent["serving"] or lent["like"], lent["links"]),
            }
        return found[stem]

    def other_of(stem: str, key: str, other: str, asking: tuple[str, ...]) -> Content:
        if not other:
            return {}
        if other in stated and not (other == stem and other in known):
            return complete(other, (*asking, stem))
        if other not in known:
            raise AutoscoutError(f"{where(stem)}: {key} = '{other}'{nearest_name(other, [*stated, *known])}", 2)
        return known[other]

    return {stem: complete(stem, ()) for stem in stated}


def _shapeless(own: Content) -> Iterator[str]:
    """Yields a sentence for each entry of a record whose type or value is wrong, so that `completed` cannot use it."""
    for key in (*SECTIONS, "peak_tflops", "serving"):
        if not isinstance(own.get(key, {}), Mapping):
            yield f"{key} must be a table, which begins with [{key}]"
            return
    serving = own.get("serving", {})
    for name in serving:
        if name not in _SERVING_KEYS:
            yield f"serving.{name}{nearest_name(name, GROUPS)}"
        elif name in (*GROUPS, "kernels") and not isinstance(serving[name], Mapping):
            yield f"serving.{name} must be a table, which begins with [serving.{name}]"
        elif name in GROUPS and name != "all_reduce":
            yield from (
                f"serving.{name}.{k} = {v!r} must be a number" for k, v in serving[name].items() if not _is_number(v)
            )
    for key, value in (("like", own), ("links", own), ("serving.like", serving)):
        if not isinstance(name := value.get(key.rpartition(".")[2], ""), str):
            yield f"{key} = {name!r} must be the name of a device record"
    figures = {
        "memory_gb_s": own.get("memory_gb_s", 1.0),
        "peak_tflops.bf16": own.get("peak_tflops", {}).get("bf16", 1.0),
        "island.times": own.get("island", {}).get("times", 1.0),
        "serving.tflops": serving.get("tflops", 1.0),
        "serving.memory_share": serving.get("memory_share", 1.0),
    }
    yield from (
        f"{key} = {v!r} must be a number, and more than 0" for key, v in figures.items() if not _is_number(v, 0.0)
    )
    if "peak_tflops" in own and "bf16" not in own["peak_tflops"]:
        yield "peak_tflops has no bf16; add it, since the other formats are scaled relative to it"


def _is_number(value: Any, more_than: float = -math.inf) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and value > more_than


def _named(like: Content) -> dict[str, Any]:
    """Returns the names, series and form factor of the record `like`, for a user's record that replaces it."""
    return {name: like[name] for name in _NAMES if name in like}


def _joined(own: Content, like: Content, links: Content) -> dict[str, Any]:
    """Returns `own` with missing figures copied from `like`. Sections are merged key by key, but the peak rates are
    copied as a whole or not at all."""
    found = {**{key: value for key, value in like.items() if key not in _OWN}, **own}
    for section in SECTIONS:
        lent = dict((links if section == "island" and links else like).get(section, {}))
        stated = dict(own.get(section, {}))
        # `times` scales the bandwidths of the copied links, rounded to the precision of printed fits.
        if times := stated.pop("times", 0.0):
            lent |= {name: _faster(curve, times) for name, curve in lent.items() if isinstance(curve, dict)}
        found[section] = {**lent, **stated}
    return found


def _faster(curve: Content, times: float) -> dict[str, Any]:
    return {**curve, "bus_gb_s": [round(times * gb_s, 2) for gb_s in curve["bus_gb_s"]]}


def _served(own: Content, like: Content, kernels_like: Content, links: Content) -> dict[str, Any]:
    """Returns the constants of the serving model. Missing groups are copied from `kernels_like`, the record with
    similar kernels. They are scaled by the ratio of peak rates, or to the stated `tflops` and `memory_share` of this
    device. Constants of all-reduces come from the record `links`. Entries of `kernels` are merged from all records."""
    serving = own.get("serving", {})
    stated = {name: serving[name] for name in GROUPS if name in serving}
    if links and "all_reduce" in links["serving"]:
        stated = {"all_reduce": links["serving"]["all_reduce"], **stated}
    other = kernels_like.get("serving", {})
    compute, memory = _ratios(own, like, kernels_like, serving)
    scale = {"tflops": compute, "gb_s": memory}
    lent = {
        group: other[group] if group == "all_reduce" else {k: v * scale.get(k, 1.0) for k, v in other[group].items()}
        for group in GROUPS
        if group in other and group not in stated
    }
    kernels = {**other.get("kernels", {}), **like.get("serving", {}).get("kernels", {}), **serving.get("kernels", {})}
    lender = serving.get("like") or own.get("like", "")
    borrowing = {"borrowed": sorted(lent), "lender": lender, "same": serving.get("same", False)}
    return {**lent, **stated, "kernels": kernels, **borrowing}


def _ratios(own: Content, like: Content, kernels_like: Content, serving: Content) -> tuple[float, float]:
    """Returns (compute rate, memory bandwidth) of `own` (completed by `like`), relative to those of `kernels_like`."""

    def of(one: Content) -> tuple[float, float]:
        return 1e12 * one["peak_tflops"]["bf16"], one["memory_gb_s"]

    if not kernels_like or "memory_gb_s" not in {**like, **own} or "peak_tflops" not in {**like, **own}:
        return 1.0, 1.0  # the check of the completed record reports what is missing
    (peak, bandwidth), (other_peak, other_bandwidth) = of({**like, **own}), of(kernels_like)
    compute, memory, gemm = peak / other_peak, bandwidth / other_bandwidth, kernels_like["serving"].get("gemm")
    if gemm and "tflops" in serving:
        compute = serving["tflops"] / gemm["tflops"]
    if gemm and "memory_share" in serving:
        memory = serving["memory_share"] * bandwidth / gemm["gb_s"]
    return compute, memory
