"""One run of the loop: job → space → ask → evaluate → tell → … → confirmed best, written to the journal.

session folder = <kb folder>/sessions/<session id>/
    journal.jsonl        the events, the only source of truth
    owner.lock           held (flock) by the process that runs the session
    carried.json         knowledge from earlier jobs (autoscout/tuning/warm_start.py)
    experiments/0001/    an experiment's input, and the results and log of every rank
"""

import contextlib
import itertools
import os
import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import msgspec
import numpy as np

from autoscout.job.load import with_budget
from autoscout.job.words import several
from autoscout.running.conditions import busy_now
from autoscout.running.equivalence import Check
from autoscout.running.interpreter import NOT_COMPARED, context_of
from autoscout.search.belief.prior_means import Predictor
from autoscout.search.earlier import Past
from autoscout.search.hyper import Hyper, hyper_as
from autoscout.search.strategy import usable
from autoscout.space.explain import completed, parse
from autoscout.space.graph import Space
from autoscout.targets.jobs import JobSpace, profiler_of
from autoscout.targets.target import reference_of, target_of
from autoscout.tuning import warm_start as warm
from autoscout.tuning.engine import ALONE, Engine
from autoscout.tuning.evaluator import FidelityMode
from autoscout.tuning.fitting import does_not_fit
from autoscout.tuning.forewarn import too_slow
from autoscout.tuning.loop import Loop, Result, Stop
from autoscout.tuning.side_by_side import SideBySide, wanted
from autoscout.tuning.tape import Tape
from autoscout.tuning.worth import worth
from kb import dates, lock, secrets, store
from kb import journal as journals
from kb.journal import (
    AnyEvent,
    Event,
    ExperimentEnded,
    ExperimentStarted,
    Journal,
    SessionEnded,
    SessionResumed,
    SessionStarted,
    Waiting,
    WarmStarted,
    WarmStartWorth,
)
from kb.records import RECORDS, AutoscoutError, Job, Measurement
from kb.sharing import hosts

_CARRIED = "carried.json"


class SessionOptions(msgspec.Struct, frozen=True, kw_only=True):
    strategy: str = "autoscout"
    seed: int = 0
    fidelity: FidelityMode = "adaptive"
    warm_start: str = "auto"  # auto | off | a session, optionally ":" and kinds of knowledge (warm_start.py)
    hyper: Hyper = Hyper()


def tune(
    job: Job,
    kb: Path,
    options: SessionOptions,
    on_event: Callable[[Event], None],
    on_note: Callable[[str], None],
    stop: Stop,
    name: str = "",
) -> Result:
    """Runs a new session, called `name` if given. Errors: AutoscoutError; Interrupted once all results are on disk."""
    repair(kb, on_note)
    space = JobSpace.of_job(job)
    for note in filter(None, (does_not_fit(space), *target_of(job).notes_on_job(job))):
        on_note(note)
    with contextlib.closing(profiler_of(job)) as profiler:
        environment = profiler.environment()
        if note := target_of(job).ready(job, environment):
            on_note(note)
        with begun(name or new_id(job), job, kb, space, options, environment, on_event, on_note) as engine:
            for note in filter(None, (too_slow(job, space, engine.started.default), busy_now(job))):
                on_note(note)
            result = _loop(job)(engine, profiler, kb, on_note, stop).run()
    note_worth(kb, job, engine.folder, on_event, on_note)
    return result


@contextlib.contextmanager
def begun(
    session: str,
    job: Job,
    kb: Path,
    space: Space,
    options: SessionOptions,
    environment: dict[str, str],
    on_event: Callable[[Event], None],
    on_note: Callable[[str], None],
    simulators: Mapping[str, Predictor] | None = None,
    check: Check | None = None,
) -> Iterator[Engine]:
    """Creates a session's folder, journal and engine, and closes them on exit. `simulators`, `check`: as in Engine."""
    kind = None if options.strategy == ALONE else usable(options.strategy)
    choice = warm.WarmStartChoice.parse(options.warm_start)
    context = context_of(job, environment)
    mark = store.mark(kb) if choice.source != "off" else 0
    carried = warm.gather(kb, job, space, choice=choice, environment=environment, context=context, up_to=mark or None)
    started = SessionStarted(
        session=session,
        job=job,
        context=context,
        strategy=options.strategy,
        seed=options.seed,
        fidelity=options.fidelity,
        warm_start=options.warm_start,
        hyper=msgspec.to_builtins(hyper_as((kind and kind.hyper) or Hyper, options.hyper)),
        environment=environment,
        kb_mark=mark,
        default=space.reference or space.sample(np.random.default_rng((options.seed, 1))),
        orderings=carried.orderings,
        host=hosts.host(),
        records=RECORDS,
        recipes=space.recipes[1:] if options.strategy != ALONE else [],
    )
    folder = store.session_folder(kb, started.session)
    with contextlib.closing(Journal(folder / "journal.jsonl")) as journal, _owned(folder):
        tape = Tape(journal, [], on_event)
        if carried.past:
            _keep(folder / _CARRIED, carried.past)
        tape.emit(started, sync=True)
        if carried.past:
            tape.emit(carried.started, sync=True)
            _note_carried(carried.started, on_note)
        yield Engine(
            started, space, kb, folder, tape, on_note, past=carried.past, simulators=simulators or {}, check=check
        )


