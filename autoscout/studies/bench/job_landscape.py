"""A job's analytic model as a landscape (a space with known outcomes), with simulators that have known errors.

The outcome ("truth") of a configuration is the prediction of simulate/training/ or simulate/serving/, times a lognormal
error ("quirk") that no simulator knows. In measured tables, errors of the model are mostly constant per pair of knob
values (in vTrain's table: of tp and micro batch), so the quirk has a standard deviation of 3 % from pairs of knobs, and
0.5 % from single configurations. Configurations fail if they need more memory than their devices have, according to the
memory model with a quirk of 1 %. For training runs that work, strategies also get the peak memory of every rank, with
noise of 0.5 %.

Simulators for the option `--simulator`:

    good      each component of the true time times a factor of 0.8 to 1.25; predicts a failure only if running out of
              memory is nearly certain; memory of other configurations is predicted 5 % too high
    biased    compute and data parallelism at a fifth of the true time, tensor parallelism, bubbles and host at three
              times, pipeline transfers at five times; memory 8 % too high, so that some working configurations seem to
              fail; in serving's decode step, attention at a fifth, communication and host at three times
    linear    the paper's Table 2: four linear regressions, fitted on 200 random configurations of the job
    good+80   a simulator with noise of 80 % (or another share) of each prediction added, as in the paper's Figure 11
"""

import hashlib
import itertools
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
import numpy as np

from autoscout.job.lengths import tokens_of_step
from autoscout.job.objective import constraint
from autoscout.job.words import nearest_name
from autoscout.search.belief.foreseen import MEMORY
from autoscout.simulate.encode import length, of_job, serving_devices
from autoscout.simulate.hardware.capacity import capacities
from autoscout.simulate.learned.linear import table_2
from autoscout.simulate.learned.stack import Ensemble
from autoscout.simulate.member import Columns, Prediction
from autoscout.simulate.serving.simulator import ServingSimulator
from autoscout.simulate.training.fleet import depths, fleets
from autoscout.simulate.training.inputs import complete
from autoscout.simulate.training.memory import ERROR, Memory
from autoscout.simulate.training.rank_memory import GIB, of_stage, rank_bytes
from autoscout.simulate.training.step import Training
from autoscout.space.attributes import attributes_of, device_counts
from autoscout.space.graph import Space
from autoscout.space.knob import Knob
from autoscout.studies.bench.design_landscape import design_landscape
from autoscout.studies.bench.device_time import device_seconds
from autoscout.studies.bench.landscape import Landscape
from autoscout.targets.jobs import JobSpace
from autoscout.targets.target import target_of
from kb.records import AutoscoutError, Configuration, Job

# standard deviations of log errors: from pairs of knobs; from single configurations; of memory
PAIRS, OWN, MEMORY_QUIRK = 0.03, 0.005, 0.01
_BIAS = {"compute": 0.2, "dp": 0.2, "tp": 3.0, "bubble": 3.0, "host": 3.0, "pp": 5.0}
_BIAS |= {"attention": 0.2, "communication": 3.0}  # components of a decode step
_MEMORY_BIAS = {"biased": 0.08}  # error of log memory
_SURE = 1.28  # z-score of 90 %: simulators predict a failure if it is at least this probable
_LINEAR_ROWS = 200
SIMULATORS = ("good", "biased", "linear")


