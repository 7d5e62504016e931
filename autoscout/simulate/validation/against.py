"""Measures how well every simulator predicts the measurements of a table. Analytic members use no measurements; learned
members and the ensemble are scored on rows of models that they were not fitted on."""

from collections import Counter
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

import msgspec
import numpy as np

from autoscout.simulate.encode import take
from autoscout.simulate.learned.linear import table_2
from autoscout.simulate.learned.stack import Ensemble
from autoscout.simulate.learned.weighing import SPAN
from autoscout.simulate.member import Prediction
from autoscout.simulate.members import analytic, members_of
from autoscout.simulate.training.memory import CAUTION, Memory
from autoscout.simulate.training.step import Training
from autoscout.simulate.validation.diagnosis import reasons
from autoscout.simulate.validation.measured import MeasuredRows, read

PAPER = "Table 2, equation 2"  # the AutoScout paper's ensemble, as it is named in reports
_FOLDS = 8  # largest number of cross-validation folds, each of one or more models
_MANY, _FEWER_FOLDS = 1000, 4  # tables with more rows use fewer folds, because event simulations are slow
_DIFFER = 0.05  # pairs of rows whose measurements have a smaller log ratio are not ranked: noise may decide their order
SURE = 0.05  # out-of-memory probability below which a configuration counts as safe to try
# Boundaries of the bins of out-of-memory probabilities in MemoryScores.calibration.
_BINS = (0.0, 0.02, SURE, 0.2, 0.5, 0.8, 0.95, 1.01)
_ALIKE = 1e-9  # predictions with a smaller log ratio count as tied


class Accuracy(msgspec.Struct, frozen=True):
    """Accuracy of one simulator on `rows` rows. `regret`: slowdown of the configuration predicted to be best, relative
    to the job's best one, averaged over jobs; `rank`: Kendall's correlation over pairs of a job's rows that differ by
    more than 5 %, averaged over jobs; `coverage`: share of rows inside the 90 % interval; `groups`: MAPE by source, gpu
    and model; `failing`: number of rows that ran though they were predicted to fail, which are excluded from `mape`."""

    rows: int
    mape: float
    rank: float | None
    coverage: float
    groups: dict[str, dict[str, float]]
    failing: int
    regret: float | None


class MemoryScores(msgspec.Struct, frozen=True):
    """The accuracy with which the memory model predicts whether runs fit. `right`: share of correct predictions;
    `false_fits`: share of all runs that were predicted to fit but ran out of memory; `calibration`: predicted and
    observed out-of-memory shares by bin. `favourites`: (number of jobs with runs of both outcomes; number of these jobs
    whose first choice ran out of memory). The first choice is the run predicted to be fastest among the runs with an
    out-of-memory probability below SURE, or else the run with the lowest probability."""

    runs: int
    died: int
    right: float
    false_fits: float
    calibration: list["ChanceBin"]
    favourites: tuple[int, int]


class ChanceBin(msgspec.Struct, frozen=True):
    """The runs with an out-of-memory probability in [least, most). `said`: mean predicted probability of these runs;
    `low`, `high`: bounds of this mean over possible software profiles; `died`: share of the runs that ran out of
    memory."""

    least: float
    most: float
    runs: int
    said: float
    died: float
    low: float
    high: float


class Scores(msgspec.Struct, frozen=True):
    """The accuracy of all simulators of one metric. `held_out`: what each fold holds out, as text."""

    metric: str
    rows: int
    jobs: int
    held_out: str
    members: dict[str, Accuracy]
    group_rows: dict[str, dict[str, int]]
    missed: dict[str, int] = {}  # reason (diagnosis.py) → number of rows outside the analytic model's 90 % interval


class Report(msgspec.Struct, frozen=True):
    table: str
    rows: int
    metrics: dict[str, Scores]
    memory: MemoryScores | None
    skipped: dict[str, int]
    unknown_columns: list[str]


def score(path: Path, note: Callable[[str], None] = lambda text: None) -> Report:
    """Compares a table's measurements with predictions. Errors: AutoscoutError (exit 2) if no row can be predicted."""
    measured = read(path)
    metrics = {}
    for rows in measured.sets:
        note(f"{rows.metric}: {len(rows.values)} rows")
        metrics[rows.metric] = score_rows(rows)
    memory = _decisions(measured.runs) if measured.runs else None
    return Report(str(path), measured.rows, metrics, memory, measured.skipped, measured.unknown)


def score_rows(rows: MeasuredRows) -> Scores:
    """Scores every simulator that can predict the rows; learned ones by cross-validation."""
    predictions: dict[str, Prediction] = {}
    for member in analytic(rows.metric, rows.task):
        if not member.applies(rows.columns):
            predictions[member.name] = member.predict(rows.columns)
    fold, held_out = _folds(rows)
    predictions |= _held_out(rows, fold)
    able = {name: p for name, p in predictions.items() if (np.isfinite(p.value) & (p.value > 0)).any()}
    members = {name: score_as_it_is(rows, p) for name, p in able.items()}
    group_rows = {
        name: dict(zip(*(v.tolist() for v in np.unique(rows.groups[name], return_counts=True)), strict=True))
        for name in rows.groups
    }
    jobs = len(np.unique(rows.job))
    return Scores(rows.metric, len(rows.values), jobs, held_out, members, group_rows, _missed(rows, predictions))


def _missed(rows: MeasuredRows, predictions: dict[str, Prediction]) -> dict[str, int]:
    said = next((predictions[m.name] for m in analytic(rows.metric, rows.task) if m.name in predictions), None)
    if said is None:
        return {}
    software = np.array(["/".join(pair) for pair in zip(rows.groups["source"], rows.groups["gpu"], strict=True)])
    why = reasons(rows.task, rows.metric, rows.columns, rows.values, said, software)
    return dict(Counter(why[why != ""].tolist()).most_common())