def _keep(path: Path, past: list[Past]) -> None:
    try:
        path.write_bytes(msgspec.json.encode(past))
    except OSError as error:  # the error of a full disk lacks the file's name
        raise AutoscoutError(
            f"{path}: the file cannot be written ({error.strerror}); free some space, or choose a different "
            "folder with --kb"
        ) from error


def resume(
    session: str,
    kb: Path,
    on_event: Callable[[Event], None],
    on_note: Callable[[str], None],
    stop: Stop,
    given: Job | None = None,
    wall: str = "",
) -> Result:
    """Continues a session where its journal ends. `given`: the user's job file, with the secrets that no journal
    stores; `wall`: a new wall-clock limit, with which undecided rounds continue. Errors: AutoscoutError if there is no
    such session, or it is running."""
    repair(kb, on_note)
    job = with_secrets(store.session_started(kb, session).job, given)
    with contextlib.closing(profiler_of(job)) as profiler:
        space = JobSpace.of_job(job)
        here = profiler.environment()
        with resumed(session, kb, space, here, on_event, on_note, given=given, wall=wall) as engine:
            result = _loop(job)(engine, profiler, kb, on_note, stop).run()
    note_worth(kb, job, engine.folder, on_event, on_note)
    return result


@contextlib.contextmanager
def resumed(
    session: str,
    kb: Path,
    space: Space,
    environment: dict[str, str],
    on_event: Callable[[Event], None],
    on_note: Callable[[str], None],
    simulators: Mapping[str, Predictor] | None = None,
    check: Check | None = None,
    given: Job | None = None,
    wall: str = "",
) -> Iterator[Engine]:
    """Like `begun`, for an existing session; `given`, `wall`: as in `resume`. Errors: AutoscoutError if its
    measurements are from other versions or hardware, or it runs in another process."""
    folder = store.journalled(kb, session)
    started = store.session_started(kb, session)
    started = msgspec.structs.replace(started, job=with_secrets(started.job, given))
    with _owned(folder), contextlib.closing(Journal(folder / "journal.jsonl")) as journal:
        past = journals.events(journal.path)  # read while the lock is held, so that no other process appends
        if (context := context_of(started.job, environment)) != started.context:
            raise AutoscoutError(
                f"session {session} measured with {_differs(environment, started.environment)}; its results cannot be "
                f"compared with this machine's ({context} is not {started.context}): start the job anew"
            )
        at = max(dates.now(), *(e.at for e in past))
        journal.append(again := SessionResumed(pid=os.getpid(), records=RECORDS, at=at, wall=wall))
        for limit in (e.wall for e in [*past, again] if isinstance(e, SessionResumed) and e.wall):
            started = msgspec.structs.replace(started, job=with_budget(started.job, None, limit))
        finished = sum(isinstance(e, ExperimentEnded) for e in past)
        last = next((e for e in reversed(past) if isinstance(e, SessionEnded | SessionResumed)), None)
        over = isinstance(last, SessionEnded) and last.reason not in ("interrupted", "failed")
        left = ": it had ended, and nothing is left to run" if over and not wall else ""
        on_note(f"resuming {session}; {finished} finished experiments are not run again{left}")
        tape = Tape(journal, [*past[1:], again], on_event)
        tape.recorded(WarmStarted)
        yield Engine(
            started,
            space,
            kb,
            folder,
            tape,
            on_note,
            _active_seconds(past),
            past=_carried(folder),
            simulators=simulators or {},
            check=check,
        )


def with_secrets(stored: Job, given: Job | None) -> Job:
    """A journal's job, with its secrets filled in from the user's job file or this process's environment variables.
    Errors: AutoscoutError (exit 2) if neither has them."""
    if secrets.HIDDEN not in str(stored.launch) + str(stored.guard):
        return stored
    if given is not None and secrets.without(msgspec.to_builtins(given.launch)) == msgspec.to_builtins(stored.launch):
        return msgspec.structs.replace(stored, launch=given.launch, guard=given.guard)
    ours = {n: os.environ.get(n, v) if v == secrets.HIDDEN else v for n, v in stored.launch.environment.items()}
    found = msgspec.structs.replace(stored, launch=msgspec.structs.replace(stored.launch, environment=ours))
    if secrets.HIDDEN in str(found.launch) + str(found.guard):
        raise AutoscoutError(
            f"the command or the variables of {stored.name} contain a secret, which no session stores; to "
            "continue, pass the job file that contains the secret: autoscout tune JOB.toml --resume SESSION",
            2,
        )
    return found


