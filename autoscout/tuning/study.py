"""A session that a Python script drives: the same loop, journal, knowledge base and stopping rule as `tune`, but the
script measures the configurations.

    study = autoscout.Study("job.toml")
    while study.wants_more():
        for configuration in study.ask(2):
            study.tell(configuration, {"step_time_s": 0.27})      # or tell(configuration, failed="oom")
    study.best()

ask() returns no configurations whose results are in the knowledge base; it returns the finalists again at the end, as
`tune` measures them again.
"""

import contextlib
import math
import platform
import typing
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from autoscout.job.load import with_budget
from autoscout.job.metrics import metric_problems
from autoscout.job.objective import cost, to_metric
from autoscout.job.words import listed, meant, nearest_name
from autoscout.running.equivalence import IfTold
from autoscout.search.belief.prior_means import Predictor
from autoscout.search.strategy import Kind, register
from autoscout.space.graph import Space
from autoscout.targets.jobs import JobSpace, load_job
from autoscout.targets.target import target_of
from autoscout.tuning import session
from autoscout.tuning.evaluator import Experiment
from autoscout.tuning.loop import end
from autoscout.tuning.session import SessionOptions
from kb import dates, store
from kb.journal import Confirmed, ExperimentEnded
from kb.records import AutoscoutError, Configuration, Job, Measurement, Objective, Status, Value

Simulator = Callable[[dict[str, Value]], float]  # knobs → the objective's metric; NaN: unknown, inf: will fail


class Best(msgspec.Struct, frozen=True, kw_only=True):
    """The best configuration. `value`: the objective's metric; `measurements`: number of its measurements; `confirmed`:
    the verdict after the finalists were measured again, None before."""

    configuration: dict[str, Value]
    name: str
    value: float
    measurements: int
    confirmed: Confirmed | None


