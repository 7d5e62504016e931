"""Warm start: knowledge from similar jobs for a new one. worth.py determines its value at the end of the session.

Carried over (each part can be left out, see `WarmStartChoice`):

    configurations   for each of the best configurations of a similar job, the nearest one that is valid here
    rows             measurements of similar jobs, for the search's posterior and for simulators
    points           values of the dense knobs in those rows, even if their other knobs are not valid here
    orderings        tree orderings that won tournaments in similar jobs
    failures         configurations that ran out of memory or were refused, unless there is more memory here

None of this replaces an experiment: only measurements of the same job, hardware and versions do (tuning/evaluator.py).
"""

from pathlib import Path
from typing import Literal

import msgspec

from autoscout.job.objective import rows_of
from autoscout.search.earlier import Past
from autoscout.space.attributes import memory_gib
from autoscout.space.graph import Space
from kb import choices, outcomes, store
from kb import similar as kb_similar
from kb.journal import WarmSource, WarmStarted
from kb.outcomes import Outcome
from kb.records import AutoscoutError, Configuration, Job, Measurement
from kb.sizes import parameters

Part = Literal["configurations", "rows", "points", "orderings", "failures"]
PARTS: tuple[Part, ...] = ("configurations", "rows", "points", "orderings", "failures")

_JOBS = 3  # number of similar jobs that are used; more of them add nothing, or mislead
_ROWS = 128  # most measurements per similar job; the surrogate's fitting time grows with the cube of their number
_FAVOURITES = 5  # best configurations of each similar job that are carried over


class WarmStartChoice(msgspec.Struct, frozen=True):
    """The option --warm-start: `auto`, `off` or a session's name, optionally with the kinds of knowledge to carry over,
    as in auto:rows,failures."""

    source: str = "auto"
    parts: tuple[Part, ...] = PARTS

    @staticmethod
    def parse(text: str) -> "WarmStartChoice":
        """Parses the option's text. Errors: AutoscoutError (exit 2) for an unknown kind of knowledge."""
        source, colon, wanted = text.partition(":")
        parts = tuple(part.strip() for part in wanted.split(",")) if colon else PARTS
        for part in parts:
            if part not in PARTS:
                raise AutoscoutError(
                    f"--warm-start {text}: '{part}' cannot be carried over; choose from {', '.join(PARTS)}", 2
                )
        return WarmStartChoice(source or "auto", parts)  # type: ignore[arg-type]


class Favourite(msgspec.Struct, frozen=True):
    configuration: Configuration  # valid in the new job's space
    name: str
    job: str  # the similar job
    theirs: str  # name of the similar job's configuration from which this one was derived


class Warm(msgspec.Struct, frozen=True, kw_only=True):
    past: list[Past] = []
    orderings: list[list[str]] = []
    favourites: list[Favourite] = []
    started: WarmStarted = WarmStarted()


