"""Events at the end of a session, with its claims about the winner."""

from kb.records import Configuration
from kb.within_events import Event, Part, WarmSource


class SearchEnded(Event, frozen=True, tag="search_ended"):
    """`reason`: budget, wall, device_time or failures (a limit was reached) · converged (many experiments without
    improvement) · settled (hardly any gain is expected) · exhausted (nothing is left to try) · stopped (by a user)."""

    reason: str


class Confirmed(Event, frozen=True, tag="confirmed"):
    """The verdict after finalists and default were re-measured in rounds. `gain`: cost of the default / cost of the
    winner, with the 95 % interval [`low`, `high`]; `behind`: cost of the next best finalist (`rival_name`) / cost of
    the winner, with the 95 % interval [`behind_low`, `behind_high`]. The intervals are valid for all finalists jointly,
    even though the data is tested after every round. `verdict` on the best finalist against the default: faster
    (proven), equal (less than 1 % apart), slower, undecided, alone (one of them did not run), designed (costs from a
    deterministic model, without rounds and intervals); "" in older journals. `p_better`: probability that this finalist
    beats the default; `noise`: standard deviation of the log of one measurement; `more`: total number of rounds that a
    decision would need. `over_today`: cost of the present launch (`today_name`) / cost of the winner, if the present
    launch is neither the winner nor the default."""

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
    """The result of a gate, which compares version `b` of a job with version `a`, whose runs are in the session
    `a_session`. `verdict`: worse (slower by more than `margin`, fails, or computes something else), no worse, or
    undecided. `ratio`: cost of b / cost of a, with a 90 % interval that is valid under repeated looks at the data;
    `p_worse`: probability that the ratio is above 1 + margin; `checked`: whether the results (such as losses) were
    compared."""

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
    """The results of the configurations that a warm start carried over. `behind`: cost of the best of them / cost of
    the session's best − 1; `rank`: rank of the best of them among all configurations that ran; `first_within`: number
    of experiments until any configuration was within 1 % of the session's best."""

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
    """`reason`: why the search ended, or `interrupted`, `failed`, `profiled` (a session without a search)."""

    reason: str
    experiments: int
    engine_ms_mean: float
    engine_ms_max: float
    problem: str = ""  # the error message if the session failed
    exit_code: int = 0