class Study:
    """A tuning session. All methods may raise AutoscoutError with a message of one sentence."""

    def __init__(
        self,
        what: str | Path | Job | Space,
        *,
        minimize: str = "",
        maximize: str = "",
        constraints: Sequence[str] = (),
        kb: str | Path | None = None,
        strategy: str | Kind = "autoscout",
        simulators: Mapping[str, Simulator] | None = None,
        profiles: int | None = None,
        wall: str | None = None,
        device_time: str | None = None,
        seed: int = 0,
        warm_start: str = "auto",
        environment: Mapping[str, str] | None = None,
        name: str = "study",
        resume: str = "",
        on_note: Callable[[str], None] = lambda text: None,
    ) -> None:
        """`what`: a job file, a job, or a space, which needs `minimize` or `maximize`. `kb`: the knowledge base, by
        default that of `tune`; `strategy`: a name from `autoscout bench`, or your own (which is then registered);
        `environment`: versions and devices, since only measurements with the same ones are compared; `resume`: name of
        a session to continue."""
        self.job, self.space = _job_and_space(what, name, minimize, maximize, constraints)
        self.job = with_budget(self.job, profiles, wall, device_time)
        self.kb = Path(kb) if kb else store.default_path()
        if isinstance(strategy, Kind):
            register(strategy)
            strategy = strategy.name
        self._on_note = on_note
        self._given = contextlib.ExitStack()
        check = IfTold(target_of(self.job).equivalence(self.job))
        predictors = {n: _predictor(self.space, simulator) for n, simulator in (simulators or {}).items()}
        versions = {"python": platform.python_version(), "device": platform.machine(), **(environment or {})}
        session.repair(self.kb, on_note)
        if resume:
            opened = session.resumed(
                resume, self.kb, self.space, versions, _unheard, on_note, simulators=predictors, check=check
            )
        else:
            options = SessionOptions(strategy=strategy, seed=seed, warm_start=warm_start)
            opened = session.begun(
                session.new_id(self.job),
                self.job,
                self.kb,
                self.space,
                options,
                versions,
                _unheard,
                on_note,
                simulators=predictors,
                check=check,
            )
        self._engine = self._given.enter_context(opened)
        self._asked: dict[str, list[Experiment]] = {}  # by configuration id, oldest first
        self._next: Experiment | None = None
        self._ended = False

    @classmethod
    def from_table(cls, table: Any, *, metric: str, goal: str = "min", **more: Any) -> "Study":
        """A study over a table (rows, columns, or a CSV or Parquet file). Every column except `metric` is a knob, and
        the rows are the valid configurations. `more`: further arguments of Study."""
        from autoscout.space.from_table import columns_of

        columns = columns_of(table)
        if metric not in columns:
            raise AutoscoutError(f"the table has no column '{metric}'{meant(metric, columns)}", 2)
        space = Space.from_table({name: column for name, column in columns.items() if name != metric})
        asked = {"minimize": metric} if goal == "min" else {"maximize": metric}
        return cls(space, **asked, **more)

    @property
    def session(self) -> str:
        """The session's name, for `watch`, `best`, `export` and `resume`."""
        return self._engine.started.session

    def wants_more(self) -> bool:
        """Whether there is more to measure, now or after pending results have been reported with tell()."""
        if self._ended:
            return False
        if self._asked or self._next is not None:
            return True
        self._next = self._more()
        if self._next is None and self._engine.over:
            self.close(self._engine.reason)
            return False
        return True

    def ask(self, count: int = 1) -> list[Configuration]:
        """Up to `count` configurations to measure; fewer, or none, if the next one depends on pending results."""
        found: list[Configuration] = []
        while len(found) < count and not self._ended:
            experiment = self._next or self._more()
            self._next = None
            if experiment is None:
                break
            self._asked.setdefault(experiment.configuration.id, []).append(experiment)
            found.append(experiment.configuration)
        return found

    def tell(
        self,
        configuration: Configuration | Mapping[str, Value],
        metrics: Mapping[str, float] | None = None,
        *,
        failed: str = "",
        evidence: str = "",
        losses: Sequence[float] = (),
        grad_norms: Sequence[float] = (),
        cost_s: float = 0.0,
    ) -> Measurement:
        """Reports the result of a configuration from ask(): its metrics, or how it failed (oom, invalid, error,
        timeout, wrong, infrastructure, killed). `losses` are compared with the reference's (the equivalence check).

        Errors: AutoscoutError (exit 2) for a configuration that ask() did not return, a metric that the job does not
        have, an unknown failure, or an objective that is not a positive number."""
        asked = configuration if isinstance(configuration, Configuration) else Configuration(dict(configuration))
        if asked.id not in self._asked:
            raise AutoscoutError(
                f"{self.space.name(asked) or asked.knobs} was not returned by ask(), or already has a result; "
                "call tell() once for each configuration that ask() returned",
                2,
            )
        status = self._status(failed, metrics or {})
        experiment = self._asked[asked.id][0]
        measurement = Measurement(
            configuration=asked,
            name=experiment.name,
            context=self._engine.started.context,
            status=status,
            metrics={name: float(value) for name, value in (metrics or {}).items()},
            losses=[float(x) for x in losses],
            grad_norms=[float(x) for x in grad_norms],
            evidence=evidence,
            cost_s=cost_s,
            device_s=cost_s * self.job.devices,
            environment=self._engine.started.environment,
            at=dates.now(),
        )
        self._asked[asked.id].pop(0)
        if not self._asked[asked.id]:
            del self._asked[asked.id]
        return self._engine.tell(experiment.number, measurement)

    def best(self) -> Best:
        """The winner, or the best configuration so far. Errors: AutoscoutError (exit 3) if nothing ran."""
        objective = self.job.objective
        confirmed = self._engine.confirmed
        ran = [(c, m) for m in self._engine.evaluator.done.values() if (c := cost(objective, m)) is not None]
        if not ran:
            raise AutoscoutError(f"no configuration of {self.job.name} has run correctly yet; ask for more", 3)
        least, best = min(ran, key=lambda pair: pair[0])
        if confirmed is not None:
            best = next(m for _, m in ran if m.configuration.id == confirmed.winner.id)
        return Best(
            configuration=best.configuration.knobs,
            name=best.name,
            value=confirmed.value if confirmed else to_metric(objective, least),
            measurements=confirmed.pairs if confirmed else 1,
            confirmed=confirmed,
        )

    def close(self, reason: str = "interrupted") -> None:
        """Ends the session, which can be resumed by its name. May be called several times."""
        if not self._ended:
            self._ended = True
            end(self._engine, self.kb, reason, self._on_note)
            self._given.close()

    def __enter__(self) -> "Study":
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def _more(self) -> Experiment | None:
        """The engine's next experiment without a result in the journal (of a resumed session)."""
        try:
            while (experiment := self._engine.ask()) is not None:
                recorded = self._engine.tape.peek(ExperimentEnded, experiment.configuration)
                if recorded is None:
                    return experiment
                self._engine.tell(experiment.number, recorded.measurement)
        except AutoscoutError:
            self.close("failed")
            raise
        return None

    def _status(self, failed: str, metrics: Mapping[str, float]) -> Status:
        known = target_of(self.job).metrics(self.job)
        for name in metrics:
            if known and name not in known and isinstance(self.space, JobSpace):
                raise AutoscoutError(f"the metric '{name}'{nearest_name(name, known)}", 2)
        if failed:
            kinds = [kind for kind in typing.get_args(Status) if kind != "ok"]
            if failed not in kinds:
                raise AutoscoutError(f"failed = '{failed}' must be one of {listed(kinds)}", 2)
            return failed  # type: ignore[return-value]
        wanted = self.job.objective.metric
        if wanted not in metrics:
            raise AutoscoutError(
                f"the result has no '{wanted}', which the objective needs; it has {listed(metrics) or 'no metrics'}", 2
            )
        if not 0 < metrics[wanted] < math.inf:  # also true for NaN
            raise AutoscoutError(
                f"{wanted} = {metrics[wanted]} is not a valid result; if the run failed, report it with failed = …", 2
            )
        return "ok"


