"""The accuracy of the ensemble and of each member on measured tables: the tables of docs/lab/simulators.md.

    python -m tests.tools.ensemble_accuracy [FOLDER]     FOLDER: ../shared/data, or another with the same files

Learned members are not fitted on the model that they are scored on ("leave one model out"), or only on the stated
number of rows of the job that they are scored on."""

import sys
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

import numpy as np
from sklearn.neural_network import MLPRegressor
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from autoscout.simulate.encode import FittedColumns, take
from autoscout.simulate.learned.other_jobs import PastJobs
from autoscout.simulate.learned.stack import Ensemble
from autoscout.simulate.learned.weighing import SPAN
from autoscout.simulate.member import Columns, Member, Prediction
from autoscout.simulate.members import members_of
from autoscout.simulate.validation.against import PAPER, Scores, score_rows
from autoscout.simulate.validation.measured import MeasuredRows, read

TABLES = {
    "vTrain": "landscapes/vtrain_a100_single_node.csv.gz",
    "train_end_to_end": "validation/train_end_to_end.csv.gz",
}
ROWS_OF_JOB = (0, 1, 3, 5, 10, 20)
_ENOUGH = 4
_KINDS: dict[str, Callable[[str], bool]] = {
    "the analytic model and all on top of it": lambda name: name.startswith("analytic"),
    "the analytic model by itself": lambda name: name == "analytic",
    "residuals": lambda name: name.endswith("+ residual"),
    "trees on top": lambda name: name.endswith("+ trees"),
    "trees alone": lambda name: name == "trees",
    "Table 2": lambda name: name.endswith(("Parallelism", "Aware")) and not name.startswith("log"),
    "log Table 2": lambda name: name.startswith("log "),
}


def main() -> None:
    folder = Path(sys.argv[1]) if len(sys.argv) > 1 else Path("../shared/data")
    np.seterr(all="ignore")
    for name, place in TABLES.items():
        steps = next(rows for rows in read(folder / place).sets if rows.metric == "step_time_s")
        title(f"{name}: members, step time, leave one model out")
        accuracy(score_rows(steps))
        if len(np.unique(steps.groups["source"])) > 1:
            title(f"{name}: leave one source out")
            sources(steps)
            title(f"{name}: with some measured rows of the job alone, jobs of {_ENOUGH} rows or more")
            few_alone(steps)
    vtrain = read(folder / TABLES["vTrain"]).sets[0]
    title("vTrain: what each kind of member earns, leave one model out")
    ablation(vtrain)
    title("vTrain: with some measured rows of the job")
    few_rows(vtrain, by_model_and_devices(vtrain))
    title("Speed, CPU seconds on one core")
    speed(vtrain)


def title(text: str) -> None:
    print(f"\n{text}\n")


def table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
    print("| " + " | ".join(header) + " |")
    print("|" + "---|" * len(header))
    for row in rows:
        print("| " + " | ".join(row) + " |")


def accuracy(scores: Scores) -> None:
    best = ("analytic", "ensemble", PAPER)
    table(
        ["member", "rows", "MAPE", "rank correlation in a job", "in 90 % interval"],
        (
            (name, str(a.rows), f"{a.mape:.1%}", "" if a.rank is None else f"{a.rank:.3f}", f"{a.coverage:.0%}")
            for name, a in scores.members.items()
        ),
    )
    for group, counts in scores.group_rows.items():
        if len(counts) > 1 and group != "model":
            print()
            rows = (
                (
                    value,
                    str(n),
                    *(f"{e:.1%}" if (e := scores.members[m].groups[group].get(value)) else "" for m in best),
                )
                for value, n in counts.items()
            )
            table([group, "rows", *best], rows)


def sources(rows: MeasuredRows) -> None:
    """Prints the accuracy of the ensemble, and of each relevant member alone."""
    found = [("ensemble", *held_out(rows, lambda: Ensemble(members_of(rows.metric)), "source"))]
    for i, member in enumerate(members_of(rows.metric)):
        if member.name.startswith("analytic"):
            name = "analytic, corrected" if member.name == "analytic" else member.name
            found.append((name, *held_out(rows, lambda i=i: Ensemble([members_of(rows.metric)[i]]), "source")))
    table(["member", "MAPE", "in 90 % interval"], ((name, f"{e:.1%}", f"{c:.0%}") for name, e, c in found))


def ablation(rows: MeasuredRows) -> None:
    def without(kind: Callable[[str], bool]) -> list[Member]:
        return [m for m in members_of(rows.metric) if not kind(m.name)]

    found = [("all, the better rule", *held_out(rows, lambda: Ensemble(members_of(rows.metric))))]
    found += [
        (f"all, {rule}", *held_out(rows, lambda rule=rule: Ensemble(members_of(rows.metric), rule)))
        for rule in ("stacked", "published")
    ]
    found += [
        (f"without {name}", *held_out(rows, lambda kind=kind: Ensemble(without(kind)))) for name, kind in _KINDS.items()
    ]
    found += [
        ("with a neural network", *held_out(rows, lambda: Ensemble([*members_of(rows.metric), Network()]))),
        ("the neural network alone", *held_out(rows, lambda: Ensemble([Network()], "stacked"))),
    ]
    table(["ensemble", "MAPE", "in 90 % interval"], ((name, f"{e:.1%}", f"{c:.0%}") for name, e, c in found))


