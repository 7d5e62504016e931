"""Decides whether experiments of a session may share a host, by comparing copies of the reference that run side by side
with one that runs alone.

Devices of a host share its links, its processors and its power. If more than one experiment fits on a host, the
reference is first run alone, then in all places of one host at once, which takes as long as one experiment. The
decision holds for the session, and for later ones of the same job on the same machines.
"""

import statistics

from autoscout.job.objective import cost
from kb.journal import Neighbours
from kb.records import Job, Measurement

SLOWER = 1.02  # accepted cost of the slowest side-by-side run, relative to the run alone


def judged(job: Job, shape: str, alone: Measurement, together: list[Measurement]) -> Neighbours:
    """Compares the runs; a failure of a side-by-side run counts as disturbance."""
    before, costs = cost(job.objective, alone) or 0.0, [cost(job.objective, m) for m in together]
    known = [c for c in costs if c is not None]
    allowed = len(known) == len(together) and max(known) <= SLOWER * before
    return Neighbours(shape=shape, alone=before, beside=known, allowed=allowed)


def sentence(found: Neighbours) -> str:
    """The decision as shown to the user."""
    if not found.beside:
        found_out = "experiments did not run side by side"
    else:
        slower = statistics.median(found.beside) / found.alone - 1
        found_out = f"{len(found.beside)} experiments on one host take {slower:+.1%} time compared with one alone"
    then = "they run side by side" if found.allowed else "one runs on a host at a time"
    origin = f"as {found.known_from} measured" if found.known_from else "measured with the reference"
    return f"{found_out} ({origin}): {then}; cluster.together overrides this"
