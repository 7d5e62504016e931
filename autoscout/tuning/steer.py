"""Orders that a user gives to a running session (`autoscout steer`). Each is journaled when it takes effect, so that a
resumed session applies it at the same point."""

from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec

from autoscout.space.explain import completed, parse
from autoscout.space.graph import Space
from autoscout.targets.jobs import JobSpace
from autoscout.tuning.tape import Tape
from kb.journal import Steered
from kb.orders import Order, given
from kb.records import AutoscoutError, Configuration, Job


class Steering:
    """Reads the orders of one session, each once."""

    def __init__(
        self,
        folder: Path,
        tape: Tape,
        job: Job,
        space: Space,
        on_note: Callable[[str], None],
        favourite: Callable[[], Configuration | None],
        deaf: str = "",
    ) -> None:
        """`favourite`: returns the unmeasured configuration with the best prediction; `deaf`: why the strategy takes no
        proposals, "" if it does."""
        self.folder, self.favourite, self.deaf = folder, favourite, deaf
        self.tape, self.job, self.space, self.on_note = tape, job, space, on_note
        self.allowed = space  # narrowed by `pin` and `exclude`
        self.taken = 0
        self._stale = len(given(folder)) if tape.replaying else 0  # number of orders given before the resume

    def orders(self, best: Configuration) -> Iterator[Order]:
        """New valid orders. In a resumed session the recorded ones come first, except `pause` and `go`."""
        while recorded := self.tape.recorded(Steered):
            self.taken += 1
            if not recorded.refused and recorded.what not in ("pause", "go"):
                yield Order(
                    what=recorded.what,  # type: ignore[arg-type]
                    values=recorded.values,
                    by=recorded.by,
                    why=recorded.why,
                )
        for order, stale in [] if self.tape.replaying else self._new():
            refused = (
                "the line in the file is not an order" if order.what == "unreadable" else self._refusal(order, best)
            )
            if order.what == "pause" and stale:
                refused = "this order was given before the session was resumed; give it again"
            steered = Steered(what=order.what, values=order.values, by=order.by, why=order.why, refused=refused)
            self.tape.emit(steered, sync=True)
            if refused:
                self.on_note(f"{order.what} is refused: {refused}")
            else:
                yield order

    def wanted(self, order: Order, best: Configuration) -> Configuration:
        """The configuration in an order; knobs that it does not set are as in `best`. Errors: AutoscoutError with the
        reasons if it is not valid."""
        given = parse(self.space, [f"{name}={value}" for name, value in order.values.items()])
        return completed(self.space, given, best)

    def narrow(self, order: Order) -> Space:
        """The space that remains after pinning or excluding."""
        self.job = self._limited(order)
        self.allowed = JobSpace.of_job(self.job)
        return self.allowed

    def _new(self) -> list[tuple[Order, bool]]:
        """(new order, whether it was given before the session was resumed)"""
        all_of_them = given(self.folder)
        found = [(order, at < self._stale) for at, order in enumerate(all_of_them)][self.taken :]
        self.taken = max(self.taken, len(all_of_them))
        return found

    def _refusal(self, order: Order, best: Configuration) -> str:
        try:
            if order.what in ("propose", "hold", "hear") and self.deaf:
                return self.deaf
            if order.what in ("try", "retry", "propose"):
                self.wanted(order, best)
            elif order.what == "validate" and self.favourite() is None:
                return "this session has no simulators to predict an unmeasured configuration"
            elif order.what in ("pin", "exclude") and not isinstance(self.space, JobSpace):
                return "a space without a job file cannot be narrowed; start a study with a narrower space"
            elif order.what in ("pin", "exclude"):
                JobSpace.of_job(self._limited(order))
        except AutoscoutError as error:
            return str(error)
        return ""

    def _limited(self, order: Order) -> Job:
        """The job with the space's limits narrowed by an order. Errors: AutoscoutError for an unknown knob or value."""
        given = parse(self.space, [f"{name}={value}" for name, value in order.values.items()])
        limit, fix = dict(self.job.space.limit), dict(self.job.space.fix)
        for name, value in given.items():
            if order.what == "pin":
                fix[name] = value
            else:
                limit[name] = [v for v in limit.get(name, self.space.knob[name].values) if v != value]
        return msgspec.structs.replace(self.job, space=msgspec.structs.replace(self.job.space, limit=limit, fix=fix))