def gather(
    kb: Path,
    job: Job,
    space: Space,
    *,
    choice: WarmStartChoice | None = None,
    environment: dict[str, str] | None = None,
    context: str = "",
    up_to: int | None = None,
) -> Warm:
    """All knowledge that can be carried over to `job`. `context`, `environment`: those of this machine, if known.

    Errors: AutoscoutError (exit 2) when `choice` names an unknown session.
    """
    choice = choice or WarmStartChoice()
    if choice.source == "off":
        return Warm()
    notes: list[str] = []
    nearest = kb_similar.similar(kb, job, memory_gib, environment, count=4 * _JOBS, up_to=up_to, on_note=notes.append)
    rejected: list[kb_similar.SimilarJob] = []
    if choice.source != "auto":
        nearest = [a for a in nearest if choice.source in a.sessions]
        if not nearest:
            raise AutoscoutError(
                f"--warm-start {choice.source}: no session of that name has measurements of a job similar to "
                f"{job.name}; `autoscout similar JOB.toml --json` lists similar jobs with their sessions",
                2,
            )
    decided = choices.choices(kb, job.id) if choice.source == "auto" else {}
    if choice.source == "auto":
        rejected = [a for a in nearest if decided.get(a.job.id) is False]
        nearest = [a for a in nearest if decided.get(a.job.id, a.distance < kb_similar.FAR)]
        nearest = sorted(nearest, key=lambda a: not decided.get(a.job.id, False))[:_JOBS]  # the user's choice first
    past: list[Past] = []
    favourites: dict[str, Favourite] = {}
    sources: list[WarmSource] = []
    notes += [f"{a.job.name} on {a.cluster} is not used, because a user rejected it" for a in rejected]
    orderings: list[list[str]] = []
    for alike in nearest:
        found, hinted = (
            outcomes.outcomes(
                kb,
                alike.job.id,
                _metrics(job),
                contexts=[alike.context],
                sessions=[choice.source] if choice.source != "auto" else alike.sessions,
                up_to=up_to,
                maximize=bool(job.objective.maximize),
                hints=hints,
            )
            for hints in (False, True)
        )
        ran = _costs(job, found)
        failed, excused = _failures(job, alike, found)
        notes += _notes(job, alike, context, excused)
        rows: list[tuple[Configuration, float | None]] = []
        if "configurations" in choice.parts:
            for there, c in ran[:_FAVOURITES]:
                if here := projected(space, there):
                    favourites.setdefault(
                        here.id, Favourite(here, space.name(here), alike.job.name, _named(found, there))
                    )
                    rows.append((here, c))
            suggested = [here for there, _ in _costs(job, hinted)[:_FAVOURITES] if (here := projected(space, there))]
            for here in suggested:
                favourites.setdefault(here.id, Favourite(here, space.name(here), alike.job.name, space.name(here)))
            if suggested:
                notes.append(
                    f"{len(suggested)} configurations for {alike.job.name} come from other sources, so they are "
                    "tried, but never used in place of an experiment (`autoscout kb trust` lists the sources)"
                )
        broken: list[tuple[Configuration, float]] = []
        if "rows" in choice.parts:
            rows += [(moved, c) for there, c in _spread(ran) if (moved := _moved(space, there, choice.parts))]
            out = _spread(_broken(job, found))
            broken = [(moved, c) for there, c in out if (moved := _moved(space, there, choice.parts))]
        if "failures" in choice.parts:
            rows += [(moved, None) for there in failed if (moved := _moved(space, there, choice.parts))]
        won = store.orderings(kb, alike.job.id, sessions=alike.sessions) if "orderings" in choice.parts else []
        orderings += [o for o in ([k for k in o if k in space.knob] for o in won) if o and o not in orderings]
        rows = _each_once(rows)
        if rows or broken or won:
            name = f"{alike.job.name}@{alike.cluster}"
            past.append(Past(name=name, distance=alike.distance, rows=rows, orderings=won, broken=broken))
            sources.append(
                WarmSource(
                    job=alike.job.name,
                    cluster=alike.cluster,
                    distance=alike.distance,
                    rows=sum(c is not None for _, c in rows) + len(broken),
                    failures=sum(c is None for _, c in rows),
                    orderings=len(won),
                )
            )
    chosen = list(favourites.values())
    started = WarmStarted(sources=sources, favourites=[f.configuration for f in chosen], notes=notes)
    return Warm(past=past, orderings=orderings, favourites=chosen, started=started)


def projected(space: Space, there: Configuration) -> Configuration | None:
    """The nearest valid configuration in `space`, None if there is none. Knobs that `space` lacks are ignored, and
    knobs that `there` does not set are as in the reference."""
    wanted = {name: value for name, value in there.knobs.items() if name in space.knob}
    if not wanted:
        return None
    if len(wanted) == len(there.knobs) and space.is_valid(there):
        return there
    usual = space.reference.knobs if space.reference is not None else {}
    found = space.nearest({**usual, **wanted}, given=wanted)
    return found if found is not None and space.is_valid(found) else None


def _metrics(job: Job) -> list[str]:
    bounds = [text.replace(">", "<").split("<")[0].strip() for text in job.objective.constraints]
    return list(dict.fromkeys([job.objective.metric, *bounds]))


