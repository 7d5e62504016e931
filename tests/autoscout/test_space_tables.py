"""Tables of codes and the diagrams made of them, against what a list of rows says: counting, sampling, domains, the
nearest row, neighbours."""

import itertools

import numpy as np
import pytest

from autoscout.space.codes import INACTIVE, Coding, short_name
from autoscout.space.compiled import diagram as diagrams
from autoscout.space.compiled.diagram import FORBIDDEN, Diagram
from autoscout.space.compiled.feasible import Index, Lists
from autoscout.space.compiled.merge import from_rows
from autoscout.space.compiled.packing import distinct, packed
from autoscout.space.compiled.tilted import tilted, varied
from autoscout.space.graph import Space
from autoscout.space.knob import Knob
from autoscout.space.language.expression import Expression
from autoscout.space.moves import neighbours
from autoscout.space.nearness import Nearness, step
from autoscout.space.network import distance
from kb.records import AutoscoutError, Configuration


def knob(name: str, *values, kind: str = "sparse", **more) -> Knob:
    return Knob(name=name, kind=kind, layer="l", values=values, meaning="m", sets="s", **more)  # type: ignore[arg-type]


# Declared with a dense knob between sparse ones: the diagram assigns the sparse ones first.
KNOBS = [knob("a", 1, 2, 4), knob("d", 1, 2, 3, 4, kind="dense"), knob("b", "x", "y", off="x"), knob("c", False, True)]
ORDER = [0, 2, 3, 1]


def drawn(seed: int, n: int = 24) -> list[tuple[int, ...]]:
    rng = np.random.default_rng(seed)
    return sorted({tuple(int(rng.integers(-1, len(k.values))) for k in KNOBS) for _ in range(n)})


def made(rows: list[tuple[int, ...]]) -> Diagram:
    found = from_rows(np.array(rows, dtype=np.int16), KNOBS)
    assert found is not None
    return found


TABLES = [drawn(seed) for seed in range(6)] + [[(-1, 0, 0, 0)], [(0, 0, 0, 0), (2, 3, 1, 1)]]


@pytest.fixture(params=range(len(TABLES)))
def rows(request: pytest.FixtureRequest) -> list[tuple[int, ...]]:
    return TABLES[request.param]


def listed(rows: list[tuple[int, ...]]) -> list[tuple[int, ...]]:
    """In the order of the diagram's levels."""
    return sorted(rows, key=lambda row: [row[i] for i in ORDER])


def test_a_diagram_has_the_rows_of_its_table(rows: list[tuple[int, ...]]):
    found = made([*rows, rows[0]])
    assert found.order == ORDER
    assert found.count == len(rows)
    assert found.structures == len({(r[0], r[2], r[3]) for r in rows})
    assert [tuple(codes) for codes in found.every()] == listed(rows)
    grid = itertools.product(range(-1, 3), range(-1, 4), range(-1, 2), range(-1, 2))
    assert [codes for codes in grid if found.walk(codes) is not None] == sorted(rows)
    # Below every state of a level lies what its edges lead to.
    for i, level in enumerate(found.levels):
        assert found.states(i) == len(level.below) == len(level.first) - 1
        below = found.below(i + 1)
        assert [below[level.to[a:b]].sum() for a, b in itertools.pairwise(level.first)] == level.below.tolist()
        # On its ladder each state's edges end at state + their share.
        assert np.allclose(level.ladder(below)[level.first[1:] - 1], np.arange(len(level.below)) + 1)
    assert found.states(4) == 1
    assert found.below(4).tolist() == [1]


def test_where_there_is_nothing_there_is_no_diagram():
    assert from_rows(np.zeros((0, 4), dtype=np.int16), KNOBS) is None
    nothing = np.zeros(0, dtype=np.int64)
    assert diagrams.assembled([(0, 1, nothing, nothing, nothing)], 1, [3]) is None
    assert Diagram([], 0, []).count == 1
    # An edge into a state without any is a dead end, and goes.
    one, two = np.array([0, 0]), np.array([0])
    found = diagrams.assembled([(0, 1, one, np.array([0, 1]), np.array([0, 1])), (1, 2, two, two, two)], 2, [2, 1])
    assert found is not None
    assert [codes.copy() for codes in found.every()] == [[0, 0]]


