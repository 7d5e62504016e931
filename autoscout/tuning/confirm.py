"""The end of a session: decides whether the winner is really better than the reference, and by how much.

The best of many single measurements is partly luck. So the finalists are chosen by the search's posterior, and they and
the reference are measured again in rounds (trial.py); only these new measurements count. If they do not suffice, the
verdict is "undecided", with the gain that more rounds are expected to bring.
"""

import math
from collections.abc import Collection, Sequence

from autoscout.job.objective import broken, cost, nearest_miss, to_metric
from autoscout.job.words import PLAIN
from autoscout.search.belief.ranking import Around, Ranking
from autoscout.space.graph import Space
from autoscout.space.nearness import differing
from autoscout.tuning import evidence
from autoscout.tuning.choice import FinalChoice, doubted
from autoscout.tuning.evidence import Contrast, Fit, Round, expected_excess, factor
from autoscout.tuning.trial import WORTH, Trial
from kb.journal import Confirmed
from kb.records import Configuration, Job, Measurement

FINALISTS, _MOST = 3, 6  # most finalists by the posterior, after few and after many measurements
_FOR = 5  # between these two limits, the limit is the number of measured configurations / _FOR
# Configurations within this factor of the best single measurement may really be better, because of noise.
_WITHIN, _WITHIN_QUIET = 1.15, 1.05
_ALIKE = 0.0025  # relative cost difference treated as a tie; ties go to the configuration nearest the reference
_STEEP = math.log(1.05)  # an optimum is a sharp peak if its neighbours' median log-cost is higher by more than this
_ASKED = 0.01  # gains below this need no proof: an interval that excludes larger ones counts as "equal"


def finalists(
    job: Job, ranking: Ranking, default: Configuration, measured: Sequence[Measurement], quiet: bool = False
) -> list[Configuration]:
    """The configurations that may be the best, by the search's posterior, best first; then the default, if it ran.
    `quiet`: whether the reference's repeats agree as closely as on a dedicated system."""
    costs = {m.configuration.id: c for m in measured if (c := cost(job.objective, m)) is not None}
    believed = [b for b in ranking.believed if b.configuration.id in costs]
    if not believed:
        return []
    if math.isfinite(believed[0].deviation):
        gains = {b.configuration.id: expected_excess(-b.excess, doubted(b.deviation)) for b in believed}
        most = most_finalists(len(costs))
        likely = [b for b in believed[1:] if gains[b.configuration.id] >= WORTH]
        likely.sort(key=lambda b: -gains[b.configuration.id])
        chosen = [believed[0].configuration, *(b.configuration for b in likely)]
    else:
        least, most = min(costs.values()), FINALISTS
        chosen = [b.configuration for b in believed if costs[b.configuration.id] <= _WITHIN * least]
    chosen = [c for c in chosen if c.id != default.id][:most]
    cheap = [b.configuration for b in believed if b.configuration.id in _least(costs, quiet)]
    chosen += [c for c in cheap if c not in chosen and c.id != default.id]
    return [*chosen, default] if default.id in costs else chosen


