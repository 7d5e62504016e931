"""The analytic serving simulator: throughput and latencies of inference engines from shapes, load and measured kernels.

A few configurations are simulated by events (events.py), many by the fluid model (fluid.py); step times agree."""

from collections.abc import Callable, Hashable, Mapping, Sequence
from functools import cached_property, partial
from typing import Any, NamedTuple

import numpy as np

from autoscout.job.metrics import DEVICES, HIGHEST_RATE, LATENCIES, MORE_IS_BETTER, SERVING_METRICS
from autoscout.job.words import listed
from autoscout.simulate.combinations import Combinations
from autoscout.simulate.encode import software_of
from autoscout.simulate.member import Columns, Prediction
from autoscout.simulate.serving import fleet_run, speculation, unsaid
from autoscout.simulate.serving.doubt import at_a_rate, fluid_error, own_error, prior_spread, swings
from autoscout.simulate.serving.engine_shapes import columns_at, numbers
from autoscout.simulate.serving.fleet_fluid import fleet_fluid
from autoscout.simulate.serving.fluid import fluid
from autoscout.simulate.serving.highest_rate import of_few, of_fleet, of_many
from autoscout.simulate.serving.latencies import FEWEST, QUANTILES, metrics_of_run, share_within
from autoscout.simulate.serving.one_replica import as_full, replica_run
from autoscout.simulate.serving.serving_device import device, has_constants
from autoscout.simulate.serving.setup import Setup, setup
from kb.records import Traffic

# Largest number of configurations to simulate event by event: under a sustained load, and as fixed batches (half a
# millisecond each). Larger sets use the fluid model.
EXACT, EXACT_BATCHES = 32, 4000
_LABELS = ("row", "source", "model", "why_not")  # columns without effect on times
_UNPRICED = frozenset({"cudagraph_mode"})  # knobs without effect on predictions

PER_DEVICE, PER_DOLLAR = "output_tokens_per_s_per_gpu", "usd_per_million_output_tokens"
_NOT_PREDICTED = ("kv_needed_tokens", "cpu_s", "joules_per_token")

_SIMULATED: dict[Any, dict[str, float]] = {}  # cache: metrics of simulated runs, by all inputs
_MOST_SIMULATED = 20_000  # limit of this cache
_LAST: dict[Any, "_Rows"] = {}  # cache of the last few rows, or of the last many
_MOST_LAST, _MOST_ROWS = 16, 1 << 15  # limits of this cache and of rows in it

# _QUEUED: metrics that include queueing. _SPEED: the metric whose error is taken as that of the engine's speed, which
# causes the error of the queueing. _OF_ARRIVALS: metrics that are limited by the arrival rate of an open load.
_QUEUED, _SPEED = ("ttft", "e2el"), "output_tokens_per_s"
_OF_ARRIVALS = ("requests_per_s", "output_tokens_per_s", "total_tokens_per_s", PER_DEVICE, PER_DOLLAR)
OTHERS = 0.3  # share of the mean correction that applies to frameworks and devices without measured rows
# Error of the number of devices. The number is exact, but weighting by inverse error requires an error above 0.
_COUNTED = 1e-3
_PRIOR_ROWS = 2.0  # measured rows that the prior correction of `_level` counts as


