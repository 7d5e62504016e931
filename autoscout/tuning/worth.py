"""Determines the value of a warm start at the end of the session."""

from autoscout.job.objective import cost
from kb.journal import Answered, AnyEvent, ExperimentEnded, WarmStarted, WarmStartWorth
from kb.records import Job


def worth(job: Job, events: list[AnyEvent]) -> WarmStartWorth | None:
    """How the carried-over configurations ranked in this session; None if there were none. What a cold start would have
    cost remains unknown, since that would take another session with --warm-start off.
    """
    started = next((e for e in events if isinstance(e, WarmStarted)), None)
    if started is None or not started.favourites:
        return None
    measured: dict[str, tuple[str, float | None]] = {}
    first_at: dict[str, int] = {}
    experiments = 0
    for event in events:
        if isinstance(event, ExperimentEnded) and event.purpose in ("search", "check"):
            experiments += 1
        elif not isinstance(event, Answered):
            continue
        m = event.measurement
        if m.configuration.id not in measured and m.status != "infrastructure":
            measured[m.configuration.id] = (m.name, cost(job.objective, m))
            first_at[m.configuration.id] = experiments
    carried = {c.id for c in started.favourites}
    good = {key: (name, c) for key, (name, c) in measured.items() if c is not None}
    tried = carried & measured.keys()
    ranked = sorted(good, key=lambda key: good[key][1])
    of_carried = [key for key in ranked if key in carried]
    if not ranked:
        return None
    least = good[ranked[0]][1]
    first = min(first_at[key] for key in ranked if good[key][1] <= 1.01 * least)
    best = of_carried[0] if of_carried else None
    behind = good[best][1] / least - 1 if best else None
    rank = ranked.index(best) + 1 if best else None
    if best is None:
        sentence = f"warm start: none of {len(carried)} carried-over configurations ran ({len(tried)} tried)"
    else:
        place = "the best of all" if rank == 1 else f"{behind:.1%} behind the best (place {rank} of {len(ranked)})"
        sentence = (
            f"warm start: {len(tried)} of {len(carried)} carried-over configurations were measured; "
            f"{good[best][0]} is {place}; the search was within 1 % of the best after {first} of {experiments} "
            "experiments"
        )
    return WarmStartWorth(
        sources=started.sources,
        carried=len(carried),
        tried=len(tried),
        failed=len(tried - good.keys()),
        best=good[best][0] if best else "",
        behind=behind,
        rank=rank,
        experiments=experiments,
        first_within=first,
        sentence=sentence,
    )
