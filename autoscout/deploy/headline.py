"""A session's verdict as one sentence of at most 30 words: the gain, whether it is proven, and if not, how many more
rounds of measurements would decide. The statistics are in `Recommendation.evidence`."""

import math

import msgspec

from autoscout.job.metrics import DEVICES
from autoscout.job.objective import Objective
from autoscout.job.words import several
from kb.journal import Confirmed

_SPEEDS = ("_s", "_ms", "_rps", "_per_gpu")  # endings of metrics whose improvement is called "faster"
_LIKELY = 0.75  # smallest probability that is called "probably"
_NOTICED = 1.005  # smallest ratio of costs that is not printed as 0 %


class Verdict(msgspec.Struct, frozen=True, kw_only=True):
    """The data of a headline. `reference`: the name of the reference in the sentence; `tried`: number of measured
    configurations; `gain`: cost of the reference / cost of the best; `kept`: whether the reference is recommended;
    `designed`: whether costs are predicted by a deterministic model instead of measured; `left`: probability that an
    untried configuration is at least 1 % better; `round_s`: seconds for one more round of the best and the
    reference."""

    objective: Objective
    reference: str
    tried: int
    gain: float | None
    confirmed: Confirmed | None
    kept: bool
    designed: bool = False
    left: float | None = None
    round_s: float | None = None


def headline(found: Verdict) -> str:
    """The sentence, such as "33 % faster than your present launch, sure (95 %: 21 to 44 %)"."""
    seen, gain, c = several(found.tried, "configuration"), found.gain, found.confirmed
    if found.designed:
        better = "" if gain is None or found.kept else f", {_better(found, gain)}"
        return f"Best of {several(found.tried, 'design')}{better}, all predicted by models: nothing was measured"
    if gain is None:
        return f"Best of {seen}; {found.reference} did not run, so no gain is known"
    if c is None:
        if found.kept or gain < _NOTICED:
            return f"Nothing better than {found.reference} found in {seen}, each measured once{_left(found.left)}"
        return f"{_better(found, gain)}, measured once per configuration ({seen}), so not proven"
    if c.verdict == "faster" or (c.low is not None and c.low > 1):
        sure = "" if c.low is None or c.high is None else f" (95 %: {_percent(c.low)} to {_percent(c.high)} %)"
        return f"{_better(found, gain)}, sure{sure}"
    if found.kept:
        return f"Nothing better than {found.reference} found; {seen} measured{_left(found.left)}"
    if gain < _NOTICED:
        return f"No configuration differs from {found.reference} by 1 % or more; {seen} measured"
    likely = c.p_better is not None and c.p_better >= _LIKELY and c.noise is not None
    return f"{'Probably' if likely else 'Perhaps'} {_better(found, gain)}, not proven{_decided_by(c, found.round_s)}"


def _better(found: Verdict, gain: float) -> str:
    """The gain as text: "33 % faster than …", "2.4 × as fast as …", "12 % less peak_memory_gib than …"."""
    objective, reference = found.objective, found.reference
    if objective.metric.endswith(_SPEEDS):
        much = f"{gain:.1f} × as fast as" if gain >= 2 else f"{_percent(gain)} % faster than"
        return f"{much} {reference}"
    if objective.maximize:
        return f"{_percent(gain)} % more {objective.metric} than {reference}"
    less = "fewer" if objective.metric == DEVICES else "less"
    return f"{100 * (1 - 1 / gain):.0f} % {less} {objective.metric} than {reference}"


def _percent(ratio: float) -> str:
    return f"{100 * (ratio - 1):.0f}"


def _left(chance: float | None) -> str:
    if chance is None:
        return ""
    shown = "under 1" if chance < 0.01 else f"{100 * chance:.0f}"
    return f"; chance that a configuration at least 1 % better remains: {shown} %"


def _decided_by(confirmed: Confirmed, round_s: float | None) -> str:
    if confirmed.more is None:
        return f": only {several(confirmed.pairs, 'round')} of measurements"
    missing = max(1, confirmed.more - confirmed.pairs)
    takes = "" if round_s is None else f" (about {_duration(missing * round_s)})"
    return f": {several(missing, 'more round')}{takes} would decide"


def _duration(seconds: float) -> str:
    if seconds < 90:
        return several(max(1, round(seconds)), "second")
    if seconds < 5400:
        return several(round(seconds / 60), "minute")
    return several(math.ceil(seconds / 3600), "hour")
