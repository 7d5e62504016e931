"""The error of serving predictions without measurements of the job, as the standard deviation of log(measured /
predicted), called log error below. Its components are assumed to be independent, so their squares add up.

docs/lab/simulators-serving.md (widths) lists the public runs that the constants were fitted to, and the coverage of the
intervals on other runs."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import cache
from typing import Any

import msgspec
import numpy as np
from scipy.special import ndtr

from autoscout.job.device_names import stem_of
from autoscout.simulate.hardware.device import all_hardware
from autoscout.simulate.hardware.power_limit import doubt
from autoscout.simulate.member import Columns
from autoscout.simulate.serving import fleet_run, latents, speculation
from autoscout.simulate.serving.engine_shapes import numbers
from autoscout.simulate.serving.fluid import solved
from autoscout.simulate.serving.served_by import engines_of, strange_releases
from autoscout.simulate.serving.serving_device import device
from autoscout.simulate.serving.setup import Setup
from kb.sizes import ONLY_EXPERTS

# Log error by metric, measured on held-out models by tests/tools/serving_accuracy.py.
_SPREAD = {"ttft": 0.25, "tpot": 0.085, "itl": 0.085, "e2el": 0.085, "tokens": 0.085, "memory": 0.05, "max": 0.085}
# Log error of the fluid model relative to event simulation, first for means and medians, then for quantiles from p90.
_FLUID = {"ttft": 0.35, "tpot": 0.15, "itl": 0.15, "e2el": 0.15, "tokens": 0.07, "memory": 0.0, "max": 0.2}
_FLUID_TAIL = {"ttft": 0.40, "tpot": 0.25, "itl": 0.50, "e2el": 0.35}
_OTHER_HOST = 0.115  # log error if host overheads are copied from another device's record (H100)
_SCALED = 0.15  # log error if constants of kernels are scaled from another device's record
_GUESSED = 0.15  # log error of speculative decoding, whose acceptance varies with the position; assumed, not measured
_MIXTURE = 0.10  # log error of MoE models
# Log error of a release later than `Family.read_until` (the last examined release). Releases of vLLM a year apart
# differ by 6 to 20 % in time per token (Llama-3.3-70B in FP8, 120 rows).
_STRANGE_RELEASE = 0.1
# Log error of an open load's throughput if the engine answers all requests, because random arrivals vary.
_ARRIVALS = 0.03
# Log error of the part of a step that depends on the host. It applies to the share in which the device waits for the
# host, because hosts of the same GPU differ by a factor of three (Qwen2.5-0.5B, 32 users of vLLM 0.7 on A100, A800 and
# RTX 4090). It also applies to the share of communication over the host's links, whose bandwidth differs by a factor of
# two (6 GB/s are assumed between two RTX 4090, but one measured pair behaved like 3 GB/s).
_HOSTS = 0.5
_OF_HOST_GB_S = 60.0  # bus bandwidth in GB/s below which devices must communicate over the host, since NVLink is faster


def prior_spread(metric: str) -> float:
    return _of(_SPREAD, metric)


def stated_error(metric: str, kind: str) -> float:
    """Log error of a metric on a kind of device, including that of constants borrowed from another device's record."""
    return float(np.hypot(_of(_SPREAD, metric), _borrowed(kind)))


def fluid_error(metric: str) -> float:
    """Log error of the fluid model relative to event simulation."""
    tail = metric.endswith(("_p90_ms", "_p95_ms", "_p99_ms"))
    return _of(_FLUID_TAIL if tail else _FLUID, metric)


def own_error(metric: str, columns: Columns, found: Mapping[str, np.ndarray], kind: str, n: int) -> np.ndarray:
    """(n,) log errors of a metric. `found`: predictions for the same rows, with the components of a decode step."""
    parts = {
        "calibrated": np.full(n, stated_error(metric, kind)),
        "device": np.full(n, all_hardware()[stem_of(kind)].doubt),
        "software": _of_software(metric, columns, n),
        "power": doubt(numbers(columns, "power_cap", 100.0, n) / 100),
        "guesses": np.where(speculation.speculation(columns, n).guesses > 0, _GUESSED, 0.0),
        "pools": np.where(fleet_run.apart(columns, n), fleet_run.ERROR, 0.0),
        "files": np.where(fleet_run.on_disk(columns, n), fleet_run.FILES_ERROR, 0.0),
        "latents": np.where(numbers(columns, "kv_lora_rank", 0.0, n) > 0, latents.ERROR, 0.0),
        "host": _HOSTS * _of_host(columns, found, kind, n),
    }
    return np.sqrt(sum(part**2 for part in parts.values()))


