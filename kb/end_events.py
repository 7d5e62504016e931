"""Events at the end of a session, with its claims about the winner."""

from kb.records import Configuration
from kb.within_events import Event, Part, WarmSource


class SearchEnded(Event, frozen=True, tag="search_ended"):
    """`reason`: budget · wall · device_time · converged · settled (no better is expected) · exhausted · stopped."""

    reason: str


class Confirmed(Event, frozen=True, tag="confirmed"):
    """Finalists and default, re-measured in rounds. `gain` = default / winner as a ratio of costs, with its 95 %
    interval; `behind` = rival / winner likewise, where `rival` is the next best. The intervals hold under repeated
    looks, and for all finalists jointly. `verdict` is about the best finalist against the default: faster (proven),
    equal (less than 1 % apart), slower, undecided, alone (one of them did not run), designed (by models: no rounds, no
    intervals); "" in older journals. `p_better`: probability that it beats the default; `noise`: standard deviation of
    the log of one measurement; `more`: total number of rounds that would decide. `over_today` = present launch
    (`today_name`) / winner as a ratio of costs, if the present launch is neither the winner nor the default."""

    winner: Configuration
    name: str
    value: float
    default_name: str
    default_value: float | None
    gain: float | None
    low: float | None
    high: float | None
    pairs: int
    rival_name: str = ""
    behind: float | None = None
    behind_low: float | None = None
    behind_high: float | None = None
    verdict: str = ""
    p_better: float | None = None
    noise: float | None = None
    more: int | None = None
    sentence: str = ""
    today_name: str = ""
    over_today: float | None = None

    @property
    def decided(self) -> bool:
        return self.verdict not in ("undecided", "alone")


class Gated(Event, frozen=True, tag="gated"):
    """Verdict on side `b` against side `a`, whose runs are in `a_session`: worse (slower by more than `margin`, or it
    fails, or computes something else) · no worse · undecided. `ratio`: cost of b / cost of a, with a 90 % interval that
    holds under repeated looks; `p_worse`: probability that it is above 1 + margin. `checked`: whether what the two
    compute was compared."""

    a: str
    b: str
    a_session: str
    verdict: str
    margin: float
    sentence: str
    ratio: float | None = None
    low: float | None = None
    high: float | None = None
    p_worse: float | None = None
    pairs: int = 0
    parts: list[Part] = []
    checked: bool = False


class WarmStartWorth(Event, frozen=True, tag="warm_start_worth"):
    """How the carried-over favourites turned out. `behind`: cost of the best favourite / of the session's best − 1;
    `rank`: its rank among all that ran; `first_within`: experiments until one was within 1 % of the session's best."""

    sources: list[WarmSource]
    carried: int
    tried: int
    failed: int
    best: str
    behind: float | None
    rank: int | None
    experiments: int
    first_within: int
    sentence: str


class SessionEnded(Event, frozen=True, tag="session_ended"):
    """`reason`: why the search ended, or `interrupted`, `failed`, `profiled` (a single experiment)."""

    reason: str
    experiments: int
    engine_ms_mean: float
    engine_ms_max: float
    problem: str = ""  # if it failed: the sentence of the error; then the exit code of the verb
    exit_code: int = 0