def _unheard(event: object) -> None:
    """Ignores events, since nothing in this process shows them; `autoscout watch` reads the journal."""


def _job_and_space(
    what: str | Path | Job | Space, name: str, minimize: str, maximize: str, constraints: Sequence[str]
) -> tuple[Job, Space]:
    if not isinstance(what, Space) or isinstance(what, JobSpace):
        if minimize or maximize or constraints:
            raise AutoscoutError(
                "the job file already has an objective; pass minimize, maximize and constraints only with a Space", 2
            )
        job = what.job if isinstance(what, JobSpace) else what if isinstance(what, Job) else load_job(what)
        return job, what if isinstance(what, JobSpace) else JobSpace.of_job(job)
    if bool(minimize) == bool(maximize):
        raise AutoscoutError("a study over a Space needs either minimize= or maximize=, with the name of a metric", 2)
    objective = Objective(minimize=minimize, maximize=maximize, constraints=list(constraints))
    job = Job(name=name, target="command", objective=objective)
    if problem := next(metric_problems(job, ()), None):
        raise AutoscoutError(problem, 2)
    what.objective = objective
    return job, what


def _predictor(space: Space, simulator: Simulator) -> Predictor:
    """Predictor for rows of codes from a user's simulator, which is called once for each configuration."""
    known: dict[bytes, float] = {}

    def predict(codes: np.ndarray) -> np.ndarray:
        for row in codes:
            key = row.tobytes()
            if key not in known:
                known[key] = float(simulator(space.of_codes(row.tolist()).knobs))
        return np.array([known[row.tobytes()] for row in codes])

    return predict
