"""The tools that agents can call. Each does the same as a command of `autoscout` and returns its JSON document
(`--json`); watch, tune, propose, steer, stop and gate return the lines that the command prints."""

import itertools
import time
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from kb.records import AutoscoutError, Job, Value
from tui.agents.allowance import AgentLimits

Text = Annotated[str, Meta(max_length=4_000)]
Name = Annotated[str, Meta(max_length=300, min_length=1)]
Few = Annotated[int, Meta(ge=1, le=200)]
Knobs = Annotated[dict[Annotated[str, Meta(max_length=100)], Value], Meta(max_length=200)]
Progress = Callable[[float, float | None, str], None]  # (steps done, total number of steps, message)

_WAIT_S = 60
_AGENT = "agent"  # orders from agents are recorded with an author that begins with this word


class Call(msgspec.Struct, frozen=True, kw_only=True):
    """A tool call: the agent's limits and name, and a function to report progress."""

    limits: AgentLimits
    client: str
    progress: Progress = lambda done, of, words: None
    looked_at: set[str] = msgspec.field(default_factory=set)  # imports for which this client has requested a dry run


class OfJob(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    job: Annotated[Name, Meta(description="a job file of this server's folder")]


class OfKnobs(OfJob, forbid_unknown_fields=True, kw_only=True):
    knobs: Annotated[Knobs, Meta(description="omitted knobs keep the reference's values")] = {}


class Listed(OfJob, forbid_unknown_fields=True, kw_only=True):
    count: Few = 5


class OfRanking(Listed, forbid_unknown_fields=True, kw_only=True):
    knobs: Annotated[Knobs, Meta(description="rank only configurations with these values")] = {}


class Traced(OfKnobs, forbid_unknown_fields=True, kw_only=True):
    seconds: Annotated[float, Meta(ge=1, le=600, description="time limit of the shadow run")] = 300
    wait_s: Annotated[float, Meta(ge=0, le=_WAIT_S, description="how long to wait for the answer")] = 0


class Query(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    query: Text
    limit: Few = 50


class Nothing(msgspec.Struct, forbid_unknown_fields=True):
    pass


class OfNewSession(OfJob, forbid_unknown_fields=True, kw_only=True):
    profiles: Annotated[int, Meta(ge=1, le=10_000, description="at most the job's own number")] | None = None
    device_time: Annotated[str, Meta(max_length=20, description="90s, 20m, 2h")] = ""
    seed: Annotated[int, Meta(ge=0, le=2**32 - 1)] = 0


class OfSession(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    session: Name


class OfWatching(OfSession, forbid_unknown_fields=True, kw_only=True):
    after: Annotated[int, Meta(ge=0, description="number of lines already seen")] = 0
    wait_s: Annotated[float, Meta(ge=0, le=_WAIT_S, description="how long to wait for a new line")] = 0


class Idea(OfSession, forbid_unknown_fields=True, kw_only=True):
    knobs: Annotated[Knobs, Meta(description="omitted knobs are taken from the best so far")]
    why: Annotated[str, Meta(max_length=300, min_length=1)]


class OfSteering(OfSession, forbid_unknown_fields=True, kw_only=True):
    what: Literal["pause", "go", "budget", "profile", "validate", "try", "retry", "pin", "exclude"]
    values: Annotated[Knobs, Meta(description="profiles for a budget; knobs for try, retry, pin and exclude")] = {}
    why: Annotated[str, Meta(max_length=300)] = ""


class OfGate(OfSession, forbid_unknown_fields=True, kw_only=True):
    pairs: Annotated[int, Meta(ge=4, le=40)] = 40
    device_time: Annotated[str, Meta(max_length=20, description="90s, 20m, 2h")] = ""
    wait_s: Annotated[float, Meta(ge=0, le=_WAIT_S, description="how long to wait for the verdict")] = 0


class OfBest(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    what: Annotated[Name, Meta(description="a session, or a job file of this server's folder")]


class Exported(OfSession, forbid_unknown_fields=True, kw_only=True):
    format: Annotated[str, Meta(max_length=20, description="command, json, yaml, slurm, k8s …")] = "command"


class Import(OfJob, forbid_unknown_fields=True, kw_only=True):
    table: Annotated[Name, Meta(description="a file or folder of this server's folder")]
    reader: Annotated[str, Meta(max_length=100)] = ""
    dry_run: Annotated[bool, Meta(description="false imports, but only after a call with true")] = True


def _words(knobs: dict[str, Value]) -> list[str]:
    return [f"{name}={str(value).lower() if isinstance(value, bool) else value}" for name, value in knobs.items()]


def _known(job: Job, knobs: dict[str, Value]) -> None:
    """Checks that the job's space has these knobs with these values. Errors: AutoscoutError (exit 2)."""
    from autoscout.space.explain import parsed_values
    from autoscout.targets.jobs import JobSpace

    parsed_values(JobSpace.of_job(job), _words(knobs))


def _space(call: Call, job: str) -> tuple[Any, Any]:
    from autoscout.targets.jobs import JobSpace

    found = call.limits.job(job)[1]
    return found, JobSpace.of_job(found)


def space(call: Call, asked: Listed) -> Any:
    from tui.printing.space_report import space_document

    job, found = _space(call, asked.job)
    return space_document(job, found, [found.name(c) for c in itertools.islice(found.configurations(), asked.count)])


def explain(call: Call, asked: OfKnobs) -> Any:
    from autoscout.space import explain as explaining
    from tui.printing.space_report import explanation_document

    _, found = _space(call, asked.job)
    given = explaining.parse(found, _words(asked.knobs))
    return explanation_document(explaining.explain(found, given, found.reference))


def predict(call: Call, asked: OfKnobs) -> Any:
    from autoscout.space.explain import parse
    from autoscout.tuning.predict import predict as predicted

    _, found = _space(call, asked.job)
    return predicted(found, parse(found, _words(asked.knobs)), call.limits.kb)


def rank(call: Call, asked: OfRanking) -> Any:
    from autoscout.space.explain import parse
    from autoscout.tuning.best_predicted import ranking

    job, whole = _space(call, asked.job)
    return ranking(whole, job, call.limits.kb, asked.count, parse(whole, _words(asked.knobs)))


def shadow(call: Call, asked: Traced) -> Any:
    """Starts a shadow run (without a device); for a job and knobs whose run was already started, reports progress."""
    from autoscout.space.explain import completed, parse
    from tui.agents.long_verbs import LongVerb, begin, waited

    job, found = _space(call, asked.job)
    path, given = call.limits.job(asked.job)[0], _words(asked.knobs)
    configuration = completed(found, parse(found, given), found.reference)
    verb = LongVerb(call.limits.kb.absolute().parent / "agents", f"shadow-{job.id}-{configuration.id}")
    verb.folder.mkdir(parents=True, exist_ok=True)
    options = ["--timeout", f"{asked.seconds:g}", "--kb", str(call.limits.kb.absolute())]
    begin(verb, lambda: ["shadow", str(path), *given, *options])
    standing = waited(verb, asked.wait_s, call.progress)
    return {"handle": verb.handle, "state": standing["state"], "shadow": standing["printed"]}


def similar(call: Call, asked: Listed) -> Any:
    from autoscout.space.attributes import memory_gib
    from autoscout.tuning import warm_start
    from kb import choices
    from kb import similar as similarity
    from tui.printing.kb_report import similar_document

    (job, found), kb, said = _space(call, asked.job), call.limits.kb, list[str]()
    near = similarity.similar(kb, job, memory_gib, count=asked.count, on_note=said.append)
    return similar_document(job, near, warm_start.gather(kb, job, found), choices.choices(kb, job.id))


def sql(call: Call, asked: Query) -> Any:
    import json

    from kb import store
    from kb.query import run
    from kb.query_formats import render

    store.bring_in(call.limits.kb)
    return json.loads(render(run(call.limits.kb, asked.query, asked.limit, seconds=20, memory_mib=512), "json"))


def sessions(call: Call, asked: Nothing) -> Any:
    from kb import store
    from tui.printing.report import sessions_document

    store.ingest_all(call.limits.kb)
    return sessions_document(store.session_rows(call.limits.kb))


def tune(call: Call, asked: OfNewSession) -> Any:
    from autoscout.job.load import with_budget
    from autoscout.tuning.session import new_id
    from tui.session.begun import start_in_background

    path, job = call.limits.job(asked.job)
    profiles = min(asked.profiles or job.budget.profiles, job.budget.profiles)
    with_budget(job, profiles, None, asked.device_time or None)
    session = new_id(job)
    device_s = call.limits.reserved(session, asked.device_time or job.budget.device_time)
    given = [str(path), "--profiles", str(profiles), "--device-time", f"{device_s:.0f}s", "--seed", str(asked.seed)]
    start_in_background([*given, "--named", session], session, call.limits.kb.absolute())
    return {"session": session, "profiles": profiles, "device_s": device_s, "says": f"watch {session} shows it"}


def watch(call: Call, asked: OfWatching) -> Any:
    """The lines of `autoscout watch --plain` without the first `after` lines; may wait for a new line."""
    from kb import journal as journals
    from kb import store
    from tui.printing.plain import Progress as Lines

    folder = store.journalled(call.limits.kb, asked.session)
    until = time.monotonic() + asked.wait_s
    while True:
        over = not store.is_running(folder)
        lines, events = list[str](), journals.events(folder / "journal.jsonl", plain=True)
        if not events or not isinstance(events[0], journals.SessionStarted):
            raise AutoscoutError(f"the journal of {asked.session} contains no session; begin a new session", 2)
        shown = Lines(events[0].job, asked.session, lines.append)
        for event in events:
            shown.see(event)
        call.progress(shown.searched, events[0].job.budget.profiles, lines[-1] if lines else "begun")
        if len(lines) > asked.after or over or time.monotonic() >= until:
            state = next((e.reason for e in events if isinstance(e, journals.SessionEnded)), "") if over else "running"
            return {"session": asked.session, "state": state or "interrupted", "lines": lines[asked.after :]} | {
                "after": len(lines)
            }
        time.sleep(0.25)


def _ordered(call: Call, session: str, what: str, settings: list[str], why: str = "") -> Any:
    from kb.orders import give, parsed
    from tui.session.begun import running, searched

    folder = call.limits.own(session)
    running(call.limits.kb, session)
    if what != "stop" and searched(folder):
        raise AutoscoutError(
            f"the search of {session} has ended, so it takes no orders; its finalists are being measured again", 1
        )
    give(folder, parsed(what, settings, f"{_AGENT} {call.client}", why))
    return {"session": session, "asked": what}


def propose(call: Call, asked: Idea) -> Any:
    from kb import store

    call.limits.own(asked.session)
    _known(store.session_started(call.limits.kb, asked.session).job, asked.knobs)
    return _ordered(call, asked.session, "propose", _words(asked.knobs), asked.why)


def steer(call: Call, asked: OfSteering) -> Any:
    """Gives an order to an agent's session. Agents cannot increase the job's budget or end a user's pause."""
    from kb import store
    from kb.orders import paused_by

    folder = call.limits.begun_by_agents(asked.session)
    job = store.session_started(call.limits.kb, asked.session).job
    if asked.what == "budget":
        most, wanted = job.budget.profiles, asked.values.get("profiles", 0)
        if not isinstance(wanted, int) or wanted > most:
            raise AutoscoutError(f"profiles={wanted}: a session begun by an agent has at most {most} experiments", 2)
    else:
        _known(job, asked.values)
    if asked.what == "go" and not (by := paused_by(folder)).startswith(_AGENT):
        raise AutoscoutError(
            f"an agent may only end pauses that agents ordered; {asked.session} was paused by {by or 'nobody'}", 2
        )
    return _ordered(call, asked.session, asked.what, _words(asked.values), asked.why)


def stop(call: Call, asked: OfSession) -> Any:
    call.limits.begun_by_agents(asked.session)
    return _ordered(call, asked.session, "stop", [])


def best(call: Call, asked: OfBest) -> Any:
    """The best configuration of a session or a job, with the measurements that support it."""
    from autoscout.deploy import recommendation
    from kb.lineage import lineage
    from kb.records import Configuration
    from tui.printing.report import best_document
    from tui.session.follow import job_of

    kb = call.limits.kb
    of_job = asked.what.endswith(".toml")
    job = call.limits.job(asked.what)[1] if of_job else job_of(kb, asked.what)
    found = recommendation.best_of_job(kb, job) if of_job else recommendation.best_of_session(kb, asked.what)
    compared = [Configuration(m.configuration).id for m in (found.best, found.default) if m is not None]
    return best_document(found, lineage(kb, job.id, found.context, found.metric, compared))


def export(call: Call, asked: Exported) -> Any:
    """The launch of a session's winner. Other configurations are not exported, since they were not confirmed."""
    from autoscout.deploy import export as exporting
    from kb import journal as journals
    from kb import store

    past = journals.events(store.journalled(call.limits.kb, asked.session) / "journal.jsonl")
    if not any(isinstance(event, journals.Confirmed) for event in past):
        raise AutoscoutError(f"{asked.session} has no confirmed winner yet; call again after the session has ended", 1)
    job, found = exporting.of_session(call.limits.kb, asked.session, [])
    return {"session": asked.session, "format": asked.format, "launch": exporting.written(job, found, asked.format)}


def gate(call: Call, asked: OfGate) -> Any:
    """Starts the comparison of a session's winner with its reference; if it was already started, reports progress."""
    from tui.agents.long_verbs import gate_of, waited

    found = waited(gate_of(call.limits, asked.session, asked.pairs, asked.device_time), asked.wait_s, call.progress)
    return {"session": asked.session, "verdict": found.pop("printed"), **found}


def import_(call: Call, asked: Import) -> Any:
    from autoscout.importing import bring_in
    from tui.printing.kb_report import brought_document

    path, job = call.limits.inside(asked.table), call.limits.job(asked.job)[1]
    seen = f"{path} {asked.job} {asked.reader} {_state(path)}"
    if not asked.dry_run and seen not in call.looked_at:
        raise AutoscoutError("an import needs a dry run first; call with dry_run = true, then with dry_run = false", 2)
    given = bring_in.ImportOptions((), (), (), asked.reader, asked.dry_run)
    found = brought_document(bring_in.bring_in_all(call.limits.kb, path, job, given), path.is_dir())
    call.looked_at.add(seen)
    return found


def _state(path: Path) -> list[tuple[str, int, int]]:
    """A value that changes when the file or folder changes."""
    files = sorted(path.rglob("*")) if path.is_dir() else [path]
    return [(str(f), (s := f.stat()).st_size, s.st_mtime_ns) for f in files if f.is_file()]


class ToolRow(msgspec.Struct, frozen=True):
    name: str
    says: str
    asked: type[Any]
    run: Callable[[Call, Any], Any]
    changes: bool = False  # whether the tool changes anything (it is not read-only)


TOOLS = {
    row.name: row
    for row in (
        ToolRow("space", "The knobs of a job, their rules, and its first configurations.", Listed, space),
        ToolRow(
            "explain",
            "Whether a configuration is valid; else the violated rule and the nearest valid one.",
            OfKnobs,
            explain,
        ),
        ToolRow(
            "predict", "Predicts a configuration by simulators, with their error, without a device.", OfKnobs, predict
        ),
        ToolRow("rank", "The best configurations by prediction alone, one of each layout.", OfRanking, rank),
        ToolRow(
            "shadow",
            "Runs the framework's own code without a device to see if it starts and fits. Call again for progress.",
            Traced,
            shadow,
        ),
        ToolRow("similar", "The nearest past jobs, and what a session would take over.", Listed, similar),
        ToolRow("sql", "Read-only SQL on the knowledge base: views runs, best, failures, sessions …", Query, sql),
        ToolRow("sessions", "All sessions, and whether they run.", Nothing, sessions),
        ToolRow(
            "tune", "Begins a session and returns its name at once; follow it with watch.", OfNewSession, tune, True
        ),
        ToolRow("watch", "New lines of a session, and whether it runs; can wait for a new line.", OfWatching, watch),
        ToolRow(
            "propose",
            "Proposes a configuration, with a reason. It is tried if earlier ideas did well.",
            Idea,
            propose,
            True,
        ),
        ToolRow("steer", "Gives an order to a session that an agent began, as a user does.", OfSteering, steer, True),
        ToolRow(
            "stop", "Ends the search of a session that an agent began; finalists are measured.", OfSession, stop, True
        ),
        ToolRow("best", "The measured winner compared with the reference, and all the evidence.", OfBest, best),
        ToolRow("export", "The launch of a session's confirmed winner, ready to run.", Exported, export),
        ToolRow(
            "gate",
            "Whether a session's winner is faster than its reference. Runs both in turns; call again for progress.",
            OfGate,
            gate,
            True,
        ),
        ToolRow("import", "Imports measurements made elsewhere; needs a dry run first.", Import, import_, True),
    )
}
