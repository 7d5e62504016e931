"""What a device record has of the one that it is `like`: every figure that it does not state itself."""

import math
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from autoscout.job.words import nearest_name
from kb.records import AutoscoutError

Content = Mapping[str, Any]  # of a record's file

# A record's own, which it has of no other.
_NAMES = ("names", "series", "form")
_OWN = ("name", "names", "series", "form", "source", "sources", "calibrated", "doubt", "like", "links")
SECTIONS = ("network", "clocks", "gemm", "attention", "elementwise", "island", "host")
GROUPS = ("gemm", "elementwise", "decode", "prefill", "experts", "all_reduce", "host")  # of [serving], each whole
_SAID_OF_SERVING = (*GROUPS, "kernels", "like", "tflops", "memory_share", "same", "borrowed")


def completed(
    stated: Mapping[str, Content], known: Mapping[str, Content], where: Callable[[str], Path]
) -> dict[str, Content]:
    """Every record with what it has of others: of those in `stated`, else of those that are `known` as a whole. One
    that is like a record of its own name means the one that is known.

    Errors: AutoscoutError (exit 2) for a record that is like itself or like none, in whatever way."""
    found: dict[str, Content] = {}

    def complete(stem: str, asking: tuple[str, ...]) -> Content:
        if stem in asking:
            raise AutoscoutError(f"{where(stem)}: it is like itself, by way of {' → '.join((*asking, stem))}", 2)
        if stem not in found:
            own = stated[stem]
            for said in _shapeless(own):
                raise AutoscoutError(f"{where(stem)}: {said}", 2)
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
    """What is no table, text or number where others are made of it."""
    for key in (*SECTIONS, "peak_tflops", "serving"):
        if not isinstance(own.get(key, {}), Mapping):
            yield f"{key} is no table"
            return
    serving = own.get("serving", {})
    for name in serving:
        if name not in _SAID_OF_SERVING:
            yield f"serving.{name}{nearest_name(name, GROUPS)}"
        elif name in (*GROUPS, "kernels") and not isinstance(serving[name], Mapping):
            yield f"serving.{name} is no table"
        elif name in GROUPS and name != "all_reduce":
            yield from (
                f"serving.{name}.{k} = {v!r} is no number" for k, v in serving[name].items() if not _is_number(v)
            )
    for key, value in (("like", own), ("links", own), ("serving.like", serving)):
        if not isinstance(name := value.get(key.rpartition(".")[2], ""), str):
            yield f"{key} = {name!r} is no name of a record"
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
        yield "peak_tflops lacks bf16, which other formats are compared with"


def _is_number(value: Any, more_than: float = -math.inf) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and value > more_than


def _named(like: Content) -> dict[str, Any]:
    """What a person's record is called that is like the shipped one of its own name."""
    return {name: like[name] for name in _NAMES if name in like}


def _joined(own: Content, like: Content, links: Content) -> dict[str, Any]:
    """A section has figures of both; the peaks are stated together or not at all."""
    found = {**{key: value for key, value in like.items() if key not in _OWN}, **own}
    for section in SECTIONS:
        lent = dict((links if section == "island" and links else like).get(section, {}))
        stated = dict(own.get(section, {}))
        if times := stated.pop("times", 0.0):  # links that are so many times as fast, to the digits that fits print
            lent |= {name: _faster(curve, times) for name, curve in lent.items() if isinstance(curve, dict)}
        found[section] = {**lent, **stated}
    return found


def _faster(curve: Content, times: float) -> dict[str, Any]:
    return {**curve, "bus_gb_s": [round(times * gb_s, 2) for gb_s in curve["bus_gb_s"]]}


def _served(own: Content, like: Content, kernels_like: Content, links: Content) -> dict[str, Any]:
    """Of the serving model: groups that the record lacks are borrowed from the one whose kernels are like its own,
    scaled by the ratio of their peaks, or to the `tflops` that its products are known to reach, or to the
    `memory_share` of its bandwidth that they do; all-reduces from the one whose `links` it has. Other facts of its
    `kernels` are as those of both."""
    said = own.get("serving", {})
    stated = {name: said[name] for name in GROUPS if name in said}
    if links and "all_reduce" in links["serving"]:
        stated = {"all_reduce": links["serving"]["all_reduce"], **stated}
    other = kernels_like.get("serving", {})
    compute, memory = _ratios(own, like, kernels_like, said)
    scale = {"tflops": compute, "gb_s": memory}
    lent = {
        group: other[group] if group == "all_reduce" else {k: v * scale.get(k, 1.0) for k, v in other[group].items()}
        for group in GROUPS
        if group in other and group not in stated
    }
    kernels = {**other.get("kernels", {}), **like.get("serving", {}).get("kernels", {}), **said.get("kernels", {})}
    return {**lent, **stated, "kernels": kernels, "borrowed": sorted(lent), "same": said.get("same", False)}


def _ratios(own: Content, like: Content, kernels_like: Content, said: Content) -> tuple[float, float]:
    """(of what products reach, of the bandwidth)"""

    def of(one: Content) -> tuple[float, float]:
        return 1e12 * one["peak_tflops"]["bf16"], one["memory_gb_s"]

    if not kernels_like or "memory_gb_s" not in {**like, **own} or "peak_tflops" not in {**like, **own}:
        return 1.0, 1.0  # what is missing is said where the record is read
    (peak, bandwidth), (other_peak, other_bandwidth) = of({**like, **own}), of(kernels_like)
    compute, memory, gemm = peak / other_peak, bandwidth / other_bandwidth, kernels_like["serving"].get("gemm")
    if gemm and "tflops" in said:
        compute = said["tflops"] / gemm["tflops"]
    if gemm and "memory_share" in said:
        memory = said["memory_share"] * bandwidth / gemm["gb_s"]
    return compute, memory