def _costs(job: Job, found: list[Outcome]) -> list[tuple[Configuration, float]]:
    """(configuration, cost) of outcomes that ran and met this job's constraints, best first."""
    rows, _ = rows_of(job.objective, _ran(found))
    return sorted(((x, c) for x, c in rows if c is not None), key=lambda pair: pair[1])


def _broken(job: Job, found: list[Outcome]) -> list[tuple[Configuration, float]]:
    """(configuration, cost) of outcomes that ran but break this job's constraints, best first."""
    ran = [m for m in _ran(found) if m.metrics.keys() >= set(_metrics(job))]
    return sorted(rows_of(job.objective, ran)[1], key=lambda pair: pair[1])


def _ran(found: list[Outcome]) -> list[Measurement]:
    return [
        Measurement(configuration=Configuration(o.knobs), name=o.name, context="", status="ok", metrics=o.metrics)
        for o in found
        if o.status == "ok"
    ]


def _failures(
    job: Job, alike: kb_similar.SimilarJob, found: list[Outcome]
) -> tuple[list[Configuration], list[Outcome]]:
    """(configurations that would fail here, too; outcomes that ran out of memory there but may fit here)"""
    memory_here, memory_there = _memory(job), _memory(alike.job)
    lighter = memory_here > memory_there or parameters(job.model) < parameters(alike.job.model)
    out_of_memory = [o for o in found if o.status == "oom"]
    firm = [o for o in found if o.status in ("invalid", "wrong")]
    certain = firm if lighter else firm + out_of_memory
    return [Configuration(o.knobs) for o in certain][: _ROWS // 4], out_of_memory if lighter else []


def _notes(job: Job, alike: kb_similar.SimilarJob, context: str, excused: list[Outcome]) -> list[str]:
    notes = []
    if alike.job.id == job.id and context and alike.context != context:
        versions = next((f for f in alike.features if f.name == "versions"), None)
        changed = f" ({versions.there} there, {versions.here} here)" if versions else ""
        notes.append(
            f"{alike.measurements} measurements of this job were made with different versions or "
            f"hardware{changed}, so they only guide the search"
        )
    if excused:
        names = ", ".join(o.name for o in excused[:3]) + (", …" if len(excused) > 3 else "")
        notes.append(
            f"{len(excused)} configurations ran out of memory for {alike.job.name} on {alike.cluster} "
            f"({_memory(alike.job):g} GiB a device) and may be tried here ({_memory(job):g} GiB): {names}"
        )
    return notes


def _memory(job: Job) -> float:
    return min(map(memory_gib, job.cluster.nodes), default=0.0)


def _moved(space: Space, there: Configuration, parts: tuple[Part, ...]) -> Configuration | None:
    """A similar job's configuration `there` for this space: unchanged if it is valid here. Otherwise, if `parts` has
    "points", only its knobs that `space` has (a strategy rounds their values to those of the domain), else None."""
    if space.is_valid(there):
        return there
    knobs = {name: value for name, value in there.knobs.items() if name in space.knob}
    return Configuration(knobs) if knobs and "points" in parts else None


def _spread(ran: list[tuple[Configuration, float]]) -> list[tuple[Configuration, float]]:
    """At most _ROWS outcomes: half of them the best, the others evenly spaced by rank."""
    if len(ran) <= _ROWS:
        return ran
    best, rest = ran[: _ROWS // 2], ran[_ROWS // 2 :]
    return best + [rest[i * len(rest) // (_ROWS // 2)] for i in range(_ROWS // 2)]


def _each_once(rows: list[tuple[Configuration, float | None]]) -> list[tuple[Configuration, float | None]]:
    unique: dict[str, tuple[Configuration, float | None]] = {}
    for x, c in sorted(rows, key=lambda row: (row[1] is None, row[1] or 0.0)):
        unique.setdefault(x.id, (x, c))
    return list(unique.values())


def _named(found: list[Outcome], there: Configuration) -> str:
    return next((o.name for o in found if Configuration(o.knobs).id == there.id), "")