def _of_host(columns: Columns, found: Mapping[str, np.ndarray], kind: str, n: int) -> np.ndarray:
    """(n,) share of a mean decode step that depends on the host, because the device waits for it or communicates over
    its links. In fixed batches, waits are assumed to be certain, except with `eager` (kernels launched one by one)."""
    parts = {name: np.nan_to_num(values) for name, values in found.items() if name.startswith("part:")}
    whole = np.maximum(sum(parts.values()), 1e-12)
    known = (numbers(columns, "batch", 0.0, n) > 0) & ~(numbers(columns, "eager", 0.0, n) > 0)
    waits = np.where(known, 0.0, parts["part:host"] / whole)
    linked = max(device(kind).island.all_reduce.bus_gb_s) < _OF_HOST_GB_S
    return waits + (parts["part:communication"] / whole if linked else 0.0)


def _of_software(metric: str, columns: Columns, n: int) -> np.ndarray:
    """(n,) log error from the engine's release, the type of load and the type of model."""
    own = engines_of(columns, n).own
    arrive = numbers(columns, "batch", 0.0, n) == 0
    served = own(lambda e: _of(msgspec.structs.asdict(e.doubt), metric))
    # In tables, "" means that a row names no engine. The engine of a job, which lacks this column, is known.
    unnamed = np.asarray(columns.get("framework", "own"), dtype=str) == ""
    batches = np.hypot(own(lambda e: e.doubt.batches), np.where(unnamed, own(lambda e: e.doubt.unnamed), 0.0))
    other = np.where(arrive, own(lambda e: e.doubt.arrivals), batches)
    mixture = np.where(numbers(columns, "experts", 0.0, n) > 0, _MIXTURE, 0.0)
    format_, stored = (np.asarray(columns.get(name, ""), dtype=str) for name in ("quantization", "stored"))
    four_bits = np.isin(format_, ONLY_EXPERTS) | np.isin(stored, ONLY_EXPERTS)
    mixture = np.hypot(mixture, np.where(four_bits, own(lambda e: e.doubt.mxfp4), 0.0))
    latent = numbers(columns, "kv_lora_rank", 0.0, n) > 0
    mixture = np.hypot(mixture, np.where(latent, own(lambda e: e.doubt.latents), 0.0))
    strange = np.where(strange_releases(columns, n) != "", _STRANGE_RELEASE, 0.0)
    return np.sqrt(other**2 + np.where(arrive, served, 0.0) ** 2 + mixture**2 + strange**2)


def swings(s: Setup, speed: np.ndarray) -> Callable[[str], np.ndarray]:
    """A function from a latency to its (n,) change in the log if the engine's speed is off by the log error `speed`; 0
    for closed loops and fixed batches. Near saturation, waits grow several-fold if an engine is slightly slower."""
    n, opened = len(speed), s.rate > 0
    if not np.any(opened):
        return lambda _: np.zeros(n)
    both = s.of(np.tile(np.arange(n), 2))
    found = solved(replace(both, rate=both.rate * np.exp(np.concatenate([speed, -speed]))))

    @cache
    def swing(metric: str) -> np.ndarray:
        values = found({metric})[metric]
        with np.errstate(invalid="ignore", divide="ignore"):
            change = np.log(values[:n] / values[n:]) / 2
        return np.where(opened, np.nan_to_num(change, nan=0.0, posinf=0.0), 0.0)

    return swing


def at_a_rate(error: np.ndarray, found: Mapping[str, np.ndarray]) -> np.ndarray:
    """(n,) log error of an open load's throughput, which arrivals limit from above: the standard deviation of min(0,
    room + z), where room = log(capacity / arrival rate) and z ~ N(0, error). Only the share `ending` of the time, after
    the last arrival, scales fully with the engine's speed."""
    load = np.nan_to_num(found.get("load", np.ones(1)), nan=1.0)  # 1 for closed loops and batches
    ending = np.nan_to_num(found.get("ending", np.zeros(1)))
    room = -np.log(np.clip(load, 1e-9, 1e9))
    short, density = ndtr(-room / error), np.exp(-((room / error) ** 2) / 2) / np.sqrt(2 * np.pi)
    mean = room * short - error * density
    square = (room**2 + error**2) * short - room * error * density
    limited = np.sqrt(np.maximum(square - mean**2, _ARRIVALS**2))
    return np.where(load == 1, error, np.minimum(np.hypot(limited, ending * error), np.maximum(error, limited)))


def _borrowed(kind: str) -> float:
    """Log error of constants that are taken from another device; 0 if that device has the same kernels and host."""
    borrowed = [] if device(kind).same else device(kind).borrowed
    return _SCALED if "gemm" in borrowed else _OTHER_HOST if "host" in borrowed else 0.0


def _of(table: Mapping[str, Any], metric: str) -> float:
    kind = metric.split("_", 1)[0]
    return table[kind] if kind in table else table["memory" if "memory" in metric else "tokens"]
