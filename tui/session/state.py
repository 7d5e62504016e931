"""A session's state as plain data, computed from its journal by applying one event after the other. A state is the same
whether a session is watched live, later, or replayed. This module uses no Textual, no clock and no files.
"""

from typing import Literal

import msgspec

from autoscout.job.objective import broken, cost, to_metric
from kb.journal import (
    Answered,
    AnyEvent,
    BestFound,
    Checked,
    Confirmed,
    Decided,
    ExperimentEnded,
    ExperimentStarted,
    FidelitySwitched,
    Gated,
    Outlook,
    Rewarded,
    SearchEnded,
    SessionEnded,
    SessionResumed,
    SessionStarted,
    Simulated,
    Steered,
    TournamentRanked,
    Waiting,
    WarmStarted,
    WarmStartWorth,
    charged,
)
from kb.records import DESIGNED, Configuration, Job, Measurement
from tui.session.effort import Effort
from tui.session.rationale import Reasons
from tui.text import when_and_where

SEARCH_PURPOSES = ("search", "check", "top_k")
LEADERS = 8  # number of best configurations from which the number of finalists is estimated
BESIDE = ("confirm", "profile", "anchor", "repeat")  # purposes of experiments that are not part of the search


class Run(msgspec.Struct, kw_only=True):
    """An experiment, or a measurement from the knowledge base that replaced one (then `number` is None)."""

    number: int | None
    name: str
    configuration: Configuration
    purpose: str
    arm: str = ""
    why: str = ""
    status: str = "running"  # after its end the measurement's status, or `limit` if it breaks a constraint
    value: float | None = None  # the objective's metric; None for failures and runs that break a constraint
    predicted: float | None = None
    began: float = 0.0
    ended: float = 0.0
    folder: str = ""
    note: str = ""
    measurement: Measurement | None = None


class Point(msgspec.Struct, frozen=True):
    """A point of the plot of all evaluations. `at`: number of the evaluation, from 1; `value`: None if it failed."""

    at: int
    value: float | None
    kind: Literal["measured", "predicted", "known"]


class Arm(msgspec.Struct, kw_only=True):
    pulls: float = 0.0
    mean: float = 0.0
    last: float | None = None
    ucb: list[float] = msgspec.field(default_factory=list)


class Grid(msgspec.Struct, kw_only=True):
    """A 2×2 grid of costs: {base, candidate} structure × {base, candidate} point. Fields as in kb.journal.Rewarded."""

    names: list[str]
    arm: str
    costs: list[float | None]
    delta_sparse: float
    delta_dense: float
    interaction: float | None
    # standard deviations of the logs of `costs`; 0 for measured costs
    errors: list[float] = msgspec.field(default_factory=list)


