"""Recommends the best configuration and compares it with the reference, from measurements in the knowledge base."""

import statistics
from collections.abc import Sequence
from pathlib import Path

import msgspec

from autoscout.deploy.headline import Verdict, headline
from autoscout.job.objective import cost, to_metric
from autoscout.job.words import several
from autoscout.running import equivalence
from autoscout.running.conditions import BUSY
from autoscout.running.equivalence import SETTINGS
from autoscout.space.nearness import differing
from autoscout.targets.jobs import JobSpace, check_of, meanings
from autoscout.targets.target import reference_of, target_of
from kb import journal as journals
from kb import store
from kb.journal import AnyEvent, Confirmed, ExperimentEnded, Outlook
from kb.journal_rows import kinds_in
from kb.records import DESIGNED, AutoscoutError, Configuration, Job, Measurement, Value


class MeasuredConfiguration(msgspec.Struct, frozen=True, kw_only=True):
    """A configuration with its correct measurements. `value`: the objective's metric, from the final rounds if there
    were any, otherwise the median; `lowest`, `highest`: over all runs; `metrics`: of the median run."""

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
    """The user's present launch, shown if the gain is stated over an expert recipe because that recipe was better.
    `ratio`: cost of the present launch / cost of the best; `in_turns`: whether the two were measured alternately in
    rounds."""

    measured: MeasuredConfiguration
    ratio: float
    in_turns: bool
    changes: list[KnobChange]


class Recommendation(msgspec.Struct, frozen=True, kw_only=True):
    """The recommended configuration. `headline`: the verdict in one sentence; `evidence`: the measurements behind
    it."""

    job: str
    headline: str
    metric: str
    context: str
    environment: dict[str, str]
    sessions: list[str]
    best: MeasuredConfiguration
    default: MeasuredConfiguration | None
    reference: str  # what sentences call the default
    worst: MeasuredConfiguration | None
    gain: float | None  # cost of the default / cost of the best
    low: float | None  # 95 % interval of the gain, if both were measured alternately in the final rounds
    high: float | None
    evidence: str
    changes: list[KnobChange]
    checkpoint: str = ""  # a sentence on whether a training run can continue with the best; "": unknown
    present: Present | None = None
    open: bool = False  # whether the final rounds left the verdict undecided
    disturbed: str = ""  # a sentence on other load on the machine during the measurement


def best_of_session(kb: Path, session: str) -> Recommendation:
    started = store.session_started(kb, session)
    past = journals.events(store.journalled(kb, session) / "journal.jsonl")
    rows = [(session, m) for m in measured_in(past)]
    recipes = [started.default, *started.recipes]
    confirmed = _confirmed(past)
    context = rows[-1 if confirmed else 0][1].context if rows else ""
    left = next((e.chance for e in reversed(past) if isinstance(e, Outlook)), None)
    short = [e.measurement for e in past if isinstance(e, ExperimentEnded) and e.measurement.fidelity == "short"]
    return _best(started.job, recipes, _of_context(rows, context), confirmed, _tried(rows), left, short)


def best_of_job(kb: Path, job: Job) -> Recommendation:
    """The recommendation from all measurements of the job with the hardware and versions that were used last,
    restricted to this job's cluster and limits. The verdict is that of the newest session with the same objective."""
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
        rows_known, answers = (len(store.measurements(kb, job=job.id, answers=only)) for only in (False, True))
        what = (
            f"{rows_known} measurements of {job.name} are known, but none applies to this cluster and space"
            if rows_known
            else f"nothing is known about {job.name}"
        )
        trusted = (
            ", or trust the source of those measurements (`autoscout kb trust`)" if rows_known and not answers else ""
        )
        raise AutoscoutError(f"{what}; run `autoscout tune` to measure it{trusted}", 1)
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
    # Sessions that recorded no losses (those of a Study) cannot be checked for equivalence again.
    with_losses = {session for session, m in rows if m.losses}
    rows = [(session, reference.rejudge(m) if session in with_losses else m) for session, m in rows]
    return _best(job, space.recipes, rows, confirmed, tried)


def _of_context(rows: list[tuple[str, Measurement]], context: str) -> list[tuple[str, Measurement]]:
    """The rows with this context (hash of job, hardware and versions), which are comparable. The final rounds have a
    different context from the search if they train exactly like the user's launch."""
    return [(session, m) for session, m in rows if m.context == context]


def _tried(rows: list[tuple[str, Measurement]]) -> int:
    return len({m.configuration.id for _, m in rows})


def _confirmed_alike(kb: Path, session: str, job: Job) -> Confirmed | None:
    """A session's verdict, if its objective, cluster and limits are the job's; None also if its folder is missing."""
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
    short: Sequence[Measurement] = (),
) -> Recommendation:
    """The recommendation from measurements. `recipes`: the default, then further expert recipes; `rows`: measurements
    with the same context; `tried`: number of measured configurations; `left`: probability that an untried configuration
    is at least 1 % better; `short`: runs that were ended early, which are only used for the worst configuration."""
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
    of_default = None
    if base is not None:
        of_default = _measured(job, groups[default.id], confirmed.default_value if confirmed else None)
    by_id = {winner: best, **({default.id: of_default} if of_default else {})}
    worst = max(medians, key=medians.__getitem__)
    slow = [(c, m) for m in short if (c := cost(job.objective, m)) is not None and c > medians[worst]]
    slowest = max(slow, key=lambda each: each[0])[1] if slow else None
    now, present = (recipes[0] if job.launch.current or job.launch.command else default), None
    if now.id in medians and now.id not in (default.id, winner):
        measured, changes = _measured(job, groups[now.id]), changed_knobs(job, now, best_configuration)
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
        default=of_default,
        reference=called,
        worst=_measured(job, [slowest]) if slowest else by_id.get(worst) or _measured(job, groups[worst]),
        gain=gain,
        low=confirmed.low if confirmed and not designed else None,
        high=confirmed.high if confirmed and not designed else None,
        evidence=f"{DESIGNED}: best of {tried} designs, all predicted; nothing here was measured"
        if designed
        else seen + nearness(confirmed, [m for _, m in rows], default),
        changes=changed_knobs(job, default, best_configuration),
        checkpoint=of_checkpoint(job, now, best_configuration),
        present=present,
        open=confirmed is not None and confirmed.verdict == "undecided" and job.launch.launcher != "replay",
        disturbed=disturbance([m for _, m in rows]),
    )


