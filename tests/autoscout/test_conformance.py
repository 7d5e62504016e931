"""What every strategy owes to whoever drives it, ours and rivals alike; after Optuna's suite for samplers."""

import inspect
import itertools
import re

import numpy as np
import pytest
from landscape import measured, space_of

from autoscout.search.earlier import Past
from autoscout.search.strategy import kind_of, names, strategy
from autoscout.space.graph import Space
from kb.journal import Decided
from kb.records import Configuration, Measurement, Objective, Value

FINITE = tuple(name for name in names() if kind_of(name).finite)
CERTAIN = ("grid", "expert", "metis")  # no chance in them
SLOW = ("optuna-gp",)  # libraries that think for long: fewer steps
ALIKE = ("bayes", "gp-ei")  # Gaussian processes, as is cherrypick
ASKS_KNOWN_CELLS = ("paper",)  # a 2×2 grid names its known cells too; they are answered from the record

every_strategy = pytest.mark.parametrize(
    "name",
    [
        pytest.param(
            name,
            marks=[
                pytest.mark.skipif(bool(kind_of(name).missing), reason=kind_of(name).missing),
                *([pytest.mark.thorough] if name in ALIKE else []),
            ],
        )
        for name in names()
    ],
)


def toy(objective: Objective | None = None) -> tuple[Space, np.ndarray]:
    """200 configurations: a switch that activates a size, a mode, a degree; smooth, with one interaction."""
    rows = []
    for mode, degree, size in itertools.product(
        ("ring", "tree", "mesh", "star"), (1, 2, 4, 8, 16), (None, *range(1, 10))
    ):
        row = {"mode": mode, "degree": degree, "on": size is not None}
        rows.append(row if size is None else {**row, "size": size})
    space = Space.from_table(rows, ["mode", "on"], ["degree", "size"], objective or Objective(minimize="step_time_s"))
    return space, np.array([_seconds(space.feasible.configuration(i)) for i in range(len(space.feasible))])


def _seconds(configuration: Configuration) -> float:
    k = configuration.knobs
    seconds = {"ring": 1.0, "tree": 0.9, "mesh": 1.2, "star": 1.4}[str(k["mode"])]
    seconds *= 1 + 0.1 * (np.log2(float(k["degree"])) - (2 if k["mode"] == "tree" else 3)) ** 2
    return float(seconds * (1.1 if not k["on"] else 0.95 + 0.01 * (float(k["size"]) - 6) ** 2))


def answer(space: Space, configuration: Configuration, value: float | None, status: str = "ok") -> Measurement:
    metrics = {} if value is None else {space.objective.metric: value}
    return Measurement(
        configuration=configuration,
        name=space.name(configuration),
        context="test",
        status=status,  # type: ignore[arg-type]
        metrics=metrics,
    )


def fine(space: Space, configuration: Configuration) -> Measurement:
    return answer(space, configuration, _seconds(configuration))


def drive(chosen, space, budget, respond=fine):
    """Asks and tells until `budget` distinct configurations were measured; all asked, in order."""
    asked: list[Configuration] = []
    known: dict[str, Measurement] = {}
    for _ in range(3 * budget):
        batch = chosen.ask()
        if not batch or len(known) >= budget:
            break
        asked += [c for c in batch if c.id not in known or name_of(chosen) not in ASKS_KNOWN_CELLS]
        for c in batch:
            known.setdefault(c.id, respond(space, c))
        chosen.tell([known[c.id] for c in batch])
        chosen.drain()
    return asked, known


def name_of(chosen) -> str:
    return "paper" if type(chosen).__name__ == "Paper" else ""


def budget_of(name: str, most: int) -> int:
    return min(most, 12) if name in SLOW else most


@every_strategy
@pytest.mark.parametrize("job", ["table", pytest.param("tiny-gpt-cpu", marks=pytest.mark.thorough)])
def test_proposes_valid_configurations_only_and_none_twice(name, job):
    space = toy()[0] if job == "table" else space_of(job)
    chosen = strategy(name, space, seed=3)
    asked, known = drive(chosen, space, budget_of(name, 60), fine if job == "table" else measured)
    assert all(space.feasible.index(c) is not None for c in asked)
    assert len(asked) <= len(known)
    if name not in FINITE:
        assert len(known) >= budget_of(name, 60)


@every_strategy
def test_decides_the_same_with_the_same_seed(name):
    space, _ = toy()
    budget = budget_of(name, 40)
    first, again, other = (drive(strategy(name, space, seed=s), space, budget)[0] for s in (1, 1, 2))
    assert first == again
    assert first != other or name in CERTAIN


@every_strategy
def test_phases_and_arms_are_those_that_the_journal_knows(name):
    """kb.journal.Decided lists them; a rival is its own only arm."""
    named = set(re.findall(r"^ {4}([\w-]+)", inspect.cleandoc(Decided.__doc__ or ""), re.MULTILINE))
    assert {"opening", "repeat", "MODEL"} <= named
    space, _ = toy()
    chosen = strategy(name, space, seed=0)
    decided: list[Decided] = []
    for _ in range(12):
        batch = chosen.ask()
        chosen.tell([fine(space, c) for c in batch])
        decided += [event for event in chosen.drain() if isinstance(event, Decided)]
    assert decided
    assert {d.phase for d in decided} <= named
    assert {d.arm for d in decided} <= (named if kind_of(name).hyper else {name.upper()})


