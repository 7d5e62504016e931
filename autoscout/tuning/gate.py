"""A gate, for CI: compares two versions of a job (sides A and B, sides.py). Is B slower than A by more than a margin,
and does it compute the same?

    one run of each side, whose time is not used: do both start, and does B compute the same as A?
    pairs ──► look (pairs.py) ──► worse, no worse, or undecided at the limit

The two runs of a pair follow each other, or they share the time and each has half of the machine (at_once.py). Each
side is a session of its own, so all measurements are in the knowledge base; B's session has the verdict.
"""

import contextlib
import math
import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

import msgspec

from autoscout.job.objective import cost_of_run
from autoscout.targets.jobs import JobSpace, profiler_of
from autoscout.tuning import evidence, pairs, session
from autoscout.tuning.at_once import Duet, halves
from autoscout.tuning.engine import ALONE
from autoscout.tuning.loop import Interrupted, Loop, Stop, end
from autoscout.tuning.sides import Side
from kb import dates
from kb.end_events import Gated
from kb.records import AutoscoutError, Measurement
from kb.within_events import Part

LIMIT = 40  # largest number of pairs
MARGIN = 0.01
_AGAIN = 2  # largest number of repeats of a run that failed by a fault of the machine
SPOILED = ("infrastructure", "killed")  # statuses of failures that the version under test did not cause
_SHARED = (*SPOILED, "oom", "timeout")  # the same if A and B run at the same time
_HARDWARE = ("device", "devices", "cpu", "cpus", "gpu", "driver", "hosts")  # environment values that must be equal


class GateSide(msgspec.Struct, frozen=True):
    """A or B of a comparison, with its session and the measurements so far."""

    side: Side
    loop: Loop
    done: list[Measurement]

    def run(self) -> Measurement:
        """Runs the side once more; repeats a run that failed by a fault of the machine."""
        found = self.loop.measured(self.side.configuration, "confirm")
        for _ in range(_AGAIN):
            if found.status == "infrastructure":
                found = self.loop.measured(self.side.configuration, "confirm")
        self.done.append(found)
        return found


class Runs(msgspec.Struct, frozen=True):
    """`pair`: runs both sides once and yields (side, result) of each; its argument is the number of the pair, from 0,
    or -1 for the first runs. `spoiled`: statuses of failures that the version under test did not cause."""

    pair: Callable[[int], Iterator[tuple[GateSide, Measurement]]]
    spoiled: tuple[str, ...]


def gate(
    a: Side,
    b: Side,
    kb: Path,
    on_note: Callable[[str], None],
    stop: Stop,
    margin: float = MARGIN,
    limit: int = LIMIT,
    wall_s: float = float("inf"),
    together: bool = False,
) -> Gated:
    """The verdict on B against A. `together`: whether the two runs of a pair take place at the same time.

    Errors: AutoscoutError (exit 2) if the sides are not comparable, (exit 1) if A does not run; Interrupted."""
    _comparable(a, b)
    session.repair(kb, on_note)
    began = time.monotonic()
    with contextlib.ExitStack() as held:
        ours, theirs = (opened(held, side, kb, on_note, stop, together=together) for side in (a, b))
        ran = (ours, theirs)
        runs = at_once(held, ours, theirs, on_note, stop) if together else in_turn(ours, theirs, stop)
        _same_hardware(ours.loop.engine.started.environment, theirs.loop.engine.started.environment)
        try:
            found = _first_runs(ours, theirs, runs, margin)
            if found is None:
                found = _compared(ours, theirs, runs, on_note, margin, limit, began + wall_s)
        except Interrupted:
            for each in ran:
                end(each.loop.engine, kb, "interrupted", on_note)
            raise
        theirs.loop.tape.emit(found, sync=True)
        for each in ran:
            end(each.loop.engine, kb, "profiled", on_note)
    return found


def opened(
    held: contextlib.ExitStack,
    side: Side,
    kb: Path,
    on_note: Callable[[str], None],
    stop: Stop,
    kind: str = "gate",
    together: bool = False,
) -> GateSide:
    """Opens a session for a side; the session is closed with `held`. `together`: see `gate`; measurements are then not
    comparable to those of a side that has the machine for itself."""
    profiler = held.enter_context(contextlib.closing(profiler_of(side.job)))
    space = JobSpace.of_job(side.job)
    options = session.SessionOptions(strategy=ALONE, fidelity="profile", warm_start="off")
    name = session.new_id(side.job, kind)
    environment = profiler.environment() | ({"at_once": "half of this machine"} if together else {})
    begun = session.begun(name, side.job, kb, space, options, environment, lambda event: None, on_note)
    engine = held.enter_context(begun)
    return GateSide(side, Loop(engine, profiler, kb, on_note, stop), [])