def disturbance(measured: list[Measurement]) -> str:
    """A sentence if other processes took much of the CPU time (median over the runs), else ""."""
    shares = [m.conditions["foreign_cpu_share"] for m in measured if "foreign_cpu_share" in m.conditions]
    share = statistics.median(shares) if shares else 0.0
    if share < BUSY:
        return ""
    return (
        f"other processes took {share:.0%} of this machine's CPU time, so times are longer and less certain than "
        "on an idle machine"
    )


def _median_costs(job: Job, groups: dict[str, list[Measurement]]) -> dict[str, float]:
    """Median cost of each configuration that ran, unless one of its runs failed the equivalence check."""
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
    """The recipe over which the gain is stated: the recipe measured in the final rounds, or else the recipe with the
    best measurement."""
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
        return f"{seen}, each measured {times}; the winner and {called} were not re-measured in alternation"
    if confirmed.sentence:
        return f"{seen}; re-measured in rounds: {confirmed.sentence}{_next_best(confirmed)}"
    times = f"{confirmed.pairs} times" if confirmed.pairs > 1 else "once"
    text = f"{seen}; finalists re-measured {times}, in alternation: "
    if confirmed.name == confirmed.default_name:
        text += f"keep {called}, since no configuration is measurably faster"
    elif confirmed.gain is None:
        text += f"{called} did not run"
    else:
        text += f"{_times(confirmed.gain, confirmed.low, confirmed.high)} faster than {called}"
    return text + _next_best(confirmed)


def _next_best(confirmed: Confirmed) -> str:
    behind, low, high = confirmed.behind, confirmed.behind_low, confirmed.behind_high
    if behind is None or confirmed.rival_name == confirmed.default_name:
        return ""
    if confirmed.sentence and confirmed.name == confirmed.default_name:  # the sentence already mentions the rival
        return ""
    if low is not None and high is not None and low <= 1 <= high:
        return f"; {confirmed.rival_name} may be as good ({_times(behind, low, high)} its cost)"
    if behind < 1:
        ahead = _times(1 / behind, 1 / high if high else None, 1 / low if low else None)
        return f"; {confirmed.rival_name} may be {ahead} faster, which is within noise"
    return f"; {confirmed.rival_name} is {_times(behind, low, high)} slower"


def nearness(confirmed: Confirmed | None, rows: list[Measurement], default: Configuration) -> str:
    """A clause if a rival is as good as the winner within noise, but changes more knobs of the default; else ""."""
    rival = next((m.configuration for m in rows if confirmed and m.name == confirmed.rival_name), None)
    if confirmed is None or rival is None or confirmed.behind is None or confirmed.behind >= 1:
        return ""
    ours, theirs = differing(confirmed.winner, default), differing(rival, default)
    if not 0 < ours < theirs:
        return ""
    return (
        "; the two differ by less than the noise, so the one closer to today's launch is preferred: it changes "
        f"{ours} knobs, {confirmed.rival_name} changes {theirs}"
    )


def of_checkpoint(job: Job, now: Configuration, new: Configuration) -> str:
    """A sentence on whether a training job that runs with `now` can continue from its checkpoint with `new`; "" if
    unknown."""
    verdict = target_of(job).checkpoint(job, now, new) if job.task != "serve" and now != new else ""
    return f"a checkpoint of the training that runs now {verdict}" if verdict else ""


def _times(ratio: float, low: float | None, high: float | None) -> str:
    interval = f" (95 % interval {low:.2f}–{high:.2f}×)" if low is not None and high is not None else ""
    return f"{ratio:.2f}×{interval}"


def changed_knobs(job: Job, default: Configuration, best: Configuration) -> list[KnobChange]:
    """The knobs that differ, in the job's order, with their descriptions if the job has them."""
    meaning_of = meanings(job)
    return [
        KnobChange(name, default.knobs.get(name), best.knobs.get(name), meaning_of.get(name, ""))
        for name in dict.fromkeys([*meaning_of, *default.knobs, *best.knobs])
        if default.knobs.get(name) != best.knobs.get(name)
    ]


def measured_in(past: list[AnyEvent]) -> list[Measurement]:
    """Measurements whose configurations a session may recommend: its own, and those that it took from the knowledge
    base."""
    found = (e.measurement for e in past if isinstance(e, ExperimentEnded | journals.Answered))
    return [m for m in found if m.counts]


def _confirmed(past: list[AnyEvent]) -> Confirmed | None:
    return next((e for e in reversed(past) if isinstance(e, Confirmed)), None)
