"""The best configuration beside the reference, from what the knowledge base holds."""

import statistics
from pathlib import Path

import msgspec

from autoscout.deploy.headline import Verdict, headline
from autoscout.job.objective import cost, to_metric
from autoscout.job.words import several
from autoscout.running import equivalence
from autoscout.running.equivalence import SETTINGS
from autoscout.space.nearness import differing
from autoscout.targets.jobs import JobSpace, check_of, meanings
from autoscout.targets.target import reference_of, target_of
from kb import journal as journals
from kb import store
from kb.journal import AnyEvent, Confirmed, Outlook
from kb.journal_rows import kinds_in
from kb.records import DESIGNED, AutoscoutError, Configuration, Job, Measurement, Value

_BUSY = (
    0.15  # share of the CPU time that others use, from which it is said: a rank of eight CPUs loses more than its own
)


class MeasuredConfiguration(msgspec.Struct, frozen=True, kw_only=True):
    """All correct measurements of one configuration: the objective's metric (from the re-measurements if there are any,
    else the median), and the range of all."""

    name: str
    configuration: dict[str, Value]
    value: float
    lowest: float
    highest: float
    measurements: int
    metrics: dict[str, float]


class KnobChange(msgspec.Struct, frozen=True):
    knob: str
    default: Value | None
    best: Value | None
    meaning: str


class Present(msgspec.Struct, frozen=True, kw_only=True):
    """What a person launches today, if an expert's recipe was better and is what the gain is quoted against. `ratio`:
    its cost / the best's cost; `in_turns`: of runs that alternated."""

    measured: MeasuredConfiguration
    ratio: float
    in_turns: bool
    changes: list[KnobChange]


class Recommendation(msgspec.Struct, frozen=True, kw_only=True):
    """`headline`: the verdict in one sentence; `evidence`: what it rests on."""

    job: str
    headline: str
    metric: str
    context: str
    environment: dict[str, str]
    sessions: list[str]
    best: MeasuredConfiguration
    default: MeasuredConfiguration | None
    reference: str  # what the default is, in words
    worst: MeasuredConfiguration | None
    gain: float | None  # cost of the default / cost of the best
    low: float | None  # 95 % interval, if the two were re-measured in turns
    high: float | None
    evidence: str
    changes: list[KnobChange]
    checkpoint: str = ""  # whether a running training can continue as the best
    present: Present | None = None
    open: bool = False  # measured in rounds, which did not decide
    disturbed: str = ""  # what else the machine did while it measured, in a sentence


def best_of_session(kb: Path, session: str) -> Recommendation:
    started = store.session_started(kb, session)
    past = journals.events(store.journalled(kb, session) / "journal.jsonl")
    rows = [(session, m) for m in measured_in(past)]
    recipes = [started.default, *started.recipes]
    confirmed = _confirmed(past)
    context = rows[-1 if confirmed else 0][1].context if rows else ""
    left = next((e.chance for e in reversed(past) if isinstance(e, Outlook)), None)
    return _best(started.job, recipes, _of_context(rows, context), confirmed, _tried(rows), left)


def best_of_job(kb: Path, job: Job) -> Recommendation:
    """From everything measured of the job on the hardware and versions that measured it last, as far as this job's
    cluster and limits allow it; confirmed by the newest session with the same goal."""
    space = JobSpace.of_job(job)
    default = space.reference
    known = [
        (session, m)
        for session, m in store.measurements(kb, job=job.id, answers=True, designed=target_of(job).designs)
        if m.counts
    ]
    of, ours = store.clusters(kb, job.id), {node.device for node in job.cluster.nodes}
    there = {session for session, cluster in of.items() if ours.issuperset(kinds_in(cluster))}
    rows = [(session, m) for session, m in known if session in there and space.is_valid(m.configuration)]
    if not rows:
        told, answers = (len(store.measurements(kb, job=job.id, answers=only)) for only in (False, True))
        what = (
            f"{told} rows of {job.name} are known, and none answers here" if told else f"nothing is known of {job.name}"
        )
        trusted = ", or trust who measured them (`autoscout kb trust`)" if told and not answers else ""
        raise AutoscoutError(f"{what} yet; `autoscout tune` measures it{trusted}", 1)
    searched = next((m.context for _, m in reversed(rows) if SETTINGS not in m.environment), rows[-1][1].context)
    confirmed, context = None, searched
    for session in dict.fromkeys(session for session, m in reversed(rows) if m.context == searched):
        if confirmed := _confirmed_alike(kb, session, job):
            context = [m.context for name, m in rows if name == session][-1]
            break
    tried = _tried(_of_context(rows, searched))
    rows = _of_context(rows, context)
    reference = equivalence.Reference(check_of(job), default.id)
    for _, m in rows:
        if m.configuration == default:
            reference.judge(m)
    told = {session for session, m in rows if m.losses}  # a study may tell none: its runs stay as they were told
    rows = [(session, reference.rejudge(m) if session in told else m) for session, m in rows]
    return _best(job, space.recipes, rows, confirmed, tried)


