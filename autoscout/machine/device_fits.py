"""Fits a device record (job/device_records.py) to the results of the micro-benchmarks (microbench.py). Constants that
the micro-benchmarks do not measure are taken from the shipped record of the most similar device."""

from collections.abc import Callable, Mapping
from typing import Any

import msgspec
import numpy as np

from autoscout.job.device_names import stem_of
from autoscout.job.device_records import contents, shipped_contents
from autoscout.simulate.hardware import roofline
from autoscout.simulate.hardware.device import Hardware, shipped
from autoscout.simulate.serving import operators as op

# microseconds of a small torch operator on the machine on which the shipped CPU host constants were measured
_REFERENCE_US = 4.9
Groups = dict[str, list[Any]]  # rows by group, as microbench.py prints them
Found = dict[str, Any]  # content of a device record


def fit_record(groups: Groups, name: str) -> tuple[Found, dict[str, float]]:
    """(the record's content, fit → mean relative error). If `name` is "", the record lists the driver's name for the
    device, so that it applies to such devices."""
    facts = groups["device"][0]
    cpu = facts["kind"] == "cpu"
    like = likest(facts)
    reference = shipped(like)
    # The CPU time of a training framework can only be measured in whole jobs, so the shipped constants are scaled by
    # the speed of Python on this machine.
    python = dict(groups["host"])["forward"] / _REFERENCE_US if cpu else 1.0
    products, memory = groups["gemm"], groups["memory"]
    peak = {d: max(2e-6 * m * n * k / us for t, m, n, k, us in products if t == d) for d in ("bf16", "fp32")}
    peak["fp16"] = peak["bf16"]
    ratio = peak["bf16"] / reference.peak_tflops["bf16"]
    peak |= {format_: ratio * tflops for format_, tflops in reference.peak_tflops.items() if format_ not in peak}
    launch = next(us for what, _, us in memory if what == "launch")
    # The largest buffers exceed all caches, so they show the memory bandwidth.
    rate, norm_rate = (
        max((b, b / us * 1e-3) for what, b, us in memory if what == kind)[1] for kind in ("copy", "norm")
    )
    shapes = [(1, 1)] if cpu else [(256, 128), (128, 128), (128, 64), (64, 64)]
    measured = f"autoscout calibrate on this machine, torch {facts['torch']}"
    alone = not groups.get("collectives")
    found: Found = {
        "name": facts["name"] if not name else f"{facts['name']} as {name}",
        "like": like,
        **({} if name else {"names": [facts["name"]]}),
        "source": f"{measured}; a device is one {'thread' if cpu else 'GPU'}; missing values were not measured",
        "memory_gib": facts["memory_gib"] / (facts["count"] if cpu else 1),
        "memory_gb_s": rate,
        "multiprocessors": facts["multiprocessors"],
        **({"per_node": facts["count"]} if not cpu else {"cores": facts["count"]}),
        **({"capability": facts["capability"]} if facts.get("capability") else {}),
        "context_gib": facts["context_gib"],
        "calibrated": True,
        "peak_tflops": peak,
        "clocks": {"sustained": 1.0, "in_steps": 1.0, "in_steps_16": 1.0},
        "gemm": {
            "overhead_us": launch,
            "bandwidth": 1.0,
            "extra_k": 0.0,
            "tiles": [{"rows": r, "columns": c, "efficiency": 1.0} for r, c in shapes],
        },
        "attention": {},
        "elementwise": {
            "overhead_us": launch,
            "bandwidth": 1.0,
            "norm_bandwidth": norm_rate / rate,
        },
        "island": _island(groups.get("collectives", []), rate, cpu),
        "host": {name: value * python for name, value in msgspec.to_builtins(reference.host).items()},
    }
    whole = {**msgspec.to_builtins(reference), **found, "attention": msgspec.to_builtins(reference.attention)}
    found["gemm"], gemm_error = _fit_gemm(whole, products)
    found["attention"], attention_error = _fit_attention({**whole, "gemm": found["gemm"]}, groups["prefill"])
    serving, errors = fit_serving(groups, found)
    # If the most similar record lacks the constants of mixture-of-experts layers and of the engine's CPU work, those of
    # the first record that has them are used.
    if "experts" not in shipped_contents()[like]["serving"]:
        serving["like"] = next(stem for stem, one in shipped_contents().items() if "experts" in one["serving"])
    found["serving"] = serving
    found["sources"] = {
        "clocks": "predictions use times measured in a loop",
        "gemm": f"{len(products)} shapes, mean error {gemm_error:.0%}",
        "attention": f"{len(groups['prefill'])} shapes, mean error {attention_error:.0%}",
        "elementwise": f"{len(memory)} sizes",
        "island": "only one device, so copies were measured in place of links"
        if alone
        else f"{len(groups['collectives'])} messages",
        "host": f"as on {like}, times the speed of this machine's Python" if cpu else f"as on {like}",
        **{f"serving.{name}": f"mean error {error:.0%}" for name, error in errors.items()},
    }
    return found, {
        "gemm": gemm_error,
        "attention": attention_error,
        **{f"serving {name}": error for name, error in errors.items()},
    }