def in_turn(a: GateSide, b: GateSide, stop: Stop) -> Runs:
    """Runs the two sides of a pair one after the other."""

    def interrupt() -> None:
        for each in (a, b):
            each.loop.profiler.interrupt()

    def pair(number: int) -> Iterator[tuple[GateSide, Measurement]]:
        for name in _order(number):
            each = a if name == pairs.A else b
            yield each, each.run()

    stop.now = interrupt
    return Runs(pair, SPOILED)


def at_once(held: contextlib.ExitStack, a: GateSide, b: GateSide, on_note: Callable[[str], None], stop: Stop) -> Runs:
    """Runs the two sides of a pair at the same time. Errors: AutoscoutError (exit 2) if the machine is too small."""
    sides = {pairs.A: a, pairs.B: b}
    parts, _ = (halves(each.side.job, each.loop.engine.started.environment) for each in (a, b))
    duet = held.enter_context(contextlib.closing(Duet({name: each.loop for name, each in sides.items()}, parts)))
    cpus = " and ".join(str(len(part.cpus)) for part in parts)
    on_note(f"A and B run at the same time, on {cpus} CPUs")

    def pair(number: int) -> Iterator[tuple[GateSide, Measurement]]:
        for left in range(_AGAIN, -1, -1):
            found = duet.run({name: each.side.configuration for name, each in sides.items()}, _order(number))
            again = left and any(measured.status == "infrastructure" for _, measured in found.values())
            for name, each in sides.items():
                result = each.loop.finish(*found[name])
                if not again:
                    each.done.append(result)
                    yield each, result
            if not again:
                return

    stop.now = duet.interrupt
    return Runs(pair, _SHARED)


def _order(number: int) -> tuple[str, str]:
    return pairs.order(number) if number >= 0 else (pairs.A, pairs.B)


def retuned(side: Side, kb: Path, on_note: Callable[[str], None], stop: Stop) -> Side:
    """Tunes a side in a new session and returns the side with the winner's configuration. Errors: AutoscoutError."""
    result = session.tune(side.job, kb, session.SessionOptions(), lambda event: None, on_note, stop)
    if result.confirmed is None:
        raise AutoscoutError(f"{side.label}: session {result.session} ended without a winner to compare")
    on_note(f"{side.label}: {result.confirmed.name} of session {result.session}")
    return msgspec.structs.replace(side, configuration=result.confirmed.winner)


def _comparable(a: Side, b: Side) -> None:
    if a.job.id != b.job.id:
        ours, theirs = msgspec.to_builtins(a.job), msgspec.to_builtins(b.job)
        other = [key for key in ("task", "target", "model", "traffic") if ours.get(key) != theirs.get(key)]
        what = ", ".join(other) or "name"
        raise AutoscoutError(
            f"{a.label} and {b.label} do different work ({what}): a gate compares versions of one job", 2
        )
    ours, theirs = (" + ".join(f"{n.count}×{n.device}" for n in each.job.cluster.nodes) for each in (a, b))
    if ours != theirs:
        raise AutoscoutError(
            f"{a.label} runs on {ours} and {b.label} on {theirs}: a gate compares sides on the same hardware", 2
        )
    if a.job.objective != b.job.objective:
        raise AutoscoutError(
            f"{a.label} and {b.label} have different objectives; a gate needs the same objective for both", 2
        )


def _same_hardware(a: Mapping[str, str], b: Mapping[str, str]) -> None:
    other = [key for key in _HARDWARE if a.get(key) != b.get(key)]
    if other:
        differences = "; ".join(f"{key}: {a.get(key, 'none')} and {b.get(key, 'none')}" for key in other)
        raise AutoscoutError(
            f"the two sides run on different hardware ({differences}); a gate needs the same hardware", 2
        )


