"""The analytic memory model: peak GiB of the fullest rank, and the probability that it does not fit.

rank_memory.py counts the bytes on a rank. This file corrects the counts by measurements, averages them over possible
software profiles (software.py), and compares them with the device's memory. Predictions are of the memory that the
framework allocates; overheads beyond it (context, fragmentation) affect only the probability of running out of
memory."""

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from autoscout.simulate.combinations import Combinations, at
from autoscout.simulate.encode import length
from autoscout.simulate.hardware.device import Hardware, hardware, usable_gib
from autoscout.simulate.member import Columns, Prediction
from autoscout.simulate.training.fleet import Fleet, depths, devices, fleets, read
from autoscout.simulate.training.inputs import REQUIRED, TIMES_ONLY, Inputs, by_precision, coded, complete
from autoscout.simulate.training.rank_memory import (
    GIB,
    PARTS,
    all_with_experts,
    of_stage,
    peak,
    rank_bytes,
)
from autoscout.simulate.training.software import (
    Variant,
    evidence,
    expected,
    mixed,
    probabilities,
    settled,
    stacked,
    variants,
)
from kb.records import Configuration, Job

Array = np.ndarray
FRAGMENTATION = 0.02  # share of the allocated peak that the caching allocator loses to fragmentation
ERROR = 0.05  # standard deviation of log(measured / predicted) on held-out rows
UNSEEN = 0.12  # like ERROR, but for unknown software; chosen to fit the 13B runs of one published sweep
# fragmentation of unknown software, in addition to FRAGMENTATION; 59 published runs of Mist reserve 3 to 18 % more than
# they allocate
UNSEEN_FRAGMENTS = 0.06
# Like ERROR and UNSEEN_FRAGMENTS, for Hugging Face Transformers' modules, whose loss makes more or fewer copies
# depending on the version. 19 runs on an H100 reserved 1 to 13 % more than they allocated; those that allocated 97 % of
# the memory reserved only 3 % more.
HUB, HUB_FRAGMENTS = 0.08, 0.02
LIKELY = 0.02  # software profiles with a smaller weight are ignored by `oom_range`
CAUTION = 0.5  # a configuration fits if its out-of-memory probability is at most this
_BLOCK = 1 << 13  # rows per block, so that temporary arrays of all profiles stay in the processor's cache
CPU_PROCESS_GIB = 0.28  # taken by Python, torch and Megatron-core on a CPU rank; measured