@pytest.mark.parametrize("radix", [2**61 - 2, 2**61, 2**62])
def test_counts_beyond_64_bits_are_exact(radix: int):
    level = (0, 1, np.array([0, 0]), np.array([0, 1]), np.array([0, 0]))
    found = diagrams.assembled([level] * 3, 3, [radix, 0, 0])
    assert found is not None
    assert found.count == 8
    assert found.levels[0].below.dtype == (np.int64 if radix + 1 < 2**62 else object)


def test_partial_assignments(rows: list[tuple[int, ...]]):
    found = made(rows)
    for place, code in itertools.product(range(4), range(-1, 3)):
        allowed = np.zeros(len(KNOBS[place].values) + 1, dtype=bool)
        if code + 1 >= len(allowed):
            continue
        allowed[code + 1] = True
        agree = [row for row in rows if row[place] == code]
        domains = found.domains({place: allowed})
        if not agree:
            assert domains is None
        else:
            assert domains is not None
            assert [d.tolist() for d in domains] == [sorted({row[i] for row in agree}) for i in range(4)]


def test_the_nearest_row_and_ties(rows: list[tuple[int, ...]]):
    found = made(rows)
    rng = np.random.default_rng(7)
    for _ in range(20):
        cost = {i: rng.integers(0, 4, len(KNOBS[i].values) + 1) for i in (0, 1, 2)}
        best = min(listed(rows), key=lambda row: sum(int(c[row[i] + 1]) for i, c in cost.items()))
        assert found.nearest(cost) == list(best)
    assert found.nearest({i: np.full(9, FORBIDDEN) for i in range(2)}) is None
    assert found.nearest({}) == list(listed(rows)[0])


def test_samples_are_rows_as_often_as_they_should(rows: list[tuple[int, ...]]):
    found, n = made(rows), 4000

    def shares(codes: np.ndarray) -> dict[tuple[int, ...], float]:
        kinds, counts = np.unique(codes, axis=0, return_counts=True)
        return {tuple(k): c / n for k, c in zip(kinds.tolist(), counts.tolist(), strict=True)}

    def near(found: dict[tuple[int, ...], float], wanted: dict[tuple[int, ...], float]) -> None:
        assert found.keys() <= wanted.keys()
        for row, p in wanted.items():  # five standard deviations
            assert abs(found.get(row, 0.0) - p) <= 5 * np.sqrt(p * (1 - p) / n) + 1e-9

    rng = np.random.default_rng(0)
    uniform = {row: 1 / len(rows) for row in rows}
    near(shares(found.sample(n, rng)), uniform)
    near(shares(np.array([found.draw(rng) for _ in range(n)])), uniform)
    weight = {0: np.array([1.0, 2.0, 3.0, 4.0]), 1: np.array([5.0, 1.0, 1.0, 2.0, 1.0])}
    ways = {row: weight[0][row[0] + 1] * weight[1][row[1] + 1] for row in rows}
    near(shares(tilted(found, weight, n, rng)), {row: w / sum(ways.values()) for row, w in ways.items()})
    even = {}
    for row in rows:  # at each level as many choices as go on from there
        p = 1.0
        for depth in range(4):
            before = [r for r in rows if all(r[i] == row[i] for i in ORDER[:depth])]
            p /= len({r[ORDER[depth]] for r in before})
        even[row] = p
    near(shares(varied(found, n, rng)), even)


def test_paths_between_two_levels(rows: list[tuple[int, ...]]):
    found = made(rows)
    origin, codes, end = found.paths(0, 4, np.zeros(2, dtype=np.int64))
    assert origin.tolist() == [0] * len(rows) + [1] * len(rows)
    assert [tuple(c) for c in codes.tolist()] == [tuple(r[i] for i in ORDER) for r in listed(rows)] * 2
    assert set(end.tolist()) == {0}
    _, codes, end = found.paths(1, 2, np.arange(found.states(1)))
    assert codes.shape[1] == 1
    assert len(end) == len(found.levels[1].code)


