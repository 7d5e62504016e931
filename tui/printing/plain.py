"""Output of `tune` without screens: one line per experiment, with the knobs that differ from the reference and the
gain; with `verbose`, also steps of the search."""

from collections.abc import Callable

from autoscout.job.objective import broken, cost, to_metric
from autoscout.running import ranks
from autoscout.running.conditions import BUSY
from autoscout.tuning.repeats import most_rounds
from kb import dates
from kb.journal import (
    Answered,
    AnyEvent,
    Checked,
    Event,
    ExperimentEnded,
    ExperimentStarted,
    FidelitySwitched,
    Outlook,
    SearchEnded,
    SessionEnded,
    SessionStarted,
    Simulated,
    TournamentRanked,
    charged,
)
from kb.records import Job, Measurement
from tui.options import given_kb
from tui.session.eta import remaining, to_confirm
from tui.session.standing import REASONS, cut_short
from tui.session.state import State
from tui.text import changes, clock, metric, number, program, when_and_where

_EVERY = 5  # number of experiments between two estimates of the remaining time, if no status line shows it
_IN_A_ROW = 3
_INDENT = " " * 20


class Progress:
    """Turns events into lines. `write`: called with each line; `show`: called with a status, which replaces the
    previous status; `verbose`: whether to include tournaments, checks of the simulators and repeated measurements of
    the search."""

    def __init__(
        self,
        job: Job,
        session: str,
        write: Callable[[str], None],
        verbose: bool = False,
        show: Callable[[str], None] | None = None,
    ) -> None:
        self.job = job
        self.write = write
        self.verbose = verbose
        self.show = show
        self.began = self.now = dates.now()
        self.session = session
        self.searched = 0
        self.simulated = 0
        self.checks = 0
        self.trusted: bool | None = None
        self.confirming = False
        self.confirmed = 0  # number of measurements in the final rounds
        self.state = State()
        self.outlook: Outlook | None = None
        self.disturbed = False  # whether other load on the machine was reported
        self.slowed: dict[int, int] = {}  # rank → number of consecutive runs in which its device was slow
        self.default: float | None = None  # cost of the default
        self.best: float | None = None  # lowest cost

    def replay(self, past: list[AnyEvent]) -> None:
        """Takes in the past events of a resumed session without printing them."""
        (write, show), self.write, self.show = (self.write, self.show), lambda line: None, None
        for event in past:
            self.see(event)
        self.write, self.show = write, show
        self.began = dates.now()

    def see(self, event: Event) -> None:
        self.now = event.at or dates.now()
        self.state.apply(event)  # type: ignore[arg-type]
        match event:
            case SessionStarted():
                self.session, self.began = event.session, self.now
                self._line(f"session {event.session}")
            case ExperimentStarted():
                self._status()
            case ExperimentEnded():
                self._experiment(event)
            case Answered():
                self._measured(event.measurement, "known")
                self.write(f"{_INDENT}from session {event.measured_by}{when_and_where(event.measurement)}")
            case Simulated():
                self.simulated += 1
                if self.simulated % 50 == 1:
                    self._line(f"{'predicted':<11}  {metric(self.job, event.predicted):<14}  {self.simulated} so far")
            case TournamentRanked():
                kept = [" → ".join(event.orderings[k][:3]) for k in event.kept]
                self._detail(
                    f"tournament round {event.round + 1}: {len(kept)} of {len(event.orderings)} orderings stay"
                )
                if len(kept) == 1:
                    self._detail(f"the tree branches on {kept[0]} first")
            case Checked():
                self._check(event)
            case FidelitySwitched():
                self._detail(f"switch from simulating to profiling: {event.why}")
            case SearchEnded():
                self.confirming = True
                self._line(f"the search ends: {REASONS.get(event.reason, event.reason)}{self._worth()}")
            case SessionEnded():
                if cut_short(self.state):
                    more = f"{program()} tune --resume {self.session}{given_kb()} --wall 2h"
                    self._line(f"the final rounds end: {REASONS['wall']}; continue them: {more}")
            case Outlook():
                self.outlook = event
            case _:
                pass

    def _check(self, event: Checked) -> None:
        """Prints a check of the simulators if the verdict changes (every experiment may be a check)."""
        self.checks += 1
        trusted = event.mape <= event.epsilon
        if trusted == self.trusted:
            return
        self.trusted = trusted
        found = "failed" if event.measured is None else metric(self.job, event.measured)
        self._detail(
            f"check {self.checks} of the simulators: predicted {number(event.predicted)}, {self.state.seen} {found}; "
            f"mean error {event.mape:.0%} (limit {event.epsilon:.0%})"
        )

    def _experiment(self, event: ExperimentEnded) -> None:
        m = event.measurement
        if event.purpose in ("search", "check"):
            counts = charged(m)
            self.searched += counts
            shadow = "shadow " if m.fidelity == "shadow" else ""
            self._measured(m, f"{shadow}{self.searched}/{self.job.budget.profiles}")
            if counts and self.searched % _EVERY == 0:
                self._to_go()
        elif event.purpose == "confirm":
            self.confirmed += 1
            self._measured(m, f"again {self.confirmed}/{self._most()}")
            if self.confirmed % _EVERY == 0 and self.confirmed < self._most():
                self._to_go()
        elif self.verbose or m.status != "ok":
            self._measured(m, event.purpose)

    def _most(self) -> int:
        """Number of measurements in the first two final rounds; once these are over, the limit for all final rounds."""
        least = to_confirm(self.state)
        if self.confirmed <= least:
            return least
        names = {run.configuration.id for run in self.state.runs if run.purpose == "confirm"}
        return max(self.confirmed, least + (self._rounds() - 2) * len(names))

    def _rounds(self) -> int:
        return most_rounds(self.job.launch.repeats, self.searched)

    def _to_go(self) -> None:
        """Prints the estimated remaining time, unless a status line shows it."""
        if self.show is None and (left := self._left()):
            self._line(left)

    def _status(self) -> None:
        if self.show is not None and (left := self._left()):
            self.show(f"{clock(max(0.0, self.now - self.began))}  {left}")

    def _left(self) -> str:
        """The session's progress and remaining time as text; "" before the first experiment has ended."""
        left = remaining(self.state)
        if left is None:
            return ""
        time_left = "less than a second to go"
        if left.total >= 1:
            low, high = clock(left.low), clock(left.high)
            time_left = f"about {clock(left.total)} to go{f' ({low} to {high})' * (low != high)}"
        if self.confirming:
            times = "once" if self.confirmed == 1 else f"{self.confirmed} times"
            return f"finalists re-measured {times}; {time_left}"
        return f"{self.searched} of {self.job.budget.profiles} experiments; {time_left}"

    def _worth(self) -> str:
        o = self.outlook
        return "" if o is None else f"; chance that a configuration at least 1 % better is left: {o.chance:.0%}"

    def _measured(self, m: Measurement, what: str) -> None:
        c = cost(self.job.objective, m)
        if m.configuration == self.state.default and self.default is None:
            self.default = c
        if c is not None:
            shown = metric(self.job, to_metric(self.job.objective, c))
        else:
            shown = "over a limit" if m.status == "ok" else m.status
        reference = self.state.default.knobs if self.state.default else {}
        self._line(f"{what:<11}  {shown:<14}  {self._against(m, c)}{changes(reference, m.configuration.knobs)}")
        self._ranks(m)
        share = m.conditions.get("foreign_cpu_share", 0.0)
        if share >= BUSY and not self.disturbed:
            self.disturbed = True
            self.write(f"{_INDENT}other processes took {share:.0%} of this machine's CPU time during this run")
        problem = m.evidence or (broken(self.job.objective, m) if c is None else "")
        if problem:
            self.write(f"{_INDENT}{problem}")

    def _against(self, m: Measurement, c: float | None) -> str:
        """The gain over the reference's first run, and whether it is the best so far; "" in the final rounds, since the
        machine may have changed since that run."""
        if c is None or self.confirming:
            return ""
        words = []
        if self.default and m.configuration != self.state.default:
            words = [_better(self.default / c)]
        if self.best is None or c < self.best:
            words += ["the best so far"] if self.best is not None else []
            self.best = c
        return f"{', '.join(words)}: " if words else ""

    def _ranks(self, m: Measurement) -> None:
        """Reports a rank once if its device was slow in three consecutive runs; in a single run it may be chance."""
        found = ranks.slowest(m)
        if found is None:
            return
        slow = found.rank if ranks.slowed(m) else None
        self.slowed = {} if slow is None else {slow: self.slowed.get(slow, 0) + 1}
        if slow is not None and self.slowed[slow] == _IN_A_ROW:
            self._line(f"{found.sentence}, {_IN_A_ROW} runs in a row")

    def _detail(self, text: str) -> None:
        if self.verbose:
            self._line(text)

    def _line(self, text: str) -> None:
        self.write(f"{clock(max(0.0, self.now - self.began))}  {text}")


def _better(ratio: float) -> str:
    """A ratio of costs as text, such as "33 % better" or "2.4 × worse"."""
    way, factor = ("better", ratio) if ratio >= 1 else ("worse", 1 / ratio)
    return f"{factor:.1f} × {way}" if factor >= 2 else f"{100 * (factor - 1):.0f} % {way}"