def likest(facts: dict[str, Any]) -> str:
    """The name of the shipped record most similar to a machine's device: the record with the driver's name for the
    device, or else the newest record of its vendor that is not newer than the device; in a tie, measured records are
    preferred, then those with a smaller `doubt`."""
    known = shipped_contents()
    stem = stem_of(facts["name"])
    while stem and stem not in known:  # the record of an earlier calibration names a shipped one in `like`
        stem = contents()[stem].get("like", "")
    if stem:
        return stem
    if facts["kind"] == "cpu":
        return next(stem for stem, one in known.items() if one.get("cores"))
    vendor, has = facts.get("vendor", "nvidia"), facts.get("capability", 0.0)
    alike = [stem for stem, one in known.items() if one["vendor"] == vendor]
    older = [stem for stem in alike if known[stem].get("capability", 0.0) <= has] or alike
    return max(older, key=lambda stem: _known_of(known[stem]))


def _known_of(record: Mapping[str, Any]) -> tuple[float, bool, float]:
    return record.get("capability", 0.0), record.get("calibrated", False), -record.get("doubt", 0.0)


def _fit_gemm(found: dict[str, Any], rows: list[Any]) -> tuple[dict[str, Any], float]:
    tiles = found["gemm"]["tiles"]
    measured = np.array([us for *_, us in rows])
    names = np.array([t for t, *_ in rows])
    m, n, k = np.array([row[1:4] for row in rows], dtype=float).T

    def group(x: np.ndarray) -> dict[str, Any]:
        shares = [{**tile, "efficiency": float(share)} for tile, share in zip(tiles, x[3:], strict=True)]
        return {"overhead_us": float(x[0]), "bandwidth": float(x[1]), "extra_k": float(x[2]), "tiles": shares}

    def model(x: np.ndarray) -> np.ndarray:
        hw = msgspec.convert({**found, "gemm": group(x)}, Hardware)
        us = np.empty(len(rows))
        for dtype in np.unique(names):
            of = names == dtype
            us[of] = 1e6 * roofline.gemm(hw, m[of], n[of], k[of], str(dtype))
        return us

    start = [found["gemm"]["overhead_us"], 0.8, 50.0, *[0.9] * len(tiles)]
    low = [0.1, 0.05, 0.1, *[0.2] * len(tiles)]
    x, error = _fit(model, start, measured, low, [200.0, 10.0, 2000.0, *[1.0] * len(tiles)])
    return group(x), error


def _fit_attention(found: dict[str, Any], rows: list[Any]) -> tuple[dict[str, Any], float]:
    batch, heads, length, dim, us, both = np.array(rows, dtype=float).T
    trained = both > us
    backward = float(np.median(2.5 * us[trained] / (both[trained] - us[trained])))

    def group(x: np.ndarray) -> dict[str, float]:
        names = ("overhead_us", "efficiency", "half_length")
        return {**dict(zip(names, map(float, x), strict=True)), "backward": backward}

    def model(x: np.ndarray) -> np.ndarray:
        hw = msgspec.convert({**found, "attention": {**found["attention"], **group(x)}}, Hardware)
        return 1e6 * roofline.flash(hw, batch, heads, length, length, dim, "bf16")

    x, error = _fit(model, [10.0, 0.3, 100.0], us, [0.1, 1e-3, 1.0], [1e3, 2.0, 5e3])
    return group(x), error


def _island(rows: list[Any], copy_gb_s: float, cpu: bool) -> dict[str, Any]:
    """The record's constants of the links inside a node: latencies from the smallest message, and bus bandwidths (bytes
    that each rank must move, per second) from the largest."""
    worlds = sorted({world for _, world, _, _ in rows}) or [2]
    passes = {"all_reduce": 2.0, "all_gather": 1.0, "reduce_scatter": 1.0, "all_to_all": 1.0}

    def curve(name: str, of: list[int]) -> dict[str, list[float]]:
        latency, bus = [], []
        for world in of:
            found = sorted((size, us) for what, w, size, us in rows if what == name and w == world)
            # An operation that the backend lacks is assumed to take half as long as an all-reduce.
            if not found and name != "all_reduce" and rows:
                found = sorted((size, us / 2) for what, w, size, us in rows if what == "all_reduce" and w == world)
            if not found:
                found = [(1, 0.0), (2**20, 2**20 / copy_gb_s * 1e-3)]
            (_, first), (size, last) = found[0], found[-1]
            moved = size * (passes[name] * (world - 1) / world if name in passes else 1.0)
            latency.append(float(first))
            bus.append(float(moved / max(last - first, last / 10) * 1e-3))
        return {"latency_us": latency, "bus_gb_s": bus}

    kind = "gloo" if cpu else "NVLink" if curve("all_reduce", worlds)["bus_gb_s"][0] > 60 else "PCIe"
    curves = {name: curve(name, worlds) for name in passes} | {"send": curve("send", [2])}
    here = {"peers": True, "ring_gb_s": 0.0}  # with these values, the curves are used unchanged
    return {"kind": kind, "ranks": worlds, **curves, "inside_us": [0.0] * len(worlds), **here}