def landscape(job: Job, simulators: Sequence[str] = (), name: str = "") -> Landscape:
    """The landscape of a job. Errors: AutoscoutError (exit 2) for an unknown simulator, (exit 3) if nothing runs."""
    if target_of(job).designs:
        return design_landscape(job, simulators, name)
    for simulator in simulators:
        plain, _, noise = simulator.partition("+")
        if plain not in SIMULATORS or (noise and not noise.isdigit()):
            raise AutoscoutError(
                f"--simulator '{simulator}'{nearest_name(simulator, SIMULATORS)} (good+80: with noise)", 2
            )
    # If strategies get the peak memory of runs, a configuration that breaks a constraint on it runs and reports its
    # peak. Otherwise the configuration fails, because strategies could not detect the broken constraint.
    kept = job.objective.constraints if capacities(job) else []
    objective = msgspec.structs.replace(job.objective, also=[], constraints=kept)
    space = JobSpace.of_job(msgspec.structs.replace(job, objective=objective))
    columns = {**of_job(job), **space.columns(space.feasible.codes)}
    if len(device_counts(job)) > 1:
        columns.pop("memory_gib", None)  # memory of the smallest kind of device; here, each kind's own memory is used
    columns |= serving_devices(job, columns)
    predicted, over, beyond = _serving(job, columns) if job.task == "serve" else _training(job, columns)
    quirk = MEMORY_QUIRK * _normal(space, "memory")
    known = np.isfinite(predicted.value) & (predicted.value > 0)
    keeps = np.maximum(over, beyond) + quirk < 0
    runs = known & (over + quirk < 0) if kept else known & keeps
    if not (runs & keeps).any():
        raise AutoscoutError(f"{job.name}: no configuration runs on its devices, according to the analytic model", 3)
    values = np.where(runs, predicted.value * np.exp(_quirk(space)), np.nan)
    step = tokens_of_step(job.traffic) / values if objective.metric == "tokens_per_s" else values
    found = Landscape(
        name=name or job.name,
        space=space,
        metric=objective.metric,
        goal="min" if objective.minimize else "max",
        truth=np.where(keeps, values, np.nan),
        broke=np.where(keeps, np.nan, values) if (runs & ~keeps).any() else None,
        cost=device_seconds(job, columns, step),
        status=np.where(runs, "ok", "oom").astype(object),
        default=space.reference,
    )
    if space.capacities:
        attributes = attributes_of(job)
        found.peaks = lambda row, c: np.array(ranks_gib(attributes, space.as_simulated(c))) * np.exp(quirk[row])
    knowing = [plain for plain, _, _ in (s.partition("+") for s in simulators) if plain != "linear"]
    if space.capacities and knowing:
        needed = np.maximum(np.log(Memory(job.cluster.nodes[0].device).filled(columns)), beyond)
        found.foreseen[MEMORY] = needed + _MEMORY_BIAS.get(knowing[0], ERROR)
    for simulator in simulators:
        plain, _, noise = simulator.partition("+")
        if plain == "linear":
            predictions = _linear(found, columns)
        else:
            expected = np.maximum(over, beyond) + _MEMORY_BIAS.get(plain, 0.0) < _SURE * ERROR
            predictions = np.where(expected, _wrong(plain, space, predicted), np.inf)
        level = int(noise or 0) / 100
        found.simulators[simulator] = predictions * np.maximum(1 + level * _normal(space, simulator), 0.05)
    return found


def _training(job: Job, columns: Columns) -> tuple[Prediction, np.ndarray, np.ndarray]:
    """Returns, for n rows, (predicted metric, log(needed / available memory), log(needed memory / the job's bound on
    it)). A configuration does not run if the second is above 0, and breaks the bound if the third is."""
    if job.objective.metric not in ("step_time_s", "tokens_per_s"):
        raise AutoscoutError(f"{job.name}: the analytic model knows step_time_s and tokens_per_s only", 2)
    device = job.cluster.nodes[0].device
    model, memory = Training(device), Memory(device)
    if why := model.applies(columns) or memory.applies(columns):
        raise AutoscoutError(f"{job.name}: the analytic model predicts nothing here: {why}", 2)
    predicted = model.predict(columns)
    if job.objective.metric == "tokens_per_s":
        predicted = msgspec.structs.replace(predicted, value=tokens_of_step(job.traffic) / predicted.value)
    over, beyond = _beyond_memory(memory, columns), np.full(length(columns), -np.inf)
    for text in job.objective.constraints:
        metric, _, bound = constraint(text)
        if metric != "peak_memory_gib":
            raise AutoscoutError(f"{job.name}: the analytic model does not know '{metric}' of the constraint {text}", 2)
        beyond = np.maximum(beyond, np.log(memory.predict(columns).value / bound))
    return predicted, over, beyond


def _serving(job: Job, columns: Columns) -> tuple[Prediction, np.ndarray, np.ndarray]:
    """Like `_training`, but the serving model itself predicts which configurations do not fit."""
    if job.objective.constraints:
        raise AutoscoutError(f"{job.name}: constraints of serving jobs are not part of this landscape; drop them", 2)
    model = ServingSimulator(job.objective.metric)
    if why := model.applies(columns):
        raise AutoscoutError(f"{job.name}: the serving model predicts nothing here: {why}", 2)
    nowhere = np.full(length(columns), -np.inf)
    return model.predict(columns), nowhere, nowhere