def _of_context(rows: list[tuple[str, Measurement]], context: str) -> list[tuple[str, Measurement]]:
    """Comparable rows: a confirmation that trains as the person does has a context of its own."""
    return [(session, m) for session, m in rows if m.context == context]


def _tried(rows: list[tuple[str, Measurement]]) -> int:
    return len({m.configuration.id for _, m in rows})


def _confirmed_alike(kb: Path, session: str, job: Job) -> Confirmed | None:
    """What a session confirmed, if it had the same objective, cluster and limits; None also if its folder is gone."""
    path = store.session_folder(kb, session) / "journal.jsonl"
    if not path.is_file():
        return None
    theirs = store.session_started(kb, session).job
    alike = (theirs.objective, theirs.cluster, theirs.space) == (job.objective, job.cluster, job.space)
    return _confirmed(journals.events(path)) if alike else None


def _best(
    job: Job,
    recipes: list[Configuration],
    rows: list[tuple[str, Measurement]],
    confirmed: Confirmed | None,
    tried: int,
    left: float | None = None,
) -> Recommendation:
    """`recipes`: the first is the default; `rows`: of one context; `tried`: number of measured configurations; `left`:
    probability that one at least 1 % better was not found."""
    groups: dict[str, list[Measurement]] = {}
    for _, m in rows:
        groups.setdefault(m.configuration.id, []).append(m)
    medians = _median_costs(job, groups)
    if not medians:
        raise AutoscoutError(f"no configuration of {job.name} has run correctly yet", 3)
    if confirmed is not None and confirmed.winner.id in medians:
        winner = confirmed.winner.id
    else:
        winner = min(medians, key=medians.__getitem__)
        confirmed = None
    default = _to_beat(recipes, rows, medians, confirmed)
    called = reference_of(job) if default == recipes[0] else "the best expert recipe"
    base = medians.get(default.id)
    gain = base / medians[winner] if base is not None else None
    if confirmed is not None and confirmed.gain is not None:
        gain = confirmed.gain
    best_configuration = groups[winner][0].configuration
    designed = groups[winner][0].fidelity != "measured"
    best = _measured(job, groups[winner], confirmed.value if confirmed else None)
    beside = None
    if base is not None:
        beside = _measured(job, groups[default.id], confirmed.default_value if confirmed else None)
    said = {winner: best, **({default.id: beside} if beside else {})}
    worst = max(medians, key=medians.__getitem__)
    now, present = (recipes[0] if job.launch.current or job.launch.command else default), None
    if now.id in medians and now.id not in (default.id, winner):
        measured, changes = _measured(job, groups[now.id]), _changes(job, now, best_configuration)
        over = confirmed.over_today if confirmed and confirmed.today_name == measured.name else None
        ratio = over or medians[now.id] / medians[winner]
        present = Present(measured=measured, ratio=ratio, in_turns=over is not None, changes=changes)
    seen = _evidence(confirmed, called, len(groups[winner]), tried)
    verdict = Verdict(
        objective=job.objective,
        reference=called,
        tried=tried,
        gain=gain,
        confirmed=confirmed,
        kept=winner == default.id,
        designed=designed,
        left=left,
        round_s=sum(statistics.median(m.cost_s for m in groups[each]) for each in {winner, default.id} & groups.keys()),
    )
    return Recommendation(
        job=job.name,
        headline=headline(verdict),
        metric=job.objective.metric,
        context=rows[-1][1].context,
        environment=rows[-1][1].environment,
        sessions=list(dict.fromkeys(session for session, _ in rows)),
        best=best,
        default=beside,
        reference=called,
        worst=said.get(worst) or _measured(job, groups[worst]),
        gain=gain,
        low=confirmed.low if confirmed and not designed else None,
        high=confirmed.high if confirmed and not designed else None,
        evidence=f"{DESIGNED}: best of {tried} designs, all predicted; nothing here was measured"
        if designed
        else seen + nearness(confirmed, [m for _, m in rows], default),
        changes=_changes(job, default, best_configuration),
        checkpoint=of_checkpoint(job, now, best_configuration),
        present=present,
        open=confirmed is not None and confirmed.verdict == "undecided" and job.launch.launcher != "replay",
        disturbed=_disturbed([m for _, m in rows]),
    )


def _disturbed(measured: list[Measurement]) -> str:
    """Of the usual run, since Disturbances repeats single ones."""
    shares = [m.conditions["foreign_cpu_share"] for m in measured if "foreign_cpu_share" in m.conditions]
    share = statistics.median(shares) if shares else 0.0
    if share < _BUSY:
        return ""
    return f"other work took {share:.0%} of this machine's CPU time: times are longer and less sure than on a quiet one"


def _median_costs(job: Job, groups: dict[str, list[Measurement]]) -> dict[str, float]:
    """Of the configurations that ran, none of whose runs was wrong."""
    costs = {
        key: [c for m in group if (c := cost(job.objective, m)) is not None]
        for key, group in groups.items()
        if not any(m.status == "wrong" for m in group)
    }
    return {key: statistics.median(values) for key, values in costs.items() if values}


