"""Whether experiments of a session may share a host: copies of the reference side by side, against one alone.

Devices of a host share its links, its processors and its power. If more than one experiment fits on a host, the
reference is first run alone, then in all places of one host at once, which takes as long as one experiment. The
decision holds for the session, and for later ones of the same job on the same machines.
"""

import statistics

from autoscout.job.objective import cost
from kb.journal import Neighbours
from kb.records import Job, Measurement

SLOWER = 1.02  # largest accepted cost ratio of the slowest side-by-side run to the run alone


def judged(job: Job, shape: str, alone: Measurement, beside: list[Measurement]) -> Neighbours:
    """Compares the runs; a failure side by side counts as disturbance."""
    before, costs = cost(job.objective, alone) or 0.0, [cost(job.objective, m) for m in beside]
    known = [c for c in costs if c is not None]
    allowed = len(known) == len(beside) and max(known) <= SLOWER * before
    return Neighbours(shape=shape, alone=before, beside=known, allowed=allowed)


def sentence(found: Neighbours) -> str:
    """The decision as shown to the user."""
    if not found.beside:
        told = "beside each other they did not run"
    else:
        slower = statistics.median(found.beside) / found.alone - 1
        told = f"{len(found.beside)} on one host take {slower:+.1%} of what one takes alone"
    then = "they run beside each other" if found.allowed else "one runs on a host at a time"
    origin = f"as {found.known_from} measured" if found.known_from else "measured with the reference"
    return f"{told} ({origin}): {then}; cluster.together says otherwise"