def _beyond_memory(memory: Memory, columns: Columns) -> np.ndarray:
    from scipy.special import ndtri

    return ERROR * ndtri(np.clip(memory.oom_probability(columns), 1e-12, 1 - 1e-12))


def _wrong(simulator: str, space: Space, predicted: Prediction) -> np.ndarray:
    """Returns the predictions, (n,), of a simulator with wrong constants: scales each component of the time."""
    rng = np.random.default_rng(7)  # equal factors for all jobs
    factors = {name: 1.25 ** rng.uniform(-1, 1) for name in sorted(predicted.parts)}
    if simulator == "biased":
        factors = {name: _BIAS.get(name, 1.0) for name in predicted.parts}
    whole = np.sum(list(predicted.parts.values()), axis=0)
    slower = sum(np.nan_to_num(part / whole) * factors[name] for name, part in predicted.parts.items())
    return predicted.value * slower if space.objective.minimize else predicted.value / np.maximum(slower, 1e-9)


def _linear(land: Landscape, columns: Columns) -> np.ndarray:
    rng = np.random.default_rng(7)
    rows = rng.choice(len(land.truth), min(_LINEAR_ROWS, len(land.truth)), replace=False)
    rows = rows[np.isfinite(land.truth[rows])]
    ensemble = Ensemble(table_2(), "published")
    ensemble.fit({n: v[rows] if isinstance(v, np.ndarray) else v for n, v in columns.items()}, land.truth[rows])
    return ensemble.predict(columns).value


def _quirk(space: Space) -> np.ndarray:
    """Returns the log of each row's quirk, (n,). The effect of two knobs' values is the same in all spaces."""
    codes = space.feasible.codes
    effects = np.zeros(len(codes))
    pairs = list(itertools.combinations(range(codes.shape[1]), 2))
    for i, j in pairs:
        table = _pair_effects(space.knobs[i], space.knobs[j])
        effects += table[codes[:, i], codes[:, j]]
    return PAIRS * effects / max(len(pairs), 1) ** 0.5 + OWN * _normal(space, "time")


def _pair_effects(a: Knob, b: Knob) -> np.ndarray:
    """Returns standard normal effects by code of a and code of b; the last row and column are for inactive knobs."""
    seeds = [[_hash(f"{a.name}={v!r}×{b.name}={w!r}") for w in (*b.values, None)] for v in (*a.values, None)]
    return np.array([[np.random.default_rng(seed).standard_normal() for seed in row] for row in seeds])


def _uniform(space: Space, salt: str) -> np.ndarray:
    """Returns a pseudo-random number in (0, 1) per row, which depends only on the configuration and `salt`."""
    mixed = np.full(len(space.feasible), _hash(salt), dtype=np.uint64)
    for j, knob in enumerate(space.knobs):
        by_code = np.array([*(_hash(f"{knob.name}={v!r}") for v in knob.values), 0], dtype=np.uint64)
        mixed += by_code[space.feasible.codes[:, j]]
    mixed = (mixed ^ (mixed >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)  # splitmix64's finalizer
    mixed = (mixed ^ (mixed >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    mixed ^= mixed >> np.uint64(31)
    return (mixed.astype(np.float64) + 0.5) / 2.0**64


def _normal(space: Space, salt: str) -> np.ndarray:
    from scipy.special import ndtri

    return ndtri(np.clip(_uniform(space, salt), 1e-12, 1 - 1e-12))


def _hash(text: str) -> int:
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "little")


def ranks_gib(attributes: Mapping[str, Any], configuration: Configuration) -> list[float]:
    """Returns the peak GiB of each rank, in the order of ranks (pipeline stage by pipeline stage)."""
    columns = {name: value for name, value in attributes.items() if name != "degrees"} | configuration.knobs
    pp = int(configuration.knobs.get("pp", 1))
    x, at = complete(columns), np.arange(pp)
    layers = np.ceil(x.layers / x.pp) + np.zeros(pp)
    for fleet in fleets(columns, 1, ""):
        ends = np.cumsum([count[0] for count in fleet.counts]) * pp / x.gpus[0]
        of = np.minimum(np.searchsorted(ends, at, side="right"), len(fleet.kinds) - 1)
        layers = np.array([each[0] for each in depths(x, fleet)])[of]
    stages, gpus = np.broadcast_to(rank_bytes(of_stage(x, at, layers)) / GIB, pp), int(x.gpus[0])
    return [float(stages[rank * pp // gpus]) for rank in range(gpus)]