def test_lists_of_structures_and_rows(rows: list[tuple[int, ...]]):
    coding = Coding(KNOBS)
    lists = Lists(made(rows), coding)
    structures = sorted({(r[0], r[2], r[3]) for r in rows})
    assert lists.structures.tolist() == [list(s) for s in structures]
    assert lists.feasible.codes.tolist() == [list(r) for r in listed(rows)]
    assert len(lists.feasible) == len(rows)
    for i in range(len(structures)):
        assert lists.row(lists.structure(i)) == i
    for i in range(len(rows)):
        assert lists.feasible.index(lists.feasible.configuration(i)) == i
    assert lists.row({"a": 3}) is None
    assert lists.feasible.index(Configuration({"nobody": 1})) is None
    assert [lists.holds(n) for n in (4_000_000, 4_000_001)] == [True, False]
    wide = Lists(made(rows), Coding([knob(f"k{i}", 1) for i in range(60)]))
    assert [wide.holds(n) for n in (2_000_000, 2_000_001)] == [True, False]
    assert lists.feasible.columns()["a"].tolist() == pytest.approx(
        [float("nan") if r[0] < 0 else (1, 2, 4)[r[0]] for r in listed(rows)], nan_ok=True
    )


def test_a_table_that_is_too_long_to_list():
    level = (0, 1, np.zeros(2000, dtype=np.int64), np.arange(2000), np.zeros(2000, dtype=np.int64))
    found = diagrams.assembled([level, (1, *level[1:])], 2, [2000, 2000])
    assert found is not None
    lists = Lists(found, Coding([knob("a", *range(2000)), knob("b", *range(2000))]))
    assert lists.holds(found.count)
    more = diagrams.assembled([level, (1, *level[1:]), (2, *level[1:])], 3, [2000] * 3)
    assert more is not None
    with pytest.raises(
        AutoscoutError, match="8,000,000,000 valid combinations of the sparse knobs' values are too many to list"
    ) as caught:
        _ = Lists(more, Coding([knob(n, *range(2000)) for n in "abc"])).structures
    assert caught.value.exit_code == 1


def test_neighbours_differ_in_one_knob_and_what_it_forces(rows: list[tuple[int, ...]]):
    found = made(rows)
    for row in rows:
        moves = [tuple(m) for m in neighbours(found, list(row))]
        assert len(set(moves)) == len(moves)
        assert set(moves) <= set(rows) - {row}
        # Of each knob each other value that the knobs before it allow, and then the nearest that goes on from there.
        wanted = set()
        for depth, i in enumerate(ORDER):
            before = [r for r in rows if all(r[j] == row[j] for j in ORDER[:depth])]
            for code in sorted({r[i] for r in before} - {row[i]}):
                left = [r for r in before if r[i] == code]
                for j in ORDER[depth + 1 :]:
                    choices = sorted({r[j] for r in left})
                    kept = row[j] if row[j] in choices else min(choices, key=lambda c, w=row[j]: abs(c - w))
                    left = [r for r in left if r[j] == kept]
                wanted.add(left[0])
        assert len(moves) == len(wanted)
        assert {sum(x != y for x, y in zip(m, row, strict=True)) >= 1 for m in moves} <= {True}


def test_rows_as_integers():
    codes = np.array([[-1, -1], [-1, 0], [0, -1], [1, 2], [0, -1]], dtype=np.int16)
    key, size = packed(codes, [3, 4])
    assert (key.tolist(), size) == ([0, 1, 4, 11, 4], 12)
    for most in (12, 10**9):
        which, place = distinct(key, most)
        assert which.tolist() == [0, 1, 2, 3, 2]
        assert key[place].tolist() == [0, 1, 4, 11]
    # Where 64 bits do not hold the product what was packed so far is numbered anew.
    key, size = packed(codes, [2**61, 2])
    assert (key.tolist(), size) == ([0, 1, 2, 7, 2], 10)
    assert packed(codes, [2**60, 2])[1] == 2**61
    assert packed(codes[:, :0], [])[1] == 1


@pytest.mark.parametrize("radices", [[4, 5, 3, 3], [2**30, 2**29, 2**31, 5], [2**30, 3 + 2**30, 9, 2**30]])
def test_a_row_is_found_by_binary_search(radices: list[int], rows: list[tuple[int, ...]]):
    ordered = sorted(rows)
    index = Index(np.array(ordered, dtype=np.int16), radices)
    assert [index.find(row) for row in ordered] == list(range(len(ordered)))
    for row in itertools.product(range(-1, 3), range(-1, 4), range(-1, 2), range(-1, 2)):
        assert (index.find(row) is None) == (row not in set(rows))


