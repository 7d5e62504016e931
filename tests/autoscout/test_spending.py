"""What experiments are expected to cost, and a search that pays by it."""

import itertools

import numpy as np
import pytest

from autoscout import Study
from autoscout.search.autoscout import AutoScout
from autoscout.search.belief.encoding import Encoding
from autoscout.search.belief.spending import Spending
from autoscout.search.hyper import DefaultHyper
from autoscout.search.strategy import Search
from autoscout.space.graph import Space
from kb.records import Configuration, Measurement, Objective, Value

ROWS: list[dict[str, Value]] = [
    {"devices": 2**d, "mode": mode, "batch": b, "depth": 2**p}
    for d, mode, b, p in itertools.product(range(5), ("a", "b"), range(8), range(6))
]
SPACE = Space.from_table(ROWS, ["mode"], ["devices", "batch", "depth"], Objective(minimize="time_s"))
CODES = SPACE.feasible.codes
COLUMNS = SPACE.feasible.columns()
TIME = (
    3
    + (COLUMNS["mode"] == "b")
    + 0.2 * (COLUMNS["batch"].astype(float) - 5) ** 2
    + 0.3 * (np.log2(COLUMNS["depth"].astype(float)) - 2) ** 2
)
PAID = COLUMNS["devices"].astype(float) * (20 + 2 * TIME)


def told(rows, launch=(), failed=(), paid=PAID) -> Spending:
    spending = Spending(Encoding(SPACE.knobs, CODES), launch)
    for row in rows:
        spending.tell(CODES[row], float(paid[row]), None if row in failed else float(np.log(TIME[row])))
    return spending


def some(count: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).choice(len(CODES), count, replace=False)


def test_prices_are_the_ridge_regression_s_exponentials():
    rows = some(30)
    encoding = Encoding(SPACE.knobs, CODES)

    def regressors(at: np.ndarray, time: np.ndarray) -> np.ndarray:
        """As rows that take that time."""
        costs = np.log(time) - np.log(TIME[rows]).mean()
        zeros = np.zeros(len(at))
        return np.column_stack([encoding.rows(CODES[at]).effects / np.sqrt(4), costs, zeros])

    x, y = regressors(rows, TIME[rows]), np.log(PAID[rows]) - np.log(PAID[rows]).mean()
    weights = np.linalg.solve(x.T @ x + 0.1 * np.eye(x.shape[1]), x.T @ y)
    as_good = regressors(np.arange(len(CODES)), np.full(len(CODES), TIME[rows].min()))
    assert told(rows).prices(CODES) == pytest.approx(np.exp(as_good @ weights), rel=1e-4)


def test_what_devices_cost_is_learned_and_nothing_is_assumed_before():
    assert (told(some(5)).prices(CODES) == 1).all()  # too few
    assert (told(some(30), paid=np.full(len(CODES), 60.0)).prices(CODES) == 1).all()  # nothing to tell apart
    noise = np.exp(np.random.default_rng(1).standard_normal(len(CODES)))
    assert (told(some(30), paid=noise).prices(CODES) == 1).all()  # nothing that can be foreseen
    assert (told(some(30), paid=np.zeros(len(CODES))).prices(CODES) == 1).all()  # nobody says
    found, truth = np.log(told(some(30)).prices(CODES)), np.log(PAID / np.exp(np.log(PAID[some(30)]).mean()))
    assert np.corrcoef(found, truth)[0, 1] > 0.95
    assert told(some(30)).price(float(np.exp(np.log(PAID[some(30)]).mean()))) == pytest.approx(1)
    assert told(some(5)).price(1e6) == 1


def test_a_failure_says_nothing_of_what_runs_cost():
    rows = some(40)
    paid = PAID.copy()
    paid[rows[30:]] = 5.0
    assert (told(rows, failed=set(rows[30:].tolist()), paid=paid).prices(CODES) == told(rows[:30]).prices(CODES)).all()


def test_what_shares_the_launch_of_the_last_one_is_cheaper():
    """Depth can change without a new launch, which costs 100 s."""
    names = [knob.name for knob in SPACE.knobs]
    launch = [i for i, name in enumerate(names) if name != "depth"]
    spending, rng, last, row = Spending(Encoding(SPACE.knobs, CODES), launch), np.random.default_rng(0), None, 0
    for step in range(40):
        same = np.arange(len(CODES)) if last is None else np.flatnonzero((CODES[:, launch] == last[launch]).all(axis=1))
        row = int(rng.choice(same if step % 2 else np.arange(len(CODES))))
        warm = last is not None and bool((CODES[row][launch] == last[launch]).all())
        last = CODES[row]
        spending.tell(last, (10 if warm else 110) * TIME[row] ** 0.1, float(np.log(TIME[row])))
    found = spending.prices(CODES)
    same = (CODES[:, launch] == CODES[row][launch]).all(axis=1)
    assert found[same].max() < 0.5 * found[~same].min()


def spent(seed: int, hyper: DefaultHyper) -> float:
    """Device-seconds until the best time was measured."""
    search, total, best = AutoScout(Search(space=SPACE, seed=seed, hyper=hyper)), 0.0, np.inf
    while best > TIME.min():
        (c,) = search.ask()
        row = SPACE.feasible.index(c)
        assert row is not None
        total, best = total + PAID[row], min(best, TIME[row])
        search.tell([measured(c, float(TIME[row]), float(PAID[row]))])
    return float(total)


def measured(c: Configuration, value: float, device_s: float) -> Measurement:
    return Measurement(configuration=c, name="", context="", status="ok", metrics={"time_s": value}, device_s=device_s)


def test_a_search_gains_more_for_its_device_seconds_where_they_differ():
    """How many devices it takes says nothing of the time: what is cheap tells as much."""
    paying = [spent(seed, DefaultHyper()) for seed in range(6)]
    blind = [spent(seed, DefaultHyper(spending=False)) for seed in range(6)]
    assert np.mean(paying) < 0.9 * np.mean(blind), (paying, blind)


def test_a_search_without_prices_decides_as_before():
    """Where all experiments cost the same, or nobody says what they cost."""
    asked = []
    for paid in (0.0, 30.0):
        search = AutoScout(Search(space=SPACE, seed=3))
        for _ in range(15):
            (c,) = search.ask()
            asked.append(c.id)
            search.tell([measured(c, float(TIME[SPACE.feasible.index(c) or 0]), paid)])
    assert asked[:15] == asked[15:]


def test_a_budget_of_device_time_ends_a_search(tmp_path):
    study = Study(SPACE, minimize="time_s", kb=tmp_path / "kb.db", profiles=50, device_time="5m")
    searched = 0
    while study.wants_more():
        for c in study.ask():
            searched += not study._engine.reason
            study.tell(c, {"time_s": float(TIME[SPACE.feasible.index(c) or 0])}, cost_s=70.0)
    assert study._engine.reason == "device_time"
    assert study._engine.device_s == pytest.approx(350.0)  # five of 70 s; the last one may go beyond
    assert searched == 5