@every_strategy
def test_survives_failures_of_every_kind(name):
    space, _ = toy()

    def half_fails(space: Space, configuration: Configuration) -> Measurement:
        odd = {"ring": None, "tree": float("nan"), "mesh": float("inf"), "star": -1.0}[str(configuration.knobs["mode"])]
        if int(configuration.knobs["degree"]) in (1, 4):
            return answer(space, configuration, None, "oom")
        if int(configuration.knobs["degree"]) == 2:
            return answer(space, configuration, odd)
        return fine(space, configuration)

    _, known = drive(strategy(name, space, seed=0), space, budget_of(name, 50), half_fails)
    assert len(known) >= budget_of(name, 50) or name in FINITE


@every_strategy
def test_goes_on_when_everything_fails(name):
    space, _ = toy()
    chosen = strategy(name, space, seed=0)
    _, known = drive(chosen, space, budget_of(name, 25), lambda space, c: answer(space, c, None, "error"))
    assert len(known) >= budget_of(name, 25) or name in FINITE
    assert chosen.recommend() is None


@every_strategy
def test_asked_again_before_it_is_told(name):
    space, _ = toy()
    chosen = strategy(name, space, seed=5)
    known: dict[str, Measurement] = {}
    for _ in range(8):
        pending = {c.id: c for _ in range(2) for c in chosen.ask()}
        assert all(space.feasible.index(c) is not None for c in pending.values())
        fresh = {key: fine(space, c) for key, c in pending.items() if key not in known}
        assert fresh or name in (*FINITE, *ASKS_KNOWN_CELLS)
        known |= fresh
        chosen.tell([known[key] for key in reversed(pending)])


@every_strategy
def test_restarts_from_what_was_told(name):
    """A session that was killed asks a new strategy of the same seed, and tells it what the journal holds."""
    space, _ = toy()
    first = strategy(name, space, seed=4)
    journal = []
    for _ in range(budget_of(name, 15)):
        batch = first.ask()
        journal.append([fine(space, c) for c in batch])
        first.tell(journal[-1])
    second = strategy(name, space, seed=4)
    for told in journal:
        assert [c.id for c in second.ask()] == [m.configuration.id for m in told]
        second.tell(told)
    assert second.ask() == first.ask()


@every_strategy
def test_a_space_of_one_point(name):
    space = Space.from_table([{"a": 1}], ["a"], [], Objective(minimize="step_time_s"))
    chosen = strategy(name, space, seed=0)
    _, known = drive(chosen, space, 10, lambda space, c: answer(space, c, 1.0))
    assert len(known) == 1
    assert chosen.ask() == []
    assert (best := chosen.recommend()) is not None
    assert best.knobs == {"a": 1}


@every_strategy
@pytest.mark.parametrize("kind", ["sparse", "dense"])
def test_knobs_of_one_kind_only_and_a_space_that_ends(name, kind):
    rows: list[dict[str, Value]] = [{"a": a, "b": b} for a in range(4) for b in range(3)]
    sparse, dense = (["a", "b"], []) if kind == "sparse" else ([], ["a", "b"])
    space = Space.from_table(rows, sparse, dense, Objective(maximize="tokens_per_s"))
    chosen = strategy(name, space, seed=0)
    _, known = drive(
        chosen, space, 1000, lambda space, c: answer(space, c, 1.0 + int(c.knobs["a"]) + int(c.knobs["b"]))
    )
    if name not in FINITE:
        assert len(known) == 12
        assert chosen.ask() == []
        assert (best := chosen.recommend()) is not None
        assert best.knobs == {"a": 3, "b": 2}


@every_strategy
def test_finds_the_optimum_of_a_small_table(name):
    """Those that learn in half of what it would take to try everything; the others when they have tried everything."""
    if name in (*FINITE, *SLOW):
        pytest.skip("has nothing to say after a few experiments" if name in FINITE else "takes seconds a step")
    space, seconds = toy()
    learns = name in ("autoscout", "gp-ei", "deepspeed", "cherrypick", "bayes", "genetic", "optuna-tpe")
    chosen = strategy(name, space, seed=1)
    drive(chosen, space, 100 if learns else 200)
    best = chosen.recommend()
    assert best is not None
    assert _seconds(best) == pytest.approx(seconds.min())


@every_strategy
def test_simulators_and_past_jobs_may_say_nothing_or_nonsense(name):
    space, _ = toy()

    def nonsense(codes: np.ndarray) -> np.ndarray:
        said = np.linspace(-1.0, 2.0, len(codes))
        said[::3], said[1::3] = np.nan, np.inf
        return said

    foreign = [(Configuration({"mode": "ring", "degree": 32, "on": True, "size": 6, "tp": 4}), 2.0)]
    failed = [(space.feasible.configuration(i), None) for i in range(5)]
    past = [Past(name="another", distance=1.0, rows=[*foreign, *failed]), Past(name="empty", distance=3.0, rows=[])]
    chosen = strategy(name, space, seed=0, simulators={"odd": nonsense}, past=past)
    asked, _ = drive(chosen, space, budget_of(name, 20))
    assert all(space.feasible.index(c) is not None for c in asked)