def test_codes_and_values():
    coding = Coding(KNOBS)
    assert coding.row({"a": 4, "c": False, "b": "y"}) == [2, INACTIVE, 1, 0]
    assert coding.row({"a": 3}) is coding.row({"z": 1}) is coding.row({"c": 0}) is None
    assert coding.configuration([2, -1, 0, 1]).knobs == {"a": 4, "b": "x", "c": True}
    assert coding.point([2, 3, 0, 1]) == {"d": 4}
    assert coding.point([2, -1, 0, 1]) == {}
    columns = coding.columns(np.array([[0, 0, 1, 1], [-1, -1, -1, -1]]))
    assert columns["a"][0] == 1
    assert np.isnan(columns["a"][1])
    assert columns["b"].tolist() == ["y", "x"]
    assert Coding([knob("t", "p", "q")]).columns(np.array([[0], [-1]]))["t"].tolist() == ["p", ""]
    named = Configuration({"tp": 2, "sp": True, "x": False, "ar": "full", "off": 1, "k1": 3})
    assert short_name(named, {"off": 1, "x": True}) == "tp2_sp_no-x_ar-full_k1x3"


def test_how_far_values_are():
    assert [distance(*pair) for pair in ((2, 8), (8, 2), (3, 3), (1, 0), (0, 1), (-1, 2), (True, 1), ("a", "b"))] == [
        2.0, 2.0, 0.0, 1.0, 1.0, 1.0, 1.0, 1.0,
    ]  # fmt: skip
    near = Nearness()
    a, dense = knob("a", 1, 2, 8, off=1), knob("d", 1, 2, 4, kind="dense")
    # In 64ths of a doubling, lifted by 20 or 36 bits; inactive it is as far as another choice, unless `off` is wanted.
    assert (near.cost(a, 2) >> 20).tolist() == [64, 64, 0, 128]
    assert (near.cost(a, 1) >> 20).tolist() == [0, 0, 64, 192]
    assert (near.cost(a, 2, given=True) >> 36).tolist() == [64, 64, 0, 128]
    assert near.cost(dense, 4).tolist() == [1, 2, 1, 0]
    assert (near.cost(dense, 3, given=True) >> 36).tolist() == [1, 2, 1, 0]  # 3 is nearer to 4, by ratio
    assert near.only(a, 1).tolist() == [0, 0, FORBIDDEN, FORBIDDEN]
    assert near.only(a, 8).tolist() == [FORBIDDEN, FORBIDDEN, FORBIDDEN, 0]
    costs = near.costs([a, dense, knob("e", 1)], {"a": 2, "d": 4}, {"d": 2}, {"a"})
    assert costs.keys() == {0, 1}
    assert (costs[0] >> 36).tolist() == [64, 64, 0, 128]
    assert costs[1].tolist() == [FORBIDDEN, FORBIDDEN, 1, FORBIDDEN]
    assert [step(dense, v) for v in (1, 2, 4, 3, 100, 0)] == [0, 1, 2, 2, 2, 0]
    assert step(knob("s", 1, True, kind="dense"), True) == 1


def test_a_structure_leaves_points():
    """The dense knob d ≤ a acts where c holds."""
    d = knob("d", 1, 2, 3, 4, kind="dense", when=Expression("c"))
    from autoscout.space.knob import Rule

    rule = Rule(id="r", holds=Expression("not c or d <= a"), reason="", source="", checked="ours")
    space = Space([KNOBS[0], KNOBS[3], d], [rule], {})
    assert space.count == 3 + 1 + 2 + 4
    assert space.mask({"a": 2, "c": True}) == {"d": (1, 2)}
    assert space.mask({"a": 2, "c": False}) == space.mask({"a": 9, "c": True}) == {}
    assert space.project({"a": 2, "c": True}, {"d": 4}) == {"d": 2}
    assert space.project({"a": 4, "c": True}, {}) == {"d": 1}
    assert space.domain("d", {"a": 2}) == (1, 2)
    assert space.domain("d", {"c": False}) == space.domain("a", {"a": 7}) == ()
    assert space.active() == {"a": True, "c": True, "d": None}
    assert space.active({"d": None}) == {"a": True, "c": True, "d": False}
    assert space.active({"a": 7}) == {"a": False, "c": False, "d": False}
    with pytest.raises(AutoscoutError, match="'e'") as caught:
        space.domain("e")
    assert caught.value.exit_code == 2
