"""`tune` without screens: one line per relevant event, readable in a log file, within 80 columns if possible."""

from collections.abc import Callable

from autoscout.job.objective import broken, cost, to_metric
from autoscout.running import ranks
from kb import dates
from kb.journal import (
    Answered,
    AnyEvent,
    Checked,
    Decided,
    Event,
    ExperimentEnded,
    FidelitySwitched,
    Outlook,
    SearchEnded,
    SessionStarted,
    Simulated,
    TournamentRanked,
    charged,
)
from kb.records import Job, Measurement
from tui.session.eta import remaining, to_confirm
from tui.session.standing import REASONS
from tui.session.state import State
from tui.text import clock, metric, number, when_and_where

_EVERY = 5  # experiments between two estimates of the remaining time
_IN_A_ROW = 3
_WORDS = {"anchor": "reference", "repeat": "repeated"}


class Progress:
    """Turns events into lines. `write` gets each finished line."""

    def __init__(self, job: Job, session: str, write: Callable[[str], None]) -> None:
        self.job = job
        self.write = write
        self.began = self.now = dates.now()
        self.session = session
        self.arm = ""
        self.searched = 0
        self.simulated = 0
        self.checks = 0
        self.trusted: bool | None = None
        self.confirming = False
        self.confirmed = 0  # measurements of the finalists
        self.state = State()
        self.outlook: Outlook | None = None
        self.slowed: dict[int, int] = {}  # rank → consecutive runs in which it was the slowed one
        self.default: float | None = None  # cost
        self.best: float | None = None  # cost

    def replay(self, past: list[AnyEvent]) -> None:
        """Applies the past events of a resumed session without printing them."""
        write, self.write = self.write, lambda line: None
        for event in past:
            self.see(event)
        self.write = write
        self.began = dates.now()

    def see(self, event: Event) -> None:
        self.now = event.at or dates.now()
        self.state.apply(event)  # type: ignore[arg-type]
        match event:
            case SessionStarted():
                self.session, self.began = event.session, self.now
                self._line(f"session {event.session}")
            case Decided():
                self.arm = event.arm
            case ExperimentEnded():
                self._experiment(event)
            case Answered():
                self._measured(event.measurement, "known")
                self.write(f"{'':>36}of session {event.measured_by}{when_and_where(event.measurement)}")
            case Simulated():
                self.simulated += 1
                if self.simulated % 50 == 1:
                    self._line(
                        f"{'predicted':<14}  {self.arm:<7}  {metric(self.job, event.predicted):<14}  {event.name} "
                        f"(prediction {self.simulated})"
                    )
            case TournamentRanked():
                kept = [" → ".join(event.orderings[k][:3]) for k in event.kept]
                self._line(f"tournament round {event.round + 1}: {len(kept)} of {len(event.orderings)} orderings stay")
                if len(kept) == 1:
                    self._line(f"the tree branches on {kept[0]} first")
            case Checked():
                self._check(event)
            case FidelitySwitched():
                self._line(f"from simulating to profiling: {event.why}")
            case SearchEnded():
                self.confirming = True
                self._line(f"search ends: {REASONS.get(event.reason, event.reason)}{self._worth()}")
            case Outlook():
                self.outlook = event
            case _:
                pass

    def _check(self, event: Checked) -> None:
        """Prints a check only if the verdict changes, since every experiment may be a check."""
        self.checks += 1
        trusted = event.mape <= event.epsilon
        if trusted == self.trusted:
            return
        self.trusted = trusted
        found = "failed" if event.measured is None else metric(self.job, event.measured)
        self._line(
            f"check {self.checks} of the simulators: predicted {number(event.predicted)}, {self.state.seen} {found}; "
            f"MAPE {event.mape:.0%} (limit {event.epsilon:.0%})"
        )

    def _experiment(self, event: ExperimentEnded) -> None:
        if event.purpose in ("search", "check"):
            counts, m = charged(event.measurement), event.measurement
            self.searched += counts
            seen = "shadow" if m.fidelity == "shadow" else self.state.seen
            self._measured(m, f"{seen} {self.searched}/{self.job.budget.profiles}")
            if counts and self.searched % _EVERY == 0:
                self._to_go()
        elif event.purpose == "confirm":
            self.arm = ""
            self.confirmed += 1
            self._measured(event.measurement, f"again {self.confirmed}/{self._most()}")
            if self.confirmed % _EVERY == 0 and self.confirmed < self._most():
                self._to_go()
        else:
            self._measured(event.measurement, _WORDS.get(event.purpose, event.purpose))

    def _most(self) -> int:
        """Measurements until the first two rounds end; after them until the last possible round ends."""
        least = to_confirm(self.state)
        if self.confirmed <= least:
            return least
        names = {run.configuration.id for run in self.state.runs if run.purpose == "confirm"}
        return max(self.confirmed, least + (self._rounds() - 2) * len(names))

    def _rounds(self) -> int:
        from autoscout.tuning.trial import most_rounds

        return most_rounds(self.job.launch.repeats, self.searched)

    def _to_go(self) -> None:
        """Prints progress and the estimated time left."""
        left = remaining(self.state)
        if left is None:
            return
        time_left = f"about {clock(left.total)} to go ({clock(left.low)} to {clock(left.high)})"
        if left.total < 1:
            time_left = "less than a second to go"
        if self.confirming:
            self._line(
                f"re-measuring: {time_left}; more rounds, {self._rounds()} at most, while they may change the choice"
            )
        else:
            done = f"{self.searched} of {self.job.budget.profiles} experiments"
            self._line(f"{done}; {time_left}{self._with_rounds()}{self._worth()}")

    def _with_rounds(self) -> str:
        return ", re-measuring included" if self.state.seen == "measured" else ""

    def _worth(self) -> str:
        if self.outlook is None:
            return ""
        o = self.outlook
        return f"; P(one 1 % better is left) {o.chance:.0%}, {o.ahead} more are expected to gain {o.gain:.1%}"

    def _measured(self, m: Measurement, fidelity: str) -> None:
        c = cost(self.job.objective, m)
        if self.default is None and self.arm == "DEFAULT":
            self.default = c
        if c is not None and (self.best is None or c < self.best) and fidelity.startswith((self.state.seen, "known")):
            self.best = c
        if c is not None:
            shown = metric(self.job, to_metric(self.job.objective, c))
        else:
            shown = "over a limit" if m.status == "ok" else m.status
        self._line(f"{fidelity:<14}  {self.arm:<7}  {shown:<14}  {m.name}")
        self._ranks(m)
        problem = m.evidence or (broken(self.job.objective, m) if c is None else "")
        if problem:
            self.write(f"{'':>36}{problem}")

    def _ranks(self, m: Measurement) -> None:
        """Reports a rank that is slowed in three consecutive runs, once: in a single run it may be chance."""
        found = ranks.slowest(m)
        if found is None:
            return
        slow = found.rank if ranks.slowed(m) else None
        self.slowed = {} if slow is None else {slow: self.slowed.get(slow, 0) + 1}
        if slow is not None and self.slowed[slow] == _IN_A_ROW:
            self._line(f"{found.sentence}, {_IN_A_ROW} runs in a row")

    def _line(self, text: str) -> None:
        self.write(f"{clock(max(0.0, self.now - self.began))}  {self._standing():<27}  {text}")

    def _standing(self) -> str:
        """The best so far and its gain over the default."""
        if self.confirming and self.state.seen == "measured":
            return "re-measuring"
        if self.best is None:
            return "best –"
        value = to_metric(self.job.objective, self.best)
        gain = f" ({self.default / self.best:.2f}× default)" if self.default else ""
        return f"best {number(value)}{gain}"