def _to_beat(
    recipes: list[Configuration],
    rows: list[tuple[str, Measurement]],
    medians: dict[str, float],
    confirmed: Confirmed | None,
) -> Configuration:
    """The recipe that the gain is quoted against: the one that the finalists were compared with, else the best that was
    measured."""
    if confirmed is not None:
        return next((m.configuration for _, m in rows if m.name == confirmed.default_name), recipes[0])
    return min((r for r in recipes if r.id in medians), key=lambda r: medians[r.id], default=recipes[0])


def _measured(job: Job, group: list[Measurement], confirmed: float | None = None) -> MeasuredConfiguration:
    good = sorted((m for m in group if cost(job.objective, m) is not None), key=lambda m: cost(job.objective, m) or 0.0)
    values = [to_metric(job.objective, c) for m in good if (c := cost(job.objective, m)) is not None]
    return MeasuredConfiguration(
        name=good[0].name,
        configuration=good[0].configuration.knobs,
        value=confirmed or statistics.median(values),
        lowest=min(values),
        highest=max(values),
        measurements=len(values),
        metrics=good[len(good) // 2].metrics,
    )


def _evidence(confirmed: Confirmed | None, called: str, repeats: int, configurations: int) -> str:
    seen = f"best of {several(configurations, 'measured configuration')}"
    if confirmed is None:
        times = "once" if repeats == 1 else f"{repeats} times"
        return f"{seen}; measured {times}, not re-measured in turns with {called}"
    if confirmed.sentence:
        return f"{seen}; re-measured in rounds: {confirmed.sentence}{_next_best(confirmed)}"
    times = f"{confirmed.pairs} times" if confirmed.pairs > 1 else "once"
    text = f"{seen}; finalists re-measured {times} in turns: "
    if confirmed.name == confirmed.default_name:
        text += f"keep {called}, nothing is measurably faster"
    elif confirmed.gain is None:
        text += f"{called} did not run"
    else:
        text += f"{_times(confirmed.gain, confirmed.low, confirmed.high)} faster than {called}"
    return text + _next_best(confirmed)


def _next_best(confirmed: Confirmed) -> str:
    behind, low, high = confirmed.behind, confirmed.behind_low, confirmed.behind_high
    if behind is None or confirmed.rival_name == confirmed.default_name:
        return ""
    if confirmed.sentence and confirmed.name == confirmed.default_name:  # the sentence is about it
        return ""
    if low is not None and high is not None and low <= 1 <= high:
        return f"; {confirmed.rival_name} may be as good ({_times(behind, low, high)} its cost)"
    if behind < 1:
        ahead = _times(1 / behind, 1 / high if high else None, 1 / low if low else None)
        return f"; {confirmed.rival_name} may be {ahead} faster, which is within noise"
    return f"; {confirmed.rival_name} is {_times(behind, low, high)} slower"


def nearness(confirmed: Confirmed | None, rows: list[Measurement], default: Configuration) -> str:
    """A clause for when a configuration that noise cannot tell from the winner was passed over, because it changes
    more."""
    rival = next((m.configuration for m in rows if confirmed and m.name == confirmed.rival_name), None)
    if confirmed is None or rival is None or confirmed.behind is None or confirmed.behind >= 1:
        return ""
    ours, theirs = differing(confirmed.winner, default), differing(rival, default)
    if not 0 < ours < theirs:
        return ""
    return (
        "; of those that noise does not tell apart the nearest to today's launch is preferred: it changes "
        f"{ours} of its knobs, {confirmed.rival_name} {theirs}"
    )


def of_checkpoint(job: Job, now: Configuration, new: Configuration) -> str:
    """Whether a running training can continue as another configuration, in a sentence; "" if nothing is known."""
    told = target_of(job).checkpoint(job, now, new) if job.task != "serve" and now != new else ""
    return f"a checkpoint of the training that runs now {told}" if told else ""


def _times(ratio: float, low: float | None, high: float | None) -> str:
    interval = f" (95 % interval {low:.2f}–{high:.2f}×)" if low is not None and high is not None else ""
    return f"{ratio:.2f}×{interval}"


def _changes(job: Job, default: Configuration, best: Configuration) -> list[KnobChange]:
    """In the job's order of knobs, with their meanings as far as the job says."""
    said = meanings(job)
    return [
        KnobChange(name, default.knobs.get(name), best.knobs.get(name), said.get(name, ""))
        for name in dict.fromkeys([*said, *default.knobs, *best.knobs])
        if default.knobs.get(name) != best.knobs.get(name)
    ]


def measured_in(past: list[AnyEvent]) -> list[Measurement]:
    """Measurements that a session made or was answered with, if they count."""
    found = (e.measurement for e in past if isinstance(e, journals.ExperimentEnded | journals.Answered))
    return [m for m in found if m.counts]


def _confirmed(past: list[AnyEvent]) -> Confirmed | None:
    return next((e for e in reversed(past) if isinstance(e, Confirmed)), None)