def fit_serving(groups: Groups, hardware: Found) -> tuple[Found, dict[str, float]]:
    """(constants by group, as in serving_device.ServingDevice; group → mean relative error). The constants of
    mixture-of-experts layers and of the engine's CPU work can only be measured with vLLM, so they are taken from the
    most similar record."""
    sms, tflops, gb_s = hardware["multiprocessors"], hardware["peak_tflops"]["bf16"], hardware["memory_gb_s"]
    m, n, k, us = np.array([row[1:] for row in groups["gemm"] if row[0] == "bf16"], dtype=float).T
    product, gemm_error = _fit(
        lambda x: op.gemm_us(op.ServingGemm(*x), sms, m, n, k, 2.0),
        [5.0, tflops * 0.8, gb_s * 0.8, 3.0, 1.3],
        us,
        [0.1, tflops / 20, gb_s / 20, 1.0, 1.0],
        [200.0, tflops * 1.2, gb_s * 10, 8.0, 3.0],  # the upper bound 10 × gb_s allows for weights in a cache
    )
    batch, heads, context, dim, us = np.array(groups["decode"], dtype=float).T
    one, decode_error = _fit(
        lambda x: op.decode_us(op.Decode(x[0], x[1], 1e-9, x[2]), batch, batch * context, heads * dim * 4, 1.0),
        [20.0, gb_s / 2, 1.0],
        us,
        [0.1, gb_s / 100, 1e-3],
        [500.0, gb_s * 4, 100.0],
    )
    batch, heads, length, dim, us, _ = np.array(groups["prefill"], dtype=float).T
    pairs = batch * length * (length + 1) / 2
    new, prefill_error = _fit(
        lambda x: op.prefill_us(
            op.Prefill(x[0], x[1], x[2], x[3], gb_s), sms, batch, batch * length, pairs, heads, dim, heads * dim * 4
        ),
        [20.0, tflops / 4, 0.5, 0.1],
        us,
        [0.1, tflops / 100, 1e-3, 1e-3],
        [500.0, tflops * 1.2, 6.0, 1.0],
    )
    share = hardware["elementwise"]
    constants = {
        "gemm": _named(op.ServingGemm, product),
        "elementwise": {"overhead_us": share["overhead_us"], "gb_s": gb_s * share["norm_bandwidth"]},
        "decode": _named(op.Decode, [one[0], one[1], 1e-9, one[2]]),
        "prefill": _named(op.Prefill, [*new, gb_s]),
        "all_reduce": _all_reduce(hardware["island"]),
    }
    return constants, {"gemm": gemm_error, "decode": decode_error, "prefill": prefill_error}


def _all_reduce(island: dict[str, Any]) -> dict[str, Any]:
    sizes = [2**e for e in range(12, 28, 2)]
    curve = island["all_reduce"]
    table: dict[str, Any] = {"bytes": sizes}
    for i, world in enumerate(island["ranks"]):
        moved = 2 * (world - 1) / world
        table[f"gpus_{world}_us"] = [curve["latency_us"][i] + 1e-3 * s * moved / curve["bus_gb_s"][i] for s in sizes]
    return table


def _named(kind: Any, values: Any) -> dict[str, float]:
    return dict(zip(kind.__struct_fields__, map(float, values), strict=True))


def _fit(
    model: Callable[[np.ndarray], np.ndarray],
    start: list[float],
    measured: np.ndarray,
    low: list[float],
    high: list[float],
) -> tuple[np.ndarray, float]:
    """(constants, mean relative error of the fit). Minimizes a robust loss of log(model / measured), within bounds."""
    from scipy.optimize import least_squares

    def residuals(logs: np.ndarray) -> np.ndarray:
        return np.log(model(np.exp(logs))) - np.log(measured)

    inside = np.clip(start, np.array(low) * 1.01, np.array(high) * 0.99)
    bounds = (np.log(low), np.log(high))
    found = least_squares(residuals, np.log(inside), bounds=bounds, loss="soft_l1", f_scale=0.1)
    return np.exp(found.x), float(np.mean(np.abs(np.expm1(residuals(found.x)))))