class ServingSimulator:
    """A Member (see member.py) for one metric of SERVING_METRICS (job/metrics.py), or "preemptions"."""

    name = "analytic-serving"

    def __init__(self, metric: str) -> None:
        self.metric = metric
        # Hash of framework and device (encode.software_of), None for all rows → (correction log(measured / predicted),
        # remaining error)
        self.levels: dict[float | None, tuple[float, float]] = {}
        # (framework, values of unstated columns) → log likelihood of the measured rows
        self.unsaid: dict[tuple[str, unsaid.Choice], float] = {}

    def applies(self, columns: Columns) -> str:
        missing = [name for name in ("layers", "hidden", "heads", "vocab", "gpu") if name not in columns]
        if missing:
            return f"the serving model needs {listed(missing)}"
        if not any(name in columns for name in ("traffic", "batch", "concurrency", "rate")):
            return "the serving model needs a load: traffic, batch, concurrency or rate"
        if self.metric not in SERVING_METRICS or self.metric in _NOT_PREDICTED:
            return f"the serving model does not predict {self.metric}"
        if self.metric == HIGHEST_RATE and not _limits(columns):
            return (
                "the highest request rate is defined by limits on latencies; add a limit such as 'ttft_p99_ms <= "
                "500' to the job's constraints"
            )
        if self.metric == PER_DOLLAR and "usd_per_hour" not in columns:
            return "the price of the devices is not known; set price_per_hour in cluster.nodes"
        kinds = _kinds(columns)
        if not any(map(has_constants, kinds)):
            return f"the serving model has no constants for {listed(kinds)}"
        return next(
            (why for why, refused in _refused(columns, np.ones(rows_of(columns))).items() if np.all(refused)), ""
        )

    def fit(self, columns: Columns, values: np.ndarray) -> None:
        """Learns a constant factor per framework and kind of device: the median log error of its rows, shrunk towards
        the share OTHERS of the factor of all rows. Frameworks and devices without rows get this share as their
        factor."""
        self.levels, self.unsaid = {}, {}
        if self.metric == DEVICES:
            return
        values, n = np.asarray(values, dtype=float), rows_of(columns)
        for group in unsaid.groups(columns, n):
            told = unsaid.evidence(self._of_choices(columns, group, np.ones(n)), values[group.rows])
            for choice, likely in zip(group.choices, told.tolist(), strict=True):
                key = group.framework, choice
                self.unsaid[key] = self.unsaid.get(key, 0.0) + likely
        with np.errstate(divide="ignore"):  # a rate of 0 means out of memory
            error = np.log(values) - np.log(self.predict(columns).value)
        known = np.isfinite(error)
        if not known.any():
            return
        error, software = error[known], np.broadcast_to(software_of(columns), known.shape)[known]
        levels: dict[float | None, tuple[float, float]] = {None: self._level(error, 0.0)}
        for which in np.unique(software).tolist():
            levels[which] = self._level(error[software == which], levels[None][0] * OTHERS)
        self.levels = levels

    def _level(self, error: np.ndarray, prior: float) -> tuple[float, float]:
        rows = len(error)
        bias = (rows * float(np.median(error)) + _PRIOR_ROWS * prior) / (rows + _PRIOR_ROWS)
        squares = _PRIOR_ROWS * prior_spread(self.metric) ** 2 + ((error - bias) ** 2).sum()
        return bias, float(np.sqrt(squares / (rows + _PRIOR_ROWS) * (1 + 1 / (rows + _PRIOR_ROWS))))

    def predict(self, columns: Columns) -> Prediction:
        """The metric; NaN where the model does not apply (unknown device, draft model), inf (0 for rates) where the
        weights or one request do not fit. `parts`: components of a mean decode step in milliseconds."""
        some, of = _each_once(columns)
        each = self._mixed(some, np.bincount(of))
        parts = {name: values[of] for name, values in each.parts.items()}
        return Prediction(value=each.value[of], error=each.error[of], parts=parts)

    def _mixed(self, columns: Columns, counts: np.ndarray) -> Prediction:
        """Like `_predict`, but rows that state no release or no KV cache format are predicted as a mixture over the
        possible ones (unsaid.py)."""
        whole = self._predict(columns, counts)
        for group in unsaid.groups(columns, len(counts)):
            own = np.array([self.unsaid.get((group.framework, choice), 0.0) for choice in group.choices])
            found = unsaid.mixed(self._of_choices(columns, group, counts), group.shares + own)
            whole.value[group.rows], whole.error[group.rows] = found.value, found.error
            for name, values in found.parts.items():
                whole.parts[name][group.rows] = values
        return whole

    def _of_choices(self, columns: Columns, group: unsaid.RowGroup, counts: np.ndarray) -> list[Prediction]:
        some = columns_at(columns, group.rows, len(counts))
        size = len(group.rows)
        filled = ({name: np.full(size, text) for name, text in choice} for choice in group.choices)
        return [self._predict({**some, **each}, counts[group.rows]) for each in filled]

    def _predict(self, columns: Columns, counts: np.ndarray) -> Prediction:
        """Predictions for stated or default software. `counts`: (n,) configurations that each row represents."""
        n = len(counts)
        value, error = np.full(n, np.nan), np.full(n, np.nan)
        parts = {name: np.full(n, np.nan) for name in ("weights", "attention", "communication", "host")}
        if np.any(np.asarray(columns.get("spec", "none"), dtype=str) != "none"):
            parts["guesses"] = np.zeros(n)
        gpus = np.broadcast_to(np.asarray(columns.get("gpu", ""), dtype=str), (n,))
        for kind in filter(has_constants, _kinds(columns)):
            rows = np.flatnonzero((gpus == kind) & _can_say(columns, kind, counts))
            if not len(rows):
                continue
            some = columns_at(columns, rows, n)
            found = evaluate(some, kind, counts[rows], self.metric)
            value[rows] = found.metrics[self.metric]
            for name in parts:
                parts[name][rows] = found.metrics.get(f"part:{name}", np.zeros(1)) * 1e3
            if self.metric == DEVICES:
                error[rows] = _COUNTED
                continue
            own = own_error(self.metric, some, found.metrics, kind, len(rows))
            if self.levels:
                bias, own = self._levels_of(some, own)
                value[rows] *= np.exp(bias)
            elif self.metric.startswith(_QUEUED):
                speed = partial(own_error, _SPEED, some, found.metrics, kind, len(rows))
                own = np.hypot(own, found.rows.swing(self.metric, speed))
            own = np.hypot(own, np.where(found.exact, 0.0, fluid_error(self.metric)))
            error[rows] = at_a_rate(own, found.metrics) if self.metric in _OF_ARRIVALS else own
        return Prediction(value=value, error=error, parts=parts)

    def _levels_of(self, columns: Columns, own: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """((n,) correction, (n,) error). `own`: the errors of rows whose framework and device have no measurements."""
        software = np.broadcast_to(software_of(columns), own.shape)
        bias, error = np.full(own.shape, self.levels[None][0] * OTHERS), own.copy()
        for which, (level, spread) in self.levels.items():
            if which is not None:
                bias[software == which], error[software == which] = level, spread
        return bias, error


class _Rows:
    """What the predictions of all metrics share for the same rows on one kind of device."""

    def __init__(self, columns: Columns, kind: str, n: int) -> None:
        self.columns, self.setup = columns, setup(columns, device(kind), n)
        self._swings: Callable[[str], np.ndarray] | None = None
        self._fluid: dict[str, np.ndarray] = {}

    @cached_property
    def averages(self) -> dict[str, np.ndarray]:
        """The fluid model's results without quantiles."""
        return fluid(self.setup, ())

    @cached_property
    def fleets(self) -> fleet_run.Fleets:
        return fleet_run.Fleets(self.columns, self.setup)

    def fluid(self, wanted: set[str] | None) -> dict[str, np.ndarray]:
        """The fluid model's results, with at least the wanted quantiles."""
        if not self._fluid or wanted is None or not wanted.intersection(LATENCIES) <= self._fluid.keys():
            self._fluid = fleet_fluid(self.columns, self.setup, wanted)
        return {name: values.copy() for name, values in self._fluid.items()}

    def swing(self, metric: str, speed: Callable[[], np.ndarray]) -> np.ndarray:
        if self._swings is None:
            self._swings = swings(self.setup, speed())
        return self._swings(metric)


class Evaluated(NamedTuple):
    """(n,) metrics and components by name; (n,) whether a row was simulated event by event."""

    metrics: dict[str, np.ndarray]
    exact: np.ndarray
    rows: _Rows


def evaluate(columns: Columns, kind: str, counts: np.ndarray, metric: str = "") -> Evaluated:
    """The metrics of n rows on one kind of device, each of which represents `counts` configurations."""
    n = len(counts)
    batches = numbers({} if "traffic" in columns else columns, "batch", 0.0, n) > 0
    exact = np.full(n, counts.sum() <= EXACT) | (batches & (counts[batches].sum() <= EXACT_BATCHES))
    if metric == HIGHEST_RATE and isinstance(traffic := columns.get("traffic"), Traffic) and traffic.sessions:
        # The short loads of the simulated search end before as many conversations are under way as the rate leads to.
        exact = np.zeros(n, dtype=bool)
    keys = _keys(columns, kind, n) if exact.any() else []
    rows = _rows(columns, kind, n)
    s = rows.setup
    if keys and exact.all() and metric not in ("", "goodput_rps", HIGHEST_RATE):
        found = {name: values.copy() for name, values in rows.averages.items()}
    else:
        found = rows.fluid(_quantiles(columns, metric))
    if metric in ("", "goodput_rps"):
        found["goodput_rps"] = found["goodput_rps"] * share_within(found, _slo(columns))
    found["kv_cache_tokens"] = s.memory.kv_tokens
    if metric == HIGHEST_RATE:
        found[metric] = _highest_rates(columns, rows, keys if exact.all() else [])
    else:
        for i in np.flatnonzero(exact).tolist():
            for name, value in _once(keys[i], partial(exactly, columns, s, i, rows.fleets)).items():
                found.setdefault(name, np.full(n, np.nan))[i] = value
    found.setdefault(metric, np.full(n, np.nan))
    found |= _per_device(columns, s, found["output_tokens_per_s"])
    refused = (s.version == 1) & ~s.chunked & (s.input_len > s.batched_tokens)
    fails = refused | (s.memory.kv_tokens < np.minimum(s.input_len + s.output_len, 1e12))
    for name in found:
        if name.startswith("part:") or name == "peak_memory_gib":
            continue
        worst = 0.0 if name.endswith(MORE_IS_BETTER) else np.inf
        found[name] = np.where(fails, worst, found[name])
    return Evaluated(found, exact, rows)


def _rows(columns: Columns, kind: str, n: int) -> _Rows:
    """Keeps the rows of the last few calls, which are those of other metrics; of many rows, those of the last call."""
    if n > _MOST_ROWS:
        return _Rows(columns, kind, n)
    arrays = {name: np.asarray(v) for name, v in columns.items() if name not in _LABELS}
    key = (kind, n, *((k, str(v) if v.dtype == object and not v.shape else _content(v)) for k, v in arrays.items()))
    if key not in _LAST:
        if n > EXACT or len(_LAST) >= _MOST_LAST:
            _LAST.clear()
        _LAST[key] = _Rows(columns, kind, n)
    return _LAST[key]


def _content(values: np.ndarray) -> Hashable:
    return (values.dtype.str, tuple(values.tolist()) if values.dtype == object else values.tobytes())


def _quantiles(columns: Columns, metric: str) -> set[str] | None:
    """Names of the latency quantiles that a metric needs; None: all."""
    if not metric:
        return None
    if metric == "goodput_rps":
        return {f"{name}_{p}_ms" for name in _slo(columns) for p in QUANTILES}
    return {metric}


def _per_device(columns: Columns, s: Setup, tokens_per_s: np.ndarray) -> dict[str, np.ndarray]:
    """Metrics per device and per dollar, computed as for experiments (targets/vllm/load_plan.py)."""
    n = len(tokens_per_s)
    own = s.engine.tp * s.engine.pp * s.replicas + numbers(columns, "prefill", 0.0, n)
    dollars = numbers(columns, "usd_per_hour", np.nan, n)
    used = numbers(columns, "devices_used", own, n)
    with np.errstate(divide="ignore"):
        return {
            DEVICES: used,
            PER_DEVICE: tokens_per_s / used,
            PER_DOLLAR: dollars / 3600 / tokens_per_s * 1e6,
        }


def _keys(columns: Columns, kind: str, n: int) -> list[Any]:
    """(n,) cache keys, which contain all inputs of a configuration's simulation."""
    arrays = {name: np.asarray(v) for name, v in columns.items() if name not in _LABELS}
    own = {name: v for name, v in arrays.items() if v.shape == (n,)}
    alike = (kind, *sorted((name, str(v)) for name, v in arrays.items() if v.shape != (n,)))
    numbers = [name for name, v in own.items() if v.dtype.kind in "fiub"]
    words = [own[name].tolist() for name in own if name not in numbers]
    table = np.array([own[name].astype(float) for name in numbers]).reshape(len(numbers), n).T.copy()
    return [(alike, tuple(numbers), row.tobytes(), *(w[i] for w in words)) for i, row in enumerate(table)]


def _once(key: Any, run: Callable[[], dict[str, float]]) -> dict[str, float]:
    """The result of `run()`, cached because ensembles predict the same rows repeatedly, one metric after another."""
    if key not in _SIMULATED:
        if len(_SIMULATED) >= _MOST_SIMULATED:
            _SIMULATED.clear()
        _SIMULATED[key] = run()
    return _SIMULATED[key]


def _highest_rates(columns: Columns, rows: _Rows, keys: Sequence[Any]) -> np.ndarray:
    """(n,) the highest rates within the limits. `keys`: of all rows, if they are to be simulated; else empty."""
    limits, traffic, s = _limits(columns), columns.get("traffic"), rows.setup
    if not keys or not isinstance(traffic, Traffic):
        return of_many(s, limits, columns)
    fleets, rates = rows.fleets, np.full(len(keys), np.nan)
    whole = fleets.whole
    rates[~whole] = of_few(traffic, s.of(np.flatnonzero(~whole)), limits)
    for i in np.flatnonzero(whole).tolist():
        found = _once((HIGHEST_RATE, keys[i]), lambda i=i: {HIGHEST_RATE: of_fleet(traffic, fleets, i, limits)})
        rates[i] = found[HIGHEST_RATE]
    return rates


def exactly(columns: Columns, s: Setup, i: int, fleets: fleet_run.Fleets | None = None) -> dict[str, float]:
    """Metrics of configuration i from the event simulation of one replica, or of a whole fleet."""
    fleets = fleets or fleet_run.Fleets(columns, s)
    replicas = as_full(float(max(s.batch[i], s.concurrency[i])), max(int(s.replicas[i]), 1))
    if fleets.whole[i]:
        run, replicas = fleets.run(i), 1.0
        if run is None:
            return {name: 0.0 if name.endswith(MORE_IS_BETTER) else np.inf for name in SERVING_METRICS}
    else:
        run = replica_run(columns.get("traffic"), s, i)
    found = metrics_of_run(run, replicas, _slo(columns)) if run else {}
    if found:
        found["goodput_rps"] = max(found["goodput_rps"], FEWEST * found["requests_per_s"])
    if run and found and s.batch[i] > 0:  # offline benchmarks time the whole batch
        whole = float(np.nanmax(run.end_s)) * 1e3
        found |= {name: whole for name in found if name.startswith("e2el_")}
        if numbers(columns, "batch_timed", 0, len(s.batch))[i] > 0:
            first = float(np.nanmax(run.first_s)) * 1e3
            each = (whole - first) / max(float(s.output_len[i]) - 1, 1)
            found |= {name: first for name in found if name.startswith("ttft_")}
            found |= {name: each for name in found if name.startswith(("tpot_", "itl_"))}
    return found


def rows_of(columns: Columns) -> int:
    return max((np.size(v) for name, v in columns.items() if isinstance(v, np.ndarray)), default=1)


def _each_once(columns: Columns) -> tuple[dict[str, Any], np.ndarray]:
    """(columns with one row per distinct combination, (n,) index of each row's combination), ignoring _UNPRICED. Lists
    are values that all rows share."""
    own = [name for name, value in columns.items() if isinstance(value, np.ndarray)]
    some, of = Combinations(columns, [name for name in own if name not in _UNPRICED]).of()
    return {**{name: value for name, value in columns.items() if name not in own}, **some}, of


def _kinds(columns: Columns) -> list[str]:
    return np.unique(np.asarray(columns["gpu"], dtype=str)).tolist()


def _can_say(columns: Columns, kind: str, counts: np.ndarray) -> np.ndarray:
    known = np.broadcast_to(np.asarray(columns.get("why_not", ""), dtype=str) == "", counts.shape)
    for refused in _refused({**columns, "gpu": kind}, counts).values():
        known = known & ~refused
    return known


def _refused(columns: Columns, counts: np.ndarray) -> dict[str, np.ndarray]:
    """Reason why rows cannot be predicted → (n,) mask of these rows. Each row represents `counts` configurations."""
    n = len(counts)
    cache = np.broadcast_to(np.asarray(columns.get("kv_cache_dtype", "auto"), dtype=str), (n,))
    kinds = {
        kind
        for kind in filter(has_constants, _kinds(columns))
        if "fp8" not in device(kind).formats and not device(kind).cpu
    }
    plain = np.isin(np.asarray(columns["gpu"], dtype=str), [*kinds]) & np.char.startswith(cache, "fp8")
    return {
        **speculation.refused(columns, n),
        (
            f"the cost of an 8-bit KV cache is unknown on {listed(sorted(kinds))}, because these devices have no "
            "8-bit arithmetic"
        ): plain,
    }


def _slo(columns: Columns) -> Mapping[str, float]:
    return {name: float(columns[f"slo_{name}_ms"]) for name in ("ttft", "tpot", "e2el") if f"slo_{name}_ms" in columns}


def _limits(columns: Columns) -> Mapping[str, float]:
    return {metric: float(columns[f"limit_{metric}"]) for metric in LATENCIES if f"limit_{metric}" in columns}