def _first_runs(a: GateSide, b: GateSide, runs: Runs, margin: float) -> Gated | None:
    """The verdict, if the first run of a side failed or B computes something else than A; else None."""
    for each, found in runs.pair(-1):
        if each is a:
            if found.status != "ok":
                why = found.evidence
                raise AutoscoutError(f"A ({a.side.label}) does not run, so B cannot be compared with it: {why}")
            b.loop.engine.reference.measurement = found
        elif found.status != "ok":
            kind = "undecided" if found.status in runs.spoiled else "worse"
            what = "computes something else" if found.status == "wrong" else f"does not run ({found.status})"
            return _gated(a, b, kind, margin, f"B ({b.side.label}) {what}: {found.evidence}")
    return None


def _compared(
    a: GateSide, b: GateSide, runs: Runs, on_note: Callable[[str], None], margin: float, limit: int, until: float
) -> Gated:
    done: list[pairs.Pair] = []
    while True:
        costs: dict[str, float] = {}
        for each, found in runs.pair(len(done)):
            name = pairs.A if each is a else pairs.B
            value = cost_of_run(each.side.job.objective, found)
            if value is None:
                kind = "worse" if each is b and found.status not in runs.spoiled else "undecided"
                where = f"{name} ({each.side.label}) failed in pair {len(done) + 1}"
                return _gated(a, b, kind, margin, f"{where}: {found.evidence}")
            costs[name] = value
        done.append((costs[pairs.A], costs[pairs.B]))
        late = time.monotonic() > until
        if len(done) in pairs.levels(limit) or (late and len(done) > 1):
            standing = pairs.standing(done, margin, limit)
            on_note(f"after {len(done)} pairs, B compared with A: {_numbers(standing)}")
            if late and not standing.over:
                on_note(f"the time limit (--wall) ended the gate after {len(done)} of {limit} pairs")
            if standing.over or late:
                return _judged(a, b, standing, margin)


def _judged(a: GateSide, b: GateSide, standing: pairs.PairsStanding, margin: float) -> Gated:
    numbers, allowed = _numbers(standing), f"a slowdown of {100 * margin:.3g} %" if margin else "no slowdown"
    sentence = {
        "worse": f"B is slower than A by {numbers}, but {'only ' if margin else ''}{allowed} is allowed",
        "no worse": f"B is faster than A: {numbers}"
        if standing.high < 0
        else f"B is no more than {100 * margin:.3g} % slower than A: {numbers}",
        "undecided": f"undecided after {standing.pairs} pairs: B against A is {numbers}, and {allowed} is allowed",
    }[standing.kind]
    if standing.slow:
        sentence += f"; {standing.slow} runs were slow because of the machine, so runs at its usual speed are compared"
    bounded = math.isfinite(standing.high)
    return msgspec.structs.replace(
        _gated(a, b, standing.kind, margin, sentence),
        ratio=evidence.factor(standing.log),
        low=evidence.factor(standing.low) if bounded else None,
        high=evidence.factor(standing.high) if bounded else None,
        p_worse=standing.p_worse,
        pairs=standing.pairs,
    )


def _numbers(standing: pairs.PairsStanding) -> str:
    ends = (
        f"{evidence.percent(standing.low)} to {evidence.percent(standing.high)}"
        if math.isfinite(standing.high)
        else "no interval yet"
    )
    return f"{evidence.percent(standing.log)} ({ends})"


def _gated(a: GateSide, b: GateSide, kind: str, margin: float, sentence: str) -> Gated:
    both = a.done[0].losses and b.done[0].losses
    if not both and b.done[0].status == "ok":
        sentence += "; losses and answers were not compared, because A or B reports none"
    return Gated(
        a=a.side.label,
        b=b.side.label,
        a_session=a.loop.engine.started.session,
        verdict=kind,
        margin=margin,
        parts=_parts(a.done[1:], b.done[1:]),
        checked=bool(both),
        sentence=sentence,
        at=dates.now(),
    )


def _parts(a: Sequence[Measurement], b: Sequence[Measurement]) -> list[Part]:
    """Compares the two sides by each metric that all of their runs have, and by an experiment's total time."""
    count = min(len(a), len(b))
    ours, theirs = ([{**m.metrics, "experiment_s": m.cost_s} for m in side[:count]] for side in (a, b))
    found: list[Part] = []
    for name in dict.fromkeys(key for metrics in ours for key in metrics):
        values = [[metrics.get(name, 0.0) for metrics in side] for side in (ours, theirs)]
        if count and all(value > 0 for side in values for value in side):
            ratio, low, high = evidence.ratio(values[1], values[0])
            middle = [statistics.median(side) for side in values]
            found.append(Part(name=name, a=middle[0], b=middle[1], ratio=ratio, low=low, high=high))
    return found