class Memory:
    """The memory model, a Member for peak_memory_gib. `device`: the default for rows that name no device."""

    name = "memory"

    def __init__(self, device: str = "") -> None:
        self.device = device
        self.margin = 0.0  # log of the factor on predicted peaks that `fit` learns
        self.squares, self.told = 0.0, 0  # sum and number of squared log residuals after the correction by `margin`
        self.software: dict[str, float] = {}  # log likelihood of each software profile, given the job's measurements

    @classmethod
    def of_job(cls, job: Job) -> "Memory":
        return cls(job.cluster.nodes[0].device)

    def applies(self, columns: Columns) -> str:
        missing = [name for name in REQUIRED if name not in columns]
        return f"this model needs {', '.join(missing)}" if missing else ""

    def fit(self, columns: Columns, values: np.ndarray) -> None:
        """Learns the likelihoods of the software profiles, then a common factor on the peaks with a prior error of
        ERROR. `values`: (n,) measured peaks in GiB; inf where a row ran out of memory, so that its peak exceeds the
        device's memory; 0 where a row ran without reporting its peak, which is then known to fit."""
        values = np.asarray(values, dtype=float)
        died, ran, seen = np.isposinf(values), values == 0, np.isfinite(values) & (values > 0)
        columns = settled(columns, self.device)
        some = variants(columns)
        if len(some) > 1:
            peaks = np.log(np.where(seen, values, np.nan))
            left = [
                np.select([died, ran], [np.maximum(-short, 0), np.maximum(short, 0)], peaks - np.log(total))
                for (total, _), short in zip(
                    self._raw_of_each(some, length(columns)), self._pressure_of_each(some, length(columns)), strict=True
                )
            ]
            self.software = evidence(some, left, 2 * ERROR)
        raw = np.log(self._mixed(columns)[0])
        seen &= np.isfinite(raw)
        residual = np.log(values[seen]) - raw[seen]
        self.margin = float(residual.sum() / (len(residual) + 1)) if len(residual) else 0.0
        self.squares, self.told = float(np.sum((residual - self.margin) ** 2)), len(residual)
        # The log factor with which a row's predicted peak just fits is a lower bound on `margin` if the row ran out of
        # memory, and an upper bound if it ran.
        just = -self._pressure(columns)
        lowest, highest = np.fmax.reduce(just[died], initial=-np.inf), np.fmin.reduce(just[ran], initial=np.inf)
        wanted = (lowest + highest) / 2 if lowest > highest else np.clip(self.margin, lowest, highest)
        self.margin = float(np.clip(wanted, self.margin - 2 * ERROR, self.margin + 2 * ERROR))

    def predict(self, columns: Columns) -> Prediction:
        columns = settled(columns, self.device)

        def of_some(some: Columns) -> tuple[Array, ...]:
            raw, between, parts = self._mixed(some)
            return raw, np.hypot(self._spread(variants(some)), between), *(parts[name] for name in PARTS)

        raw, error, *parts = _of_each(columns, of_some)
        factor = np.exp(self.margin)
        each = {name: factor * part for name, part in zip(PARTS, parts, strict=True)}
        return Prediction(value=factor * raw, error=error, parts=each)

    def oom_probability(self, columns: Columns) -> Array:
        """(n,) probability that a row runs out of memory on one of its devices; NaN for unknown devices."""

        def mean(some: Columns) -> tuple[Array]:
            chances, weights = self._chances(some)
            return ((weights * chances).sum(axis=0),)

        return _of_each(settled(columns, self.device), mean)[0]

    def oom_range(self, columns: Columns) -> tuple[Array, Array]:
        """((n,) lowest, (n,) highest) out-of-memory probability of the software profiles with a weight of at least
        LIKELY. All rows of a trainer have the same, unknown profile; `oom_probability` averages over profiles."""

        def least_and_most(some: Columns) -> tuple[Array, Array]:
            chances, weights = self._chances(some)
            likely = weights >= LIKELY
            return np.where(likely, chances, 1.0).min(axis=0), np.where(likely, chances, 0.0).max(axis=0)

        lowest, highest = _of_each(settled(columns, self.device), least_and_most)
        return lowest, highest

    def _chances(self, columns: Columns) -> tuple[Array, Array]:
        """(out-of-memory probabilities, weights), (profiles, n) each."""
        some = variants(columns)
        spread = self._spread(some)
        each = self._pressure_of_each(some, length(columns))
        more = np.where(self._unknown(some), UNSEEN_FRAGMENTS, np.where(_of_hub(some), HUB_FRAGMENTS, 0.0))
        chances = np.array([chance_beyond((pressure + self.margin + more) / spread) for pressure in each])
        return chances, probabilities(self._shares(some), chances.shape[1])

    def _spread(self, some: list[Variant]) -> Array:
        """(n,) or (1,) standard deviation of log(measured / predicted). It is larger for software without a record, and
        shrinks with measured peaks of the job."""
        before = np.where(self._unknown(some), UNSEEN, np.where(_of_hub(some), HUB, ERROR))
        return np.sqrt((4 * before**2 + self.squares) / (4 + self.told))

    def _unknown(self, some: list[Variant]) -> Array:
        """(n,) or (1,) bool: whether a row's software is unknown."""
        weights = probabilities([each.log_share for each in some], max(len(each.log_share) for each in some))
        return expected(weights, [each.unseen for each in some]) > 0

    def _shares(self, some: list[Variant]) -> list[Array]:
        return [each.log_share + self.software.get(each.name, 0.0) for each in some]

    def _mixed(self, columns: Columns) -> tuple[Array, Array, dict[str, Array]]:
        """((n,) GiB averaged over software profiles, (n,) standard deviation of log(GiB) over profiles, parts)."""
        some = variants(columns)
        each = self._raw_of_each(some, length(columns))
        if len(each) == 1:
            return each[0][0], np.zeros(len(each[0][0])), each[0][1]
        value, between, weights = mixed([total for total, _ in each], self._shares(some))
        parts = {name: sum(w * parts[name] for w, (_, parts) in zip(weights, each, strict=True)) for name in PARTS}
        scale = value / np.sum(list(parts.values()), axis=0)
        return value, between, {name: scale * part for name, part in parts.items()}

    def _pressure(self, columns: Columns) -> Array:
        """(n,) log(needed / available memory), averaged over software profiles."""
        some = variants(columns)
        each = self._pressure_of_each(some, length(columns))
        return each[0] if len(each) == 1 else np.log(mixed([np.exp(p) for p in each], self._shares(some))[0])

    def _raw_of_each(self, some: list[Variant], n: int) -> list[tuple[Array, dict[str, Array]]]:
        if len(some) == 1:
            return [self._raw(each.columns) for each in some]
        total, parts = self._raw(stacked(some, n))
        cuts = [slice(i * n, (i + 1) * n) for i in range(len(some))]
        return [(total[cut], {name: part[cut] for name, part in parts.items()}) for cut in cuts]

    def _pressure_of_each(self, some: list[Variant], n: int) -> list[Array]:
        if len(some) == 1:
            return [self._known_pressure(each.columns) for each in some]
        return np.split(self._known_pressure(stacked(some, n)), len(some))

    def filled(self, columns: Columns) -> Array:
        """(n,) needed / available memory on the rank with the largest ratio; NaN for unknown devices."""
        columns = settled(columns, self.device)
        return _of_each(columns, lambda some: (np.exp(self._pressure(some) + self.margin),))[0]

    def fits(self, columns: Columns) -> Array:
        """(n,) whether a row probably fits; False for unknown devices."""
        return self.oom_probability(columns) <= CAUTION

    def _known_pressure(self, columns: Columns) -> Array:
        """(n,) log(needed / available memory) on the rank with the largest ratio. On a mixed cluster this may be a
        later stage: it has fewer micro batches in flight, but perhaps smaller devices."""
        groups = [(rows, some, complete(some)) for rows, some in by_precision(columns)]
        pressure = np.full(sum(x.n for _, _, x in groups), np.nan)
        for rows, some, x in groups:
            for fleet in fleets(some, x.n, self.device):
                local = fleet.rows
                pressure[rows[local]] = _tightest(x.take(local), fleet.of(local))
        return pressure

    def _raw(self, columns: Columns) -> tuple[Array, dict[str, Array]]:
        groups = [(rows, some, complete(some)) for rows, some in by_precision(columns)]
        n = sum(x.n for _, _, x in groups)
        parts = {name: np.empty(n) for name in PARTS}
        on_cpu = any(hw is not None and hw.cores for hw in _hardware(columns, self.device))
        for rows, some, x in groups:
            for name, gib in peak(x).items():
                parts[name][rows] = gib
            for fleet in fleets(some, x.n, self.device):
                local = fleet.rows[np.any(np.array(fleet.told)[:, fleet.rows] > 0, axis=0)]
                if len(local):
                    for name, gib in _peak_of_unequal(x.take(local), fleet.of(local)).items():
                        parts[name][rows[local]] = gib
        if on_cpu or (not np.any(np.asarray(columns.get("cuda", True)))):
            parts["process"][:] = CPU_PROCESS_GIB
        return np.sum(list(parts.values()), axis=0), parts