class Network:
    """A neural network for comparison, not in the ensemble: two layers of 64 units, from the logs of all columns to
    log(value)."""

    name, min_rows = "network", 40

    def __init__(self) -> None:
        self._seen: FittedColumns | None = None

    def applies(self, columns: Columns) -> str:
        return "" if self._seen else "not fitted"

    def fit(self, columns: Columns, values: np.ndarray) -> None:
        self._seen = FittedColumns(columns)
        self._names = self._seen.varying
        self._model = make_pipeline(
            StandardScaler(), MLPRegressor(hidden_layer_sizes=(64, 64), max_iter=1000, random_state=0)
        )
        self._model.fit(self._x(columns), np.log(values))

    def predict(self, columns: Columns) -> Prediction:
        value = np.exp(self._model.predict(self._x(columns)))
        return Prediction(value=value, error=np.full(len(value), 0.1))

    def _x(self, columns: Columns) -> np.ndarray:
        assert self._seen is not None
        return np.log2(1 + np.nan_to_num(self._seen.matrix(columns, self._names)))


def held_out(rows: MeasuredRows, make: Callable[[], Ensemble], by: str = "model") -> tuple[float, float]:
    """(MAPE, coverage) if each model (or source) is predicted by an ensemble fitted on the others."""
    names, of = np.unique(rows.groups[by], return_inverse=True)
    misses, inside = [], []
    for fold in range(min(len(names), 8)):
        here = of % 8 == fold
        ensemble = make()
        ensemble.fit(take(rows.columns, ~here), rows.values[~here], rows.groups["model"][~here])
        miss, error = judge(ensemble, rows, np.flatnonzero(here))
        misses.append(np.expm1(miss))
        inside.append(np.abs(miss) <= SPAN * error)
    missed, held = np.concatenate(misses), np.concatenate(inside)
    known = np.isfinite(missed)
    return float(np.abs(missed[known]).mean()), float(held[known].mean())


def judge(member: Member, rows: MeasuredRows, which: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """(log(predicted / measured), stated error) of the rows `which`."""
    said = member.predict(take(rows.columns, which))
    return np.log(said.value / rows.values[which]), said.error


def by_model_and_devices(rows: MeasuredRows) -> np.ndarray:
    return np.char.add(np.char.add(rows.groups["model"], "/"), rows.columns["gpus"].astype(int).astype(str))


def few_rows(rows: MeasuredRows, job: np.ndarray, seeds: int = 3) -> None:
    """Prints the accuracy after a few rows of a job (a model on a number of devices), without and with the rows of the
    other models in the knowledge base."""
    past = {
        model: PastJobs(members_of(rows.metric), take(rows.columns, others), rows.values[others], job[others])
        for model in np.unique(rows.groups["model"])
        for others in [rows.groups["model"] != model]
    }
    found = []
    for count in ROWS_OF_JOB:
        alone, helped = [], []
        for name in np.unique(job):
            of = np.flatnonzero(job == name)
            for seed in range(seeds):
                known = np.random.default_rng(seed).choice(of, count, replace=False)
                asked = np.setdiff1d(of, known)
                earlier = past[rows.groups["model"][of[0]]]
                alone.append(errors(rows, known, asked, members_of(rows.metric)))
                helped.append(errors(rows, known, asked, members_of(rows.metric, more=[earlier])))
        found.append((str(count), *summary(alone), *summary(helped)))
    table(["rows of the job", "MAPE", "in 90 %", "MAPE, with other models' rows", "in 90 %"], found)


def few_alone(rows: MeasuredRows, seeds: int = 3) -> None:
    found = []
    for count in ROWS_OF_JOB[:3]:
        alone = []
        for name in np.unique(rows.job):
            of = np.flatnonzero(rows.job == name)
            for seed in range(seeds if len(of) >= _ENOUGH else 0):
                known = np.random.default_rng(seed).choice(of, count, replace=False)
                alone.append(errors(rows, known, np.setdiff1d(of, known), members_of(rows.metric)))
        found.append((str(count), *summary(alone)))
    table(["rows of the job", "MAPE", "in 90 %"], found)


def errors(rows: MeasuredRows, known: np.ndarray, asked: np.ndarray, members: list[Member]) -> tuple[float, float]:
    ensemble = Ensemble(members)
    if len(known):
        ensemble.fit(take(rows.columns, known), rows.values[known])
    else:
        ensemble.begin(take(rows.columns, asked))
    miss, error = judge(ensemble, rows, asked)
    return float(np.abs(np.expm1(miss)).mean()), float((np.abs(miss) <= SPAN * error).mean())


def summary(found: list[tuple[float, float]]) -> tuple[str, str]:
    mape, coverage = np.mean(found, axis=0)
    return f"{mape:.1%}", f"{coverage:.0%}"


def speed(rows: MeasuredRows) -> None:
    """Times the fit of 10,000 rows (the table's, repeated with 5 % noise) and the prediction of 100,000 rows."""
    rng = np.random.default_rng(0)
    many = rng.integers(0, len(rows.values), 10_000)
    columns, values = take(rows.columns, many), rows.values[many] * np.exp(0.05 * rng.standard_normal(10_000))
    ensemble = Ensemble(members_of(rows.metric))
    space = take(rows.columns, rng.integers(0, len(rows.values), 100_000))

    def seconds(work: Callable[[], object]) -> str:
        spent = []
        for _ in range(3):
            began = time.process_time()
            work()
            spent.append(time.process_time() - began)
        return f"{min(spent):.2f}"

    table(
        ["", "s"],
        [
            ("fit the ensemble on 10,000 rows", seconds(lambda: ensemble.fit(columns, values))),
            ("predict 100,000 rows with it", seconds(lambda: ensemble.predict(space))),
            ("predict 100,000 rows, analytic alone", seconds(lambda: members_of(rows.metric)[0].predict(dict(space)))),
        ],
    )


if __name__ == "__main__":
    main()