def _folds(rows: MeasuredRows) -> tuple[np.ndarray, str]:
    """((n,) fold of each row, what a fold holds out, as text)."""
    models, of = np.unique(rows.groups["model"], return_inverse=True)
    folds = _FOLDS if len(of) <= _MANY else _FEWER_FOLDS
    if len(models) >= 2:
        part = "one model" if len(models) <= folds else f"a part of the {len(models)} models ({folds} parts)"
        return of % folds, part
    return np.arange(len(of)) % min(5, len(of)), "a fifth of the rows (all rows are of one model)"


def _held_out(rows: MeasuredRows, fold: np.ndarray) -> dict[str, Prediction]:
    """Out-of-fold predictions of every member, of the ensemble, and of the AutoScout paper's ensemble."""
    n = len(rows.values)
    found: dict[str, tuple[np.ndarray, np.ndarray]] = {}

    def keep(name: str, here: np.ndarray, said: Prediction) -> None:
        value, error = found.setdefault(name, (np.full(n, np.nan), np.full(n, np.nan)))
        value[here], error[here] = said.value, said.error

    for f in np.unique(fold):
        here, rest = fold == f, fold != f
        if not rest.any():
            continue
        asked, known = take(rows.columns, here), take(rows.columns, rest)
        ensembles = {
            "ensemble": Ensemble(members_of(rows.metric, rows.task)),
            PAPER: Ensemble(table_2(), "published"),
        }
        for name, ensemble in ensembles.items():
            ensemble.fit(known, rows.values[rest], rows.groups["model"][rest])
            keep(name, here, ensemble.predict(asked))
        analytic_names = {member.name for member in analytic(rows.metric, rows.task)}
        for name, said in ensembles["ensemble"].by_member(asked).items():
            # the fit corrects an analytic member, so it is also scored under a second name
            keep(f"{name}, corrected" if name in analytic_names else name, here, said)
    return {name: Prediction(value=value, error=error) for name, (value, error) in found.items()}


def score_as_it_is(rows: MeasuredRows, said: Prediction) -> Accuracy:
    known = np.isfinite(said.value) & (said.value > 0)
    ratio = np.where(known, said.value, np.nan) / rows.values
    error, inside = np.abs(ratio - 1), np.abs(np.log(ratio)) <= SPAN * said.error
    groups = {
        name: {str(g): float(error[known & (of == g)].mean()) for g in np.unique(of[known])}
        for name, of in rows.groups.items()
    }
    return Accuracy(
        rows=int(known.sum()),
        mape=float(error[known].mean()),
        rank=_rank(rows.job[known], said.value[known], rows.values[known]),
        coverage=float(inside[known].mean()),
        groups=groups,
        regret=_regret(rows.metric, rows.job[known], said.value[known], rows.values[known]),
        failing=int(np.isposinf(said.value).sum() + (said.value == 0).sum()),
    )


def _rank(job: np.ndarray, predicted: np.ndarray, measured: np.ndarray) -> float | None:
    """Mean over jobs of Kendall's correlation; None if no pair differs enough. Tied predictions count as 0, so that
    members are scored on the same pairs."""
    found = []
    for name in np.unique(job):
        p, m = np.log(predicted[job == name]), np.log(measured[job == name])
        i, j = np.triu_indices(len(m), 1)
        apart = np.abs(m[i] - m[j]) > _DIFFER
        if apart.any():
            ahead, said = (m[i] - m[j])[apart], (p[i] - p[j])[apart]
            found.append(float((np.sign(ahead) * np.sign(said) * (np.abs(said) > _ALIKE)).mean()))
    return float(np.mean(found)) if found else None


def _regret(metric: str, job: np.ndarray, predicted: np.ndarray, measured: np.ndarray) -> float | None:
    sign = -1 if "tokens_per_s" in metric or "requests_per_s" in metric else 1
    found = []
    for name in np.unique(job):
        p, m = sign * np.log(predicted[job == name]), sign * np.log(measured[job == name])
        if np.ptp(m) > _DIFFER:
            found.append(float(np.exp(m[np.argmin(p)] - m.min()) - 1))
    return float(np.mean(found)) if found else None


def _decisions(rows: MeasuredRows) -> MemoryScores:
    died = np.isposinf(rows.values)
    chance, (low, high) = Memory().oom_probability(rows.columns), Memory().oom_range(rows.columns)
    fits = chance <= CAUTION
    bins = [(a, b, (chance >= a) & (chance < b)) for a, b in pairwise(_BINS)]
    both = [job for job in np.unique(rows.job) if 0 < died[rows.job == job].sum() < (rows.job == job).sum()]
    first = [_tried_first(rows, chance, np.flatnonzero(rows.job == job)) for job in both]
    return MemoryScores(
        calibration=[
            ChanceBin(a, min(b, 1.0), int(here.sum()), *(float(of[here].mean()) for of in (chance, died, low, high)))
            for a, b, here in bins
            if here.any()
        ],
        favourites=(len(both), int(died[first].sum()) if first else 0),
        runs=len(died),
        died=int(died.sum()),
        right=float((fits != died).mean()),
        false_fits=float((fits & died).mean()),
    )


def _tried_first(rows: MeasuredRows, chance: np.ndarray, here: np.ndarray) -> int:
    sure = here[chance[here] < SURE]
    if not len(sure) or Training().applies(rows.columns):
        return int(here[np.nanargmin(chance[here])])
    seconds = Training().predict(take(rows.columns, sure)).value
    return int(sure[np.nanargmin(seconds)]) if np.isfinite(seconds).any() else int(sure[0])