def _differs(here: dict[str, str], there: dict[str, str]) -> str:
    """The versions and devices of a session (`there`) that differ from those of this machine, as text."""
    compared = (here.keys() | there.keys()) - NOT_COMPARED
    names = sorted(name for name in compared if here.get(name) != there.get(name))
    differences = [f"{name} {there.get(name, 'of no kind')} (here {here.get(name, 'none')})" for name in names]
    return ", ".join(differences) or "a different description of the job"


def _loop(job: Job) -> type[Loop]:
    return SideBySide if wanted(job) else Loop


def _carried(folder: Path) -> list[Past]:
    """The knowledge of earlier jobs that was stored when the session started, so that it is the same after a resume."""
    path = folder / _CARRIED
    return msgspec.json.decode(path.read_bytes(), type=list[Past]) if path.is_file() else []


def _note_carried(carried: WarmStarted, on_note: Callable[[str], None]) -> None:
    for source in carried.sources:
        on_note(
            f"warm start: {several(source.rows, 'measured configuration')}, {several(source.failures, 'failure')} and "
            f"{several(source.orderings, 'ordering')} of {source.job} on {source.cluster} "
            f"(distance {source.distance:.2f})"
        )
    for text in carried.notes:
        on_note(text)


def note_worth(
    kb: Path, job: Job, folder: Path, on_event: Callable[[Event], None], on_note: Callable[[str], None]
) -> None:
    """Reports and journals the value of the warm start, unless the journal already has it."""
    path = folder / "journal.jsonl"
    events = journals.events(path)
    if any(isinstance(e, WarmStartWorth) for e in events):
        return
    if found := worth(job, events):
        found = msgspec.structs.replace(found, at=dates.now())
        with contextlib.closing(Journal(path)) as journal:
            journal.append(found)
        on_event(found)
        on_note(found.sentence)
        with contextlib.suppress(AutoscoutError):  # a later ingest will add it from the journal
            store.ingest(kb, path)


def profile_one(job: Job, kb: Path, assignments: list[str], on_note: Callable[[str], None], stop: Stop) -> Measurement:
    """Runs one experiment in its own session, and compares its losses with the reference's if those are known.

    Errors: AutoscoutError (exit 2) for an invalid configuration, with the reasons and the nearest valid one.
    """
    space = JobSpace.of_job(job)
    default = space.reference
    configuration = completed(space, parse(space, assignments), default)
    repair(kb, on_note)
    options = SessionOptions(strategy=ALONE, fidelity="profile", warm_start="off")
    with contextlib.closing(profiler_of(job)) as profiler:
        environment, name = profiler.environment(), new_id(job, "profile")
        with begun(name, job, kb, space, options, environment, lambda event: None, on_note) as engine:
            remembered = store.measurements(kb, job=job.id, context=engine.started.context, answers=True)
            of_default = [m for _, m in remembered if m.configuration.id == default.id and m.status == "ok"]
            if of_default:
                engine.reference.judge(of_default[-1])
            elif configuration.id != default.id:
                on_note(f"the losses are not checked: {reference_of(job)} has not been measured for this job yet")
            return Loop(engine, profiler, kb, on_note, stop).profile_alone(configuration)


def repair(kb: Path, on_note: Callable[[str], None]) -> None:
    """Adds results of earlier sessions to the knowledge base that only their journals have."""
    repaired, problems = store.ingest_all(kb)
    if repaired:
        on_note(f"{repaired} measurements of earlier sessions were missing in the knowledge base and have been added")
    for problem in problems:
        on_note(problem)


def new_id(job: Job, kind: str = "") -> str:
    """A session's name: job-[kind-]date-time-random, so that names sort by time and simultaneous ones differ."""
    stamp = time.strftime("%Y%m%d-%H%M%S")
    return "-".join(part for part in (job.name, kind, stamp, uuid.uuid4().hex[:4]) if part)


def _active_seconds(past: list[AnyEvent]) -> float:
    """Wall time that earlier runs of a session spent from their first to their last experiment, without waiting for
    devices and without the time between two runs."""
    active, begun, waiting = 0.0, False, False
    for before, after in itertools.pairwise(past):
        begun = begun or isinstance(before, ExperimentStarted)
        waiting = isinstance(before, Waiting) and not before.over
        if begun and not waiting and not isinstance(after, SessionResumed):
            active += max(0.0, after.at - before.at)
    return active


def _owned(folder: Path) -> contextlib.AbstractContextManager[None]:
    """The lock that a process holds while it runs the session; `autoscout sessions` shows such a session as running."""
    path = folder / "owner.lock"
    if lock.is_held(path):
        shows = f"`autoscout watch {folder.name}` shows it"
        raise AutoscoutError(f"session {folder.name} is running in another process; {shows}")
    return lock.exclusive(path, wait_s=0.0)