def _of_hub(some: list[Variant]) -> Array:
    return np.atleast_1d(np.asarray(some[0].columns.get("hub", 0.0), dtype=float)) > 0


def _of_each(columns: Columns, ask: Callable[[Columns], tuple[Array, ...]]) -> list[Array]:
    """(n,) results of `ask`, called in blocks, with one row per combination of the columns that affect memory."""
    some, of = Combinations(columns, read(columns)).of(TIMES_ONLY)
    some, m = coded(some), int(of.max()) + 1
    blocks = [ask(at(some, slice(start, start + _BLOCK), m)) for start in range(0, m, _BLOCK)]
    return [np.concatenate(values)[of] for values in zip(*blocks, strict=True)]


def chance_beyond(deviations: Array) -> Array:
    """The distribution function of Student's t with four degrees of freedom, (1 + u)² (2 − u) / 4 with u = t / √(t² +
    4). Heavy tails are appropriate, because memory that the model omits (a workspace, a fragment) is either zero or
    large."""
    t = np.clip(deviations, -1e100, 1e100)
    s = np.sqrt(t**2 + 4)
    far = s + np.abs(t)
    beyond = np.where(t < 0, 4 / far, far) / s  # 1 + u, without cancellation
    return beyond**2 * (2 - t / s) / 4


def estimate_gib(attributes: Mapping[str, Any], configuration: Configuration) -> float:
    """Peak GiB of one configuration, given the attributes of its job's space."""
    columns = {name: value for name, value in attributes.items() if name != "degrees"} | configuration.knobs
    return float(Memory().predict(columns).value[0])


def _of_kinds(x: Inputs, fleet: Fleet) -> list[tuple[Hardware, Array, Array, Array]]:
    """(device, stated memory, index, layers) of the stages that may be fullest: the first on every kind of device, the
    first whose layers all have experts, and the last."""
    per_stage = x.gpus / x.pp
    found = []
    for kind, (hw, gib, layers) in enumerate(zip(fleet.kinds, fleet.gib, depths(x, fleet), strict=True)):
        begins = np.floor(sum(fleet.counts[:kind], np.zeros(x.n)) / per_stage + 1e-9)
        found.append((hw, gib, np.minimum(begins, x.pp - 1), layers))
    last = found[-1]
    if np.any(x.dense_layers):
        found.append((fleet.kinds[0], fleet.gib[0], all_with_experts(x), found[0][3]))
    return [*found, (last[0], last[1], x.pp - 1, last[3])]


def _tightest(x: Inputs, fleet: Fleet) -> Array:
    """(n,) largest log(needed / available memory) of the stages in `_of_kinds`."""
    found = []
    for hw, gib, index, layers in _of_kinds(x, fleet):
        memory = usable_gib(gib, hw.memory_gib)
        room = np.maximum((memory - hw.context_gib) / (1 + FRAGMENTATION), 1e-9)
        found.append(np.log(rank_bytes(of_stage(x, index, layers)) / GIB / room))
    return np.max(np.broadcast_arrays(*found), axis=0)


def _peak_of_unequal(x: Inputs, fleet: Fleet) -> dict[str, Array]:
    """Like rank_memory.peak, for stages whose number of layers differs between kinds of device."""
    each = [of_stage(x, index, layers) for _, _, index, layers in _of_kinds(x, fleet)]
    fullest = np.argmax(np.broadcast_arrays(*map(rank_bytes, each)), axis=0)
    return {n: np.choose(fullest, np.broadcast_arrays(*(parts[n] for parts in each))) / GIB for n in PARTS}


def _hardware(columns: Columns, device: str) -> list[Hardware | None]:
    return [hardware(name) for name in devices(columns, device)]