class State(msgspec.Struct, kw_only=True):
    job: Job | None = None
    session: str = ""
    strategy: str = ""
    seed: int = 0
    context: str = ""
    host: str = ""
    environment: dict[str, str] = msgspec.field(default_factory=dict)
    default: Configuration | None = None
    fidelity: str = "measured"
    fidelity_why: str = ""
    switches: list[FidelitySwitched] = msgspec.field(default_factory=list)
    began: float = 0.0
    now: float = 0.0  # unix time that the screen shows: now if the session is running, else that of the last event
    last: float = 0.0  # unix time of the last event
    away_s: float = 0.0  # seconds between the session's processes, until each `--resume`
    resumed: int = 0
    phase: str = "starting"  # starting, then the phases of kb.journal.Decided, then confirm and ended
    step: int = 0
    arm: str = ""
    decision: Decided | None = None
    runs: list[Run] = msgspec.field(default_factory=list)
    running: dict[int, Run] = msgspec.field(default_factory=dict)
    waiting: Waiting | None = None  # set while the session waits for devices
    coordinates: dict[str, list[int]] = msgspec.field(default_factory=dict)  # of the dense optimizer, see Decided
    curve: list[Point] = msgspec.field(default_factory=list)
    predicted: int = 0
    known: int = 0
    searched: int = 0  # number of experiments that count towards the budget
    device_s: float = 0.0
    default_value: float | None = None
    best: BestFound | None = None
    # id → best value, for the LEADERS best configurations
    leaders: dict[str, float] = msgspec.field(default_factory=dict)
    confirms: list[str] = msgspec.field(default_factory=list)  # configuration id of each experiment in the final rounds
    milestone: BestFound | None = None  # the last improvement by more than 1 %, from which `patience` is counted
    patience: int = 0
    arms: dict[str, Arm] = msgspec.field(default_factory=dict)
    grid: Grid | None = None
    efforts: dict[str, Effort] = msgspec.field(default_factory=dict)  # by arm
    least: float | None = None  # lowest cost so far
    checks: list[Checked] = msgspec.field(default_factory=list)
    unscored: int = 0  # number of the search's experiments since the last check of the simulators
    rounds: list[TournamentRanked] = msgspec.field(default_factory=list)
    failures: dict[str, int] = msgspec.field(default_factory=dict)
    incidents: int = 0  # number of infrastructure failures
    confirmed: Confirmed | None = None
    gated: Gated | None = None
    outlook: Outlook | None = None
    ended: SessionEnded | None = None
    search_end: str = ""
    paused: bool = False
    orders: list[Steered] = msgspec.field(default_factory=list)
    predictions: dict[str, float] = msgspec.field(default_factory=dict)  # configuration id → predicted metric
    warm: WarmStarted | None = None
    worth: WarmStartWorth | None = None
    reasons: Reasons = msgspec.field(default_factory=Reasons)

    @property
    def seen(self) -> str:
        """The word for evaluated configurations: "designed" if all costs come from models, else "measured"."""
        return "designed" if DESIGNED in self.environment.values() else "measured"

    @property
    def best_value(self) -> float | None:
        """The best value of the objective's metric; after the final rounds, the winner's."""
        if self.confirmed is not None:
            return self.confirmed.value
        return self.best.value if self.best else None

    @property
    def winner(self) -> Configuration | None:
        """The best configuration; after the final rounds, the winner."""
        if self.confirmed is not None:
            return self.confirmed.winner
        return self.best.configuration if self.best else None

    @property
    def gain(self) -> float | None:
        """Cost of the default / cost of the best; after the final rounds, the winner's gain."""
        if self.confirmed is not None:
            return self.confirmed.gain
        if self.job is None or self.best is None or not self.default_value:
            return None
        minimized = bool(self.job.objective.minimize)
        return self.default_value / self.best.value if minimized else self.best.value / self.default_value

    @property
    def elapsed_s(self) -> float:
        """Seconds in which a process of the session ran."""
        return max(0.0, self.now - self.began - self.away_s)

    def apply(self, event: AnyEvent) -> None:
        if isinstance(event, SessionResumed):
            self.away_s += max(0.0, event.at - self.last)
        self.last = max(self.last, event.at)
        self.now = self.last
        self.reasons.apply(event)
        match event:
            case SessionStarted():
                self._start(event)
            case SessionResumed():
                self.resumed += 1
                self.ended, self.phase, self.paused = None, "confirm" if self.search_end else "search", False
                if event.wall:
                    self._limit(wall=event.wall)
                for run in self.running.values():
                    run.status, run.note = "killed", "the session was interrupted while it ran"
                self.running.clear()
                self.waiting = None
            case Decided():
                self.decision, self.step, self.arm = event, event.step, event.arm
                self.phase = event.phase
                self.coordinates = event.coordinates
                for key, value in event.values.items():
                    if key.startswith("ucb_"):
                        self.arms.setdefault(key.removeprefix("ucb_"), Arm()).ucb.append(value)
            case Rewarded():
                self._reward(event)
            case TournamentRanked():
                self.rounds.append(event)
            case ExperimentStarted():
                self._begin(event)
            case ExperimentEnded():
                self._finish(event)
            case Waiting():
                self._wait(event)
            case Answered():
                self.known += 1
                run = self._run(None, "answered", event.measurement.configuration, event.measurement.name)
                run.note = f"known from session {event.measured_by}{when_and_where(event.measurement)}"
                self._measured(run, event.measurement, "known")
            case Simulated():
                self.predicted += 1
                self.fidelity = "predicted" if not self.switches else self.fidelity
                self.predictions[event.configuration.id] = event.predicted
                self.curve.append(Point(len(self.curve) + 1, event.predicted, "predicted"))
            case Checked():
                self.checks.append(event)
                self.unscored = 0
                self._predicted(event)
            case FidelitySwitched():
                self.switches.append(event)
                self.fidelity, self.fidelity_why = event.to, event.why
            case Steered():
                self._steer(event)
            case BestFound():
                minimized = self.job is None or bool(self.job.objective.minimize)
                if self.best is None or (event.value < self.best.value) == minimized:
                    self.best = event
                if self.milestone is None or _better(self.job, event.value, self.milestone.value):
                    self.milestone = event
            case SearchEnded():
                self.search_end, self.phase = event.reason, "confirm"
            case Confirmed():
                self.confirmed = event
            case Gated():
                self.gated = event
            case Outlook():
                self.outlook = event
            case SessionEnded():
                self.ended, self.phase, self.waiting = event, "ended", None
            case WarmStarted():
                self.warm = event
            case WarmStartWorth():
                self.worth = event
            case _:
                pass

    def _start(self, event: SessionStarted) -> None:
        self.job, self.session, self.strategy, self.seed = event.job, event.session, event.strategy, event.seed
        self.context, self.environment, self.default = event.context, event.environment, event.default
        self.host = event.host
        self.fidelity = "predicted" if event.fidelity == "simulate" else "measured"
        self.began = event.at
        self.patience = int(event.hyper.get("patience", 0))

    def _steer(self, event: Steered) -> None:
        self.orders.append(event)
        if event.refused:
            return
        if event.what in ("pause", "go"):
            self.paused = event.what == "pause"
        elif event.what == "budget":
            self._limit(profiles=int(event.values["profiles"]))

    def _limit(self, **limits: int | str) -> None:
        if self.job is not None:
            self.job = msgspec.structs.replace(self.job, budget=msgspec.structs.replace(self.job.budget, **limits))

    def _reward(self, event: Rewarded) -> None:
        for name, (pulls, mean) in event.arms.items():
            arm = self.arms.setdefault(name, Arm())
            arm.pulls, arm.mean = pulls, mean
        earned = {"SPARSE": event.delta_sparse, "DENSE": event.delta_dense}
        if len(event.costs) == 4 and event.costs[0] and event.costs[3]:
            earned["MODEL"] = 1 - event.costs[3] / event.costs[0]
        if self.arm in self.arms and self.arm in earned:
            self.arms[self.arm].last = earned[self.arm]
        self.grid = Grid(
            names=self.decision.names if self.decision else [],
            arm=self.arm,
            costs=event.costs,
            delta_sparse=event.delta_sparse,
            delta_dense=event.delta_dense,
            interaction=event.interaction,
            errors=event.errors,
        )

    def _begin(self, event: ExperimentStarted) -> None:
        run = self._run(event.number, event.purpose, event.configuration, event.name)
        run.began, run.folder = event.at, event.folder
        self.running[event.number] = run

    def _wait(self, event: Waiting) -> None:
        """Notes that the session waits for devices. Experiments begin when the wait is over."""
        self.waiting = None if event.over else event
        if event.over:
            for run in self.running.values():
                run.began = event.at

    def _predicted(self, event: Checked) -> None:
        """Adds the predicted value of a check to the newest run of its configuration. In the journal, the check
        directly follows that run."""
        run = next((r for r in reversed(self.runs[-8:]) if r.name == event.name), None)
        if run is not None:
            run.predicted = event.predicted

    def _finish(self, event: ExperimentEnded) -> None:
        run = self.running.pop(event.number, None)
        self.waiting = None
        m = event.measurement
        if run is None:
            run = self._run(event.number, event.purpose, m.configuration, m.name)
            run.began = event.at - m.cost_s
        run.ended = event.at
        run.configuration, run.name = m.configuration, m.name  # uses the same object, to save memory
        self.device_s += m.device_s
        if event.purpose in SEARCH_PURPOSES and charged(m):
            self.searched += 1
            self.unscored += 1
        if event.purpose == "confirm":
            self.confirms.append(m.configuration.id)
        self._measured(run, m, "measured")

    def _run(self, number: int | None, purpose: str, configuration: Configuration, name: str) -> Run:
        searching = purpose not in BESIDE
        run = Run(
            number=number,
            name=name,
            configuration=configuration,
            purpose=purpose,
            arm=self.arm if searching else "",
            why=self.decision.why if searching and self.decision else "",
            predicted=self.predictions.get(configuration.id),
        )
        self.runs.append(run)
        return run

    def _measured(self, run: Run, m: Measurement, kind: Literal["measured", "known"]) -> None:
        assert self.job is not None
        objective = self.job.objective
        c = cost(objective, m)
        run.measurement, run.status = m, m.status
        run.value = None if c is None else to_metric(objective, c)
        run.note = m.evidence or run.note
        if c is None and m.status == "ok":
            run.status, run.note = "limit", broken(objective, m)
        if run.status == "infrastructure":
            self.incidents += 1
            return
        if run.status != "ok":
            self.failures[run.status] = self.failures.get(run.status, 0) + 1
        if self.default is not None and m.configuration == self.default and self.default_value is None:
            self.default_value = run.value
            # An anchor (a repeated run of the default) becomes the best if no run of this session has been the best.
            if run.purpose == "anchor" and run.value and self.best is None:
                self.best = BestFound(configuration=m.configuration, name=run.name, value=run.value, experiments=0)
        if run.value and run.purpose in (*SEARCH_PURPOSES, "answered"):
            self._lead(run.configuration.id, run.value, bool(objective.minimize))
        if run.purpose not in BESIDE:
            self._credit(run, c, m.device_s if kind == "measured" else None)
            self.curve.append(Point(len(self.curve) + 1, run.value, kind))

    def _lead(self, key: str, value: float, minimized: bool) -> None:
        better = min if minimized else max
        self.leaders[key] = better(value, self.leaders.get(key, value))
        if len(self.leaders) > LEADERS:
            worst = (max if minimized else min)(self.leaders, key=self.leaders.__getitem__)
            del self.leaders[worst]

    def _credit(self, run: Run, c: float | None, device_s: float | None) -> None:
        """Adds an experiment's gain over the best before it, and its device-seconds, to its bandit arm's effort."""
        gain = 0.0
        if c is not None and (self.least is None or c < self.least):
            gain = (self.least - c) / abs(self.least) if self.least else 0.0
            self.least = c
        if run.arm and device_s is not None:
            self.efforts.setdefault(run.arm, Effort()).add(gain, device_s)


def _better(job: Job | None, value: float, before: float) -> bool:
    """Whether `value` is better by more than 1 %."""
    minimized = job is None or bool(job.objective.minimize)
    return value < 0.99 * before if minimized else value > before / 0.99


def fold(events: list[AnyEvent]) -> State:
    state = State()
    for event in events:
        state.apply(event)
    return state


def best_so_far(state: State) -> list[tuple[int, float]]:
    """(number of the evaluation, best value so far) for each improvement."""
    minimized = state.job is None or bool(state.job.objective.minimize)
    steps: list[tuple[int, float]] = []
    for point in state.curve:
        if point.value is None or point.kind == "predicted":
            continue
        if not steps or (point.value < steps[-1][1] if minimized else point.value > steps[-1][1]):
            steps.append((point.at, point.value))
    return steps