def most_finalists(measured: int) -> int:
    """The largest number of finalists by the posterior, after so many measured configurations."""
    return min(_MOST, max(FINALISTS, measured // _FOR))


def _least(costs: dict[str, float], quiet: bool) -> list[str]:
    """The cheapest configurations by single measurements, regardless of the posterior: measuring them in two rounds
    costs less than missing the best one."""
    least = sorted(costs, key=costs.__getitem__)[:FINALISTS]
    return [name for name in least if costs[name] <= (_WITHIN_QUIET if quiet else _WITHIN) * costs[least[0]]]


def round_of(job: Job, measured: Sequence[Measurement]) -> Round:
    """The costs of a round, without failed measurements."""
    return [(m.configuration.id, c) for m in measured if (c := cost(job.objective, m)) is not None]


def failed(job: Job, rounds: Sequence[Sequence[Measurement]]) -> set[str]:
    """Ids of configurations that failed in a round, except by a fault of the machine; they are no longer finalists."""
    return {
        m.configuration.id
        for row in rounds
        for m in row
        if m.status != "infrastructure" and cost(job.objective, m) is None
    }


def verdict(
    job: Job,
    space: Space,
    trial: Trial,
    measured: Sequence[Sequence[Measurement]],
    default: Configuration,
    around: dict[str, Around] | None = None,
    today: Configuration | None = None,
) -> Confirmed | None:
    """The claim about the gain and the recommendation; None if nothing ran. A gain is only claimed if it is proven. The
    cheapest configuration with a proven gain is recommended, else the one with the lowest posterior mean, because one
    has to be recommended; ties go to the one nearest the default. `around`: predictions for the finalists' neighbours;
    `today`: the user's present launch."""
    out = failed(job, measured) - {default.id}
    rounds = [[(name, c) for name, c in round_of(job, row) if name not in out] for row in measured]
    rounds = [row for row in rounds if row]
    if not rounds:
        return None
    configurations = {m.configuration.id: m.configuration for row in measured for m in row}
    names = {"": "", default.id: space.name(default), **{id_: space.name(c) for id_, c in configurations.items()}}
    fit = trial.fit(rounds)
    chosen = trial.choice(fit)
    proven = trial.proven(rounds)
    here, last = default.id in fit.level, list(dict(rounds[-1]))
    winner = _chosen(proven or last, fit, chosen, configurations, default)
    others = sorted((name for name in fit.level if name != winner), key=fit.level.__getitem__)
    leader = winner if winner != default.id else next((name for name in others if name != default.id), "")
    against = fit.contrast(default.id, leader) if here and leader else None
    p_better = chosen.p_better(default.id, leader) if here and leader else None
    kind = "faster" if proven else _kind(against, here)
    more = _more(trial, fit, against, kind)
    present = today.id if today and today.id in fit.level and today.id not in (winner, default.id) else ""
    numbers = _numbers(against, p_better, len(rounds))
    sentence = _sentence(names[leader], names[default.id] or PLAIN, numbers, against, kind, more, winner == leader)
    if present:
        sentence += _over_today(fit.contrast(present, winner), chosen.p_better(present, winner), present, rounds)
    if fit.slow:
        runs = sum(map(len, rounds))
        sentence += (
            f"; {fit.slow} of {runs} runs were slow because of the machine, so runs at its usual speed are compared"
        )
    if len(last) > 1 and fit.dof:
        sentence += _left(chosen.left(winner, last))
    gain, low, high = (1.0, None, None) if winner == default.id else _ratio(against)
    behind, behind_low, behind_high = _ratio(fit.contrast(others[0], winner) if others else None)
    return Confirmed(
        winner=configurations[winner],
        name=names[winner],
        value=to_metric(job.objective, _typical(rounds, fit, winner)),
        default_name=names[default.id],
        default_value=to_metric(job.objective, _typical(rounds, fit, default.id)) if here else None,
        gain=gain,
        low=low,
        high=high,
        pairs=len(rounds),
        rival_name=names[others[0]] if others else "",
        behind=behind,
        behind_low=behind_low,
        behind_high=behind_high,
        verdict=kind,
        p_better=p_better,
        noise=fit.noise if fit.dof else None,
        more=more,
        today_name=names[present],
        over_today=_ratio(fit.contrast(present, winner) if present else None)[0],
        sentence=sentence + _shape((around or {}).get(winner)),
    )


def _chosen(
    names: Sequence[str],
    fit: Fit,
    chosen: FinalChoice,
    configurations: dict[str, Configuration],
    default: Configuration,
) -> str:
    """Which of the configurations `names` to recommend: the best, or the default if none is probably better than it or
    the difference is negligible."""
    best = min(names, key=chosen.level.__getitem__)
    if default.id in fit.level:
        against = fit.contrast(default.id, best)
        if against.low <= 0 and (chosen.p_better(default.id, best) <= 0.5 or _kind(against, True) == "equal"):
            return default.id
    alike = [name for name in names if chosen.level[name] - chosen.level[best] <= _ALIKE]
    return min(alike, key=lambda name: (differing(configurations[name], default), chosen.level[name]))


def _typical(rounds: Sequence[Round], fit: Fit, name: str) -> float:
    """A configuration's mean cost over all rounds; rounds without it are filled in by the fit."""
    common = [math.log(c) - fit.level[found] for row in rounds for found, c in row]
    return factor(fit.level[name] + sum(common) / len(common))


def _kind(against: Contrast | None, here: bool) -> str:
    """The verdict's kind if no gain is proven. `against`: the best other configuration against the reference; `here`:
    whether the reference ran."""
    if against is None:
        return "slower" if here else "alone"
    if against.high < math.log1p(_ASKED):
        return "equal" if against.high > 0 else "slower"
    return "undecided"


def _more(trial: Trial, fit: Fit, against: Contrast | None, kind: str) -> int | None:
    """Total number of rounds needed to prove the observed gain, or a gain of 1 % if the observed one is smaller; None
    if the verdict is not "undecided", or if the noise is unknown after one round."""
    if against is None or kind != "undecided" or not math.isfinite(against.error) or fit.rounds < 2 or not fit.dof:
        return None
    wanted = max(against.log, math.log1p(_ASKED))
    rounds = fit.rounds + 1
    while rounds < 10_000:
        dof = fit.dof + rounds - fit.rounds
        half = against.error * math.sqrt(fit.rounds / rounds) * evidence.quantile(trial.share(trial.limit), dof)
        if half <= wanted:
            return rounds
        rounds = math.ceil(rounds * 1.05)
    return rounds


def _ratio(contrast: Contrast | None) -> tuple[float | None, float | None, float | None]:
    if contrast is None:
        return None, None, None
    ratio = factor(contrast.log)
    if not math.isfinite(contrast.half):
        return ratio, None, None
    return ratio, factor(contrast.low), factor(contrast.high)


def _numbers(against: Contrast | None, p_better: float | None, rounds: int) -> str:
    times = f"{rounds} rounds" if rounds > 1 else "one round"
    if against is None or p_better is None:
        return times
    between = (
        f"95 % interval {_percent(against.low)} to {_percent(against.high)}"
        if math.isfinite(against.half)
        else f"one round gives no interval; probability of a gain {_chance(p_better)}"
    )
    return f"{_percent(against.log)} ({between}; {times})"


def _sentence(
    name: str, reference: str, numbers: str, against: Contrast | None, kind: str, more: int | None, chosen: bool
) -> str:
    """The verdict on `name` against the `reference`; `chosen`: whether `name` is recommended."""
    if against is None and name:
        return f"{name} cannot be compared, because the reference, {reference}, did not run in {numbers}"
    if against is None:
        return f"no other configuration ran, or none is expected to be better than {reference}"
    if kind == "faster":
        return f"{name} is faster than {reference}: {numbers}"
    if kind == "slower":
        return f"nothing is faster than {reference}; the gain of the next best, {name}, is {numbers}"
    if kind == "equal":
        return f"{name} and {reference} differ by less than 1 %: {numbers}"
    wanted = f"; {more} rounds in all would decide" if more else ""
    done = f"{name} is the better guess" if chosen else f"{reference} is kept"
    return f"undecided: the gain of {name} over {reference} is {numbers}, so {done}{wanted}"


def _over_today(over: Contrast | None, p_better: float, today: str, rounds: Sequence[Round]) -> str:
    together = sum(today in dict(row) for row in rounds)
    return f"; its gain over the present launch is {_numbers(over, p_better, together)}"


def _left(excess: float) -> str:
    """A clause on the gain that more rounds are expected to bring. `excess`: expected relative cost of the recommended
    configuration above the best one of the last round."""
    most = "less than 0.1 %" if excess < 0.001 else f"at most {excess:.1%}"
    return f"; more rounds are expected to improve the choice by {most}"


def _shape(around: Around | None) -> str:
    if around is None:
        return ""
    known = around.low > _STEEP or around.high < _STEEP
    shape = "the winner stands in a broad basin" if around.high < _STEEP else "the winner stands on a sharp peak"
    interval = (
        f"the median cost of the {around.neighbours} configurations that differ from it in one knob is estimated to be "
        f"{_percent(around.median)}"
    )
    sure = f"95 % interval {_percent(around.low)} to {_percent(around.high)}"
    return f"; {shape if known else 'it is not known whether the winner stands on a sharp peak'}: {interval} ({sure})"


def _percent(log: float) -> str:
    return f"{factor(log) - 1:+.1%}"


def _chance(p: float) -> str:
    return "> 0.999" if p > 0.999 else "< 0.001" if p < 0.001 else f"{p:.2f}" if p < 0.99 else f"{p:.3f}"


def nothing_worked(job: Job, measured: Collection[Measurement], what: str = "configuration", when: str = "") -> str:
    """A sentence on why there is nothing to recommend, with an example. `what`: noun for what was measured; `when`: its
    stage, such as " in the final rounds"."""
    failures: dict[str, int] = {}
    for m in measured:
        failures[m.status] = failures.get(m.status, 0) + 1
    counts = ", ".join(f"{n} {status}" for status, n in sorted(failures.items())) or "nothing was measured"
    reasons = (m.evidence or broken(job.objective, m) for m in measured)
    example = nearest_miss(job.objective, measured) or next(
        (f"For example: {reason}" for reason in reasons if reason), ""
    )
    return f"no {what} of {job.name} ran correctly within its constraints{when} ({counts}). {example}".strip()
