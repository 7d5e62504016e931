"""Watches whether a winner is still right (`when --watch`), and reports each change of the answer.

When a metric leaves its band (moved.py), all readings since then are compared with the load for which the winner was
tuned (when.py), and the metric's new level becomes its usual one. So the answer changes without cause only after a
false alarm, and the mean number of readings before a false alarm is at least CALM."""

import math
from collections import deque
from collections.abc import Mapping
from pathlib import Path

from autoscout.deploy import when
from autoscout.deploy.moved import BandWatch, log_ratio
from autoscout.deploy.when import StillRight, Winner
from autoscout.importing.served_load import FEWEST, MetricsReading, answered, load_between, restarted

EVERY_S = 5.0  # seconds between two readings
CALM = round(7 * 24 * 3600 / EVERY_S)  # lower bound on the mean number of readings before a false alarm: a week
_KEPT = 720  # number of windows (time between two compared readings) that are kept for a comparison


class WinnerWatch:
    """Watches whether the answer changes. `answer`: the last answer; `changes`: number of changes of the answer; `now`:
    metric → ratio of its last value to the value for which the winner was tuned; `restarts`: number of restarts of the
    server or of the log."""

    def __init__(self, winner: Winner, band: float) -> None:
        self.winner, self._band = winner, math.log1p(band)
        self.moved: BandWatch | None = None
        self.answer: StillRight | None = None
        self.now: dict[str, float] = {}
        self.changes = self.restarts = 0
        self._usual: dict[str, float] = {}

    def _if_changed(self, found: StillRight) -> StillRight | None:
        """Returns the answer if it is the first one or differs from the last, else None. Afterwards, further changes
        are detected relative to the present values, or to the tuned-for values if none has left its band."""
        band = math.expm1(self._band)
        moved = any(abs(c.now - c.then) > band * c.then for c in found.changes)
        self._usual = {c.name: c.now if moved else c.then for c in found.changes}
        self.now = {c.name: c.now / c.then for c in found.changes}
        self.moved = BandWatch(list(self._usual), self._band, CALM)
        before, self.answer = self.answer, found
        self.changes += before is not None and before.kind != found.kind
        return None if before and before.kind == found.kind else found

    def _seen(self, found: Mapping[str, float], tuned: Mapping[str, float]) -> bool:
        self.now |= {name: value / tuned[name] for name, value in found.items()}
        return self.moved is not None and self.moved.see({n: log_ratio(v, self._usual[n]) for n, v in found.items()})


class ServerWatch(WinnerWatch):
    """Watches a server. `first_s`: seconds of readings that the first answer needs."""

    def __init__(self, winner: Winner, kb: Path, first_s: float) -> None:
        super().__init__(winner, when.MOVED)
        self._kb, self._first_s = kb, first_s
        # (time, reading) at the end of each window
        self._ends: deque[tuple[float, MetricsReading]] = deque(maxlen=_KEPT + 1)

    def see(self, reading: MetricsReading, at: float) -> StillRight | None:
        """Adds a reading; `at`: its time in seconds, by any clock. Returns the answer if it has to be reported."""
        since, before = self._ends[-1] if self._ends else (at, reading)
        self.restarts += (again := restarted(before, reading))
        if again or not self._ends:
            self._ends.clear()
            self._ends.append((at, reading))
            return None
        requests, seconds = answered(before, reading), at - since
        if self.moved is None:
            return self._look(0, reading, at) if requests >= FEWEST and seconds >= self._first_s else None
        rate = self._usual.get("requests/s", 0.0)
        if requests >= FEWEST:
            moves = when.moves(self.winner.job, load_between(before, reading, seconds))
            alarm = self._seen({c.name: c.now for c in moves}, {c.name: c.then for c in moves})
        elif seconds * rate > 2 * FEWEST:
            alarm = self._seen({"requests/s": requests / seconds}, {"requests/s": self.winner.job.traffic.rate})
        else:
            return None
        self._ends.append((at, reading))
        return self._look(self.moved.since, reading, at) if alarm else None

    def _look(self, since: int, reading: MetricsReading, at: float) -> StillRight | None:
        """Compares the load after the first `since` windows; None also if too few requests have been answered since."""
        windows = self.moved.seen - since if self.moved else 0
        began, start = self._ends[-min(windows + 1, len(self._ends))]
        if answered(start, reading) < FEWEST:
            return None
        changed = self._if_changed(when.of_load(self.winner, load_between(start, reading, at - began), self._kb))
        self._ends.clear()
        self._ends.append((at, reading))
        return changed


class LogWatch(WinnerWatch):
    """Watches the step times of a training job."""

    def __init__(self, winner: Winner) -> None:
        super().__init__(winner, when.SLOWER)
        self._steps: list[float] = []  # step times in seconds since the last comparison
        self._count = 0

    def see(self, steps: list[float]) -> StillRight | None:
        """Adds step times; returns the answer if it has to be reported, else None. `steps`: seconds of all steps in the
        log so far."""
        if again := len(steps) < self._count:
            self._steps, self._count = [], 0
        self.restarts += again
        new, self._count = steps[self._count :], len(steps)
        changed = None
        for step in new:
            self._steps.append(step)
            alarm = self._seen({when.STEP: step}, {when.STEP: when.tuned_step(self.winner)}) or self.moved is None
            recent = self._steps[-(self.moved.seen - self.moved.since) if self.moved else 0 :]
            if alarm and len(recent) >= when.FEWEST:
                changed = self._if_changed(when.of_steps(self.winner, recent)) or changed
                self._steps = []
        return changed
