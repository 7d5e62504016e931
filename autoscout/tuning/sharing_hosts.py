"""Decides whether experiments of a session may share a host, by comparing copies of the reference that run there at the
same time with one that runs alone.

Experiments on one host may disturb each other, because its devices share links, processors and power. If more than one
experiment fits on a host, the reference is first run alone, and then as many copies as fit are run at the same time,
which takes as long as one experiment. The decision is valid for the session, and for later ones of the same job on the
same machines.
"""

import statistics

from autoscout.job.objective import cost
from kb.journal import Neighbours
from kb.records import Job, Measurement

SLOWER = 1.02  # largest accepted ratio of the slowest copy's cost to that of the reference alone


def judged(job: Job, shape: str, alone: Measurement, together: list[Measurement]) -> Neighbours:
    """The decision from the reference's run alone and its copies; a copy that fails counts as disturbed."""
    before, costs = cost(job.objective, alone) or 0.0, [cost(job.objective, m) for m in together]
    known = [c for c in costs if c is not None]
    allowed = len(known) == len(together) and max(known) <= SLOWER * before
    return Neighbours(shape=shape, alone=before, beside=known, allowed=allowed)


def sentence(found: Neighbours) -> str:
    if not found.beside:
        found_out = "experiments did not run side by side"
    else:
        slower = statistics.median(found.beside) / found.alone - 1
        found_out = f"{len(found.beside)} experiments on one host take {slower:+.1%} time compared with one alone"
    then = "they run side by side" if found.allowed else "one runs on a host at a time"
    origin = f"as {found.known_from} measured" if found.known_from else "measured with the reference"
    return f"{found_out} ({origin}): {then}; cluster.together overrides this"
