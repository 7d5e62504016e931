"""What is learned from measured rows, on seeded rows: weights of members, their spread, the table's regressions, the
residual on top of a member, the ensemble, encodings of columns. By hand where that is short. `UPDATE_FROZEN=1` writes
the stored values anew."""

from typing import Any

import numpy as np
import pytest
from frozen_values import Values, drawn, hold, kept

from autoscout.simulate.encode import FittedColumns, job_of, length, software_of, take
from autoscout.simulate.learned import weighing
from autoscout.simulate.learned.linear import DEVICES, LinearMember, kinds_of, table_2
from autoscout.simulate.learned.other_jobs import stacked
from autoscout.simulate.learned.residual import Residual
from autoscout.simulate.learned.stack import Ensemble
from autoscout.simulate.learned.trees import Trees
from autoscout.simulate.member import Columns, Prediction
from autoscout.simulate.members import AsItIs, PerSecond, Shared, _tokens, analytic, members_of, with_learned

NAN = float("nan")
ROWS: dict[str, list[Any]] = {
    "tp": [1, 2, 4, 8], "pp": [1, 2, 4], "dp": [1, 2, 8], "mbs": [1, 2, 4], "ep": [1, 2], "cp": [1, 2],
    "sp": [False, True], "gpu": ["a100", "a40"], "gpus": [8, 16], "ar": ["none", "full", ""], "tp_comm": [0, 16],
    "distopt": [False, True], "framework": ["one", "two"], "layers": [12, 24], "zone": ["x", "y", "z"],
}  # fmt: skip


class Rough:
    """As wrong as it is told; its own function of the rows."""

    def __init__(self, name: str, level: float, wave: float, error: float, silent: int = 99) -> None:
        self.name, self.level, self.wave, self.error, self.silent, self.fits = name, level, wave, error, silent, 0

    def applies(self, columns: Columns) -> str:
        return ""

    def fit(self, columns: Columns, values: np.ndarray) -> None:
        self.fits += 1

    def predict(self, columns: Columns) -> Prediction:
        tp, pp = (np.asarray(columns[name], dtype=float) for name in ("tp", "pp"))
        value = np.exp(self.level + self.wave * np.sin(7.0 * tp + 3.0 * pp)) * (3 + pp) / np.sqrt(tp)
        return Prediction(value=np.where(tp >= self.silent, NAN, value), error=self.error * (1 + tp / 8))


def truth(columns: Columns) -> np.ndarray:
    tp, pp, mbs = (np.asarray(columns[name], dtype=float) for name in ("tp", "pp", "mbs"))
    return (3 + pp) / np.sqrt(tp) * (1 + 0.1 * mbs) * np.where(columns["framework"] == "one", 1.0, 1.3)


def claims(n: int = 14, m: int = 4) -> tuple[np.ndarray, ...]:
    rng = np.random.default_rng(1)
    y = rng.normal(0, 1, n)
    L = y[:, None] + rng.normal(0, 1, (n, m)) * np.array([0.05, 0.2, 0.5, 1.5])
    E = np.abs(rng.normal(0.3, 0.3, (n, m)))
    L[3, 0] = L[5, 1] = NAN
    L[7] = NAN
    E[6, 2], E[9] = NAN, 5.0
    L[11, 3], L[2, 1] = 40.0, np.inf
    return y, L, E, np.array([0.1, 0.3, 0.55, 0.9])


def test_weights_of_members():
    y, L, E, s = claims()
    known = np.where(np.isfinite(L), L, 0.0)
    found: Values = {
        "r2": kept(weighing.r_squared(y, L)),
        "published": kept(weighing.published(y, known[:, :3])),
        "usual": kept(weighing.usual_errors(y, L, s)),
        "precision": kept(weighing.by_precision(s)),
        "doubt": kept(weighing.doubt(s, L, E)),
        "on rows": kept(weighing.on_rows(np.array([0.5, 0.3, 0.2, 0.0]), s, L, E)),
        "guesses": kept(weighing.on_rows(np.array([0.0, 0.0, 0.0, 1.0]), s, L, E)),
        "without small": kept(weighing.without_small(np.array([0.5, 0.025, 0.0249, 0.3]))),
        "stacked": kept(weighing.stacked(y, L, s)),
        "pulled": kept(weighing.stacked(y, L, s, start=np.array([0.1, 0.2, 0.3, 0.4]), worth=30.0)),
        "jobs": kept(weighing.stacked(y, L, s, np.arange(14) // 3)),
        "one job each": kept(weighing.stacked(y, L, s, np.arange(14))),
        "two jobs": kept(weighing.stacked(y, L + (np.arange(14) // 7)[:, None], s, np.arange(14) // 7)),
    }
    rows = weighing.on_rows(np.array([0.5, 0.3, 0.2, 0.0]), s, L, E)
    for log in (True, False):
        mean, spread = weighing.combine(rows, s, np.where(np.isinf(L), NAN, L), E, log)
        found |= {f"mean {log}": kept(mean), f"spread {log}": kept(spread)}
    mean, spread = y + np.linspace(-2, 2, 14), np.linspace(0.2, 1, 14)
    found["stretch"] = kept([weighing.stretch(y, mean, spread, jobs) for jobs in (0, 3)])
    many = np.linspace(-2, 3, 60)
    found["conformal"] = kept([weighing.stretch(many, many * 1.3, np.ones(60), jobs) for jobs in (0, 5)])
    edge = [weighing.stretch(many[:n], many[:n] * 1.3, np.ones(n)) for n in (29, 30, 31)]
    found["nothing"] = kept([weighing.stretch(y[:0], y[:0], y[:0]), *edge])
    hold("learned/weights", found, rel=1e-5)
    assert weighing.r_squared(np.zeros(3), np.zeros((3, 2))).tolist() == [-np.inf, -np.inf]
    assert weighing.published(np.array([0.0, 1.0]), np.array([[1.0], [0.0]])).tolist() == [0.0]
    assert (weighing.stacked(y[:0], L[:0], s) == weighing.by_precision(s)).all()


def test_the_tables_regressions():
    columns = drawn(ROWS, 30, 2)
    values = truth(columns)
    asked = {
        **drawn(ROWS, 10, 3),
        "tp": np.array([1, 2, 16, 8, 4, 1, 2, 4, 8, 32]),
        "gpu": np.array(["a100", "h100"] * 5),
    }
    found: Values = {}
    for member in (*table_2(), *table_2(log=True)):
        assert member.applies(columns) == f"not fitted: this model needs at least {member.min_rows} measured rows"
        assert np.isnan(member.predict(asked).value).all()
        member.fit({k: v[: member.min_rows - 1] for k, v in columns.items()}, values[: member.min_rows - 1])
        assert member.applies(columns)
        member.fit({k: v[: member.min_rows] for k, v in columns.items()}, values[: member.min_rows])
        assert member.applies(columns) == ""
        member.fit(columns, values)
        said = member.predict(asked)
        found |= {f"{member.name}": kept(said.value), f"{member.name} error": kept(said.error)}
    hold("learned/linear", found, rel=1e-4)
    counted = LinearMember("two kinds", (DEVICES, "tp", "pp"))
    assert counted.min_rows == 4
    columns = {"a100": np.array([4, NAN]), "a40": np.array([-1, 8]), "tp": np.array([2, NAN])}
    counted._kinds = kinds_of(columns)
    x = counted._features(columns)
    assert x.tolist() == [[4, 0, 2, 1], [0, 8, 1, 1]]
    more = LinearMember("more", ("ar", "ddp_optim", "tp_comm"))._features(
        {"ar": np.array(["none", "", "full"]), "tp_comm": -3.0}
    )
    assert more.tolist() == [[0, 0, 0], [0, 0, 0], [1, 0, 0]]


def test_residual():
    columns = drawn(ROWS, 30, 4)
    values = truth(columns)
    values[3] *= 20
    member = Residual(Rough("rough", 0.4, 0.05, 0.2))
    assert member.applies(columns) == "not fitted: this model needs at least one measured row"
    assert np.isnan(member.predict(columns).error).all()
    asked = {**drawn(ROWS, 12, 5), "tp": np.array([1, 2, 4, 8, 16, 64] * 2)}
    found: Values = {}
    for n in (1, 2, 8, 30):
        member.fit({k: v[:n] for k, v in columns.items()}, values[:n])
        said = member.predict(asked)
        found |= {f"{n} value": kept(said.value), f"{n} error": kept(said.error)}
    hold("learned/residual", found, rel=1e-4)
    assert member.why_outside({"tp": 16, "zone": "w", "sp": True}) == "tp 16 (seen 1 to 8), zone w (seen x, y, z)"


def test_ensembles():
    found: Values = {}
    for rule in ("best", "published", "stacked"):
        for n, groups in ((1, None), (2, None), (11, None), (12, None), (30, None), (30, 2), (30, 3), (30, 7)):
            columns = drawn(ROWS, n, 6)
            members = [Rough("good", 0.1, 0.02, 0.1), Rough("bad", -0.5, 0.4, 0.2), Rough("silent", 0.0, 0.1, 0.1, 4)]
            ensemble = Ensemble([*members, LinearMember("line", (DEVICES, "tp", "pp"), log=True)], rule)
            jobs = None if groups is None else np.arange(n) % groups
            ensemble.fit(columns, truth(columns), jobs)
            said = ensemble.predict({**drawn(ROWS, 6, 7), "tp": np.array([1, 2, 4, 8, 16, 64])})
            name = f"{rule} {n} {groups}"
            found[name] = [*kept(said.value), *kept(said.error), *kept(ensemble._w), *kept(ensemble.expected_error)]
            found[name] += [*kept(list(ensemble.mape.values())), ensemble.rule]
    hold("learned/ensembles", found, rel=1e-4)


def test_what_an_ensemble_says_of_its_members():
    columns = drawn(ROWS, 20, 6)
    members = [Rough("good", 0.0, 0.02, 0.1), Rough("bad", -0.9, 0.7, 0.2), Rough("silent", 0.0, 0.1, 0.1, 0)]
    ensemble = Ensemble([*members, LinearMember("line", (DEVICES, "tp", "pp"), log=True)])
    assert ensemble.weights == {}
    assert ensemble.expected_error == np.inf
    ensemble.begin(columns)
    # By 1 / error², at the median tp; the regression needs rows.
    errors = [0.1 * (1 + np.median(columns["tp"]) / 8), 0.2 * (1 + np.median(columns["tp"]) / 8)]
    assert ensemble._s[:2] == pytest.approx(errors)
    assert ensemble.weights["good"] > ensemble.weights["bad"] > 0
    assert "log line" not in ensemble.weights
    ensemble.fit(columns, truth(columns))
    said, each = ensemble.explain({**columns, "tp": np.array([8.0] * 20)})
    assert [one.member for one in each] == ["good", "bad", "silent", "log line"]
    whole = ensemble.predict({k: v[:1] for k, v in columns.items()} | {"tp": np.array([8.0])})
    assert said.value[0] == pytest.approx(whole.value[0])
    assert each[2].value is None
    assert sum(one.weight for one in each) == pytest.approx(1.0)
    assert set(ensemble.by_member(columns)) == {"good", "bad", "silent", "log line"}
    usual = ensemble._s[0]
    assert (ensemble.by_member(columns)["good"].error >= usual - 1e-12).all()


def test_trees_need_forty_rows_and_fade_outside():
    columns = drawn(ROWS, 60, 8)
    trees, on_top = Trees(), Trees(Rough("rough", 0.0, 0.0, 0.1))
    for member in (trees, on_top):
        assert member.applies(columns) == "not fitted: this model needs at least 40 measured rows"
        member.fit({k: v[:39] for k, v in columns.items()}, truth(columns)[:39])
        assert np.isnan(member.predict(columns).value).all()
        member.fit({k: v[:40] for k, v in columns.items()}, truth(columns)[:40])
        assert member.applies(columns) == ""
    assert on_top.name == "rough + trees"
    inside = on_top.predict(columns)
    far = {k: v[:3] for k, v in columns.items()} | {"layers": np.array([24, 49, 99])}  # 0, 1 and 2 doublings of 1 + x
    assert trees._seen is not None
    away = trees._seen.outside(far)
    assert away == pytest.approx([0, 1, 2])
    assert trees.predict(far).error == pytest.approx(np.sqrt(trees._spread**2 + (0.35 * away) ** 2))
    base = on_top.base
    assert base is not None
    claimed = base.predict(far).error
    assert on_top.predict(far).error == pytest.approx(np.sqrt(on_top._spread**2 + (1 - 2.0**-away) * claimed**2))
    learned = np.log(on_top.predict(far).value / base.predict(far).value)
    assert learned[1:] == pytest.approx(
        (np.log(on_top.predict({**far, "layers": np.array([24] * 3)}).value / base.predict(far).value) * 2.0**-away)[1:]
    )
    assert len(inside.value) == 60
    trees.fit({"tp": np.ones(50)}, np.ones(50))
    assert trees.applies(columns)


def test_columns_as_numbers():
    few = {"tp": np.array([1, 4, 4]), "on": np.array([False] * 3), "kind": np.array(["a", "b", "b"])}
    seen = FittedColumns({**few, "less": np.array([-2.0, 0.0, 1.0]), "none": np.array([NAN] * 3), "one": 3})
    assert seen.varying == ["tp", "kind", "less"]
    assert seen.outside({"tp": np.array([1, 4, 9, 0])}).tolist() == [0, 0, 1, 1]  # 1 + 9 is twice 1 + 4
    assert seen.outside({"less": np.array([-2, 1, 1.5, -9])}).tolist() == [0, 0, 1, 1]
    assert seen.outside({"on": np.array([True, False]), "kind": np.array(["c", "a"]), "none": 9.0}).tolist() == [2, 0]
    table = seen.matrix({"tp": np.array([1, 2]), "kind": np.array(["b", "q"])}, ["tp", "kind", "less"])
    assert table[:, 0].tolist() == [1, 2]
    assert table[0, 1] == 1
    assert np.isnan(table[1, 1])
    assert np.isnan(table[:, 2]).all()
    assert seen.why_outside({"one": 4, "tp": 4, "on": True}) == "on True (seen 0), one 4 (seen 3)"
    assert length({"a": 1, "b": [1, 2], "c": "word"}) == 2
    assert length({"a": 1}) == 1
    assert take({"a": [1, 2, 3], "b": 7}, np.array([2, 0]))["a"].tolist() == [3, 1]
    rows = {
        "framework": np.array(["x", "x", "y"]),
        "gpu": "a100",
        "layers": np.array([1, 2, NAN]),
        "tp": np.array([1, 2, 3]),
    }
    software = software_of(rows)
    assert software[0] == software[1] != software[2]
    assert len(set(job_of(rows).tolist())) == 3
    assert job_of({"layers": np.array([3.0]), "hidden": 4.0}) == pytest.approx([3 * np.sqrt(2) + 4 * np.sqrt(3)])


def test_rows_of_several_jobs_below_each_other():
    found = stacked([{"tp": np.array([1, 2]), "gpu": "a"}, {"mbs": 4, "gpu": "b", "odd": object()}])
    assert found["tp"][:2].tolist() == [1, 2]
    assert np.isnan(found["tp"][2])
    assert found["gpu"].tolist() == ["a", "a", "b"]
    assert "odd" not in found


def test_who_is_asked_and_how_often():
    rough = Rough("rough", 0.0, 0.0, 0.1)
    once = Shared(rough)
    columns = {"tp": np.array([1.0, 2.0]), "pp": np.array([1.0, 1.0]), "seq_len": 10.0, "global_batch": 4.0}
    once.fit(columns, np.ones(2))
    once.fit(columns, np.ones(2))
    assert rough.fits == 1
    once.fit(dict(columns), np.ones(2))
    once.fit(columns, np.ones(1))
    assert rough.fits == 3
    assert once.predict(columns) is once.predict(columns)
    rate = PerSecond(rough, _tokens)
    assert rate.predict(columns).value == pytest.approx(40 / rough.predict(columns).value)
    assert rate.predict(columns | {"length_mean": 5.0}).value == pytest.approx(20 / rough.predict(columns).value)
    as_it_is = AsItIs(rough)
    assert as_it_is.applies(columns).startswith("without measured rows")
    as_it_is.fit(columns, np.ones(2))
    assert as_it_is.applies(columns) == ""
    assert as_it_is.name == "rough, as it is"
    metrics = ("step_time_s", "step_time_min_s", "tokens_per_s", "joules_per_token", "peak_memory_gib")
    assert [[m.name for m in analytic(metric)] for metric in metrics] == [
        ["analytic"], ["analytic"], ["analytic"], ["analytic-energy"], ["memory"]
    ]  # fmt: skip
    assert analytic("anything") == []
    assert [m.name for m in analytic("anything", "serve")] == ["analytic-serving"]
    names = [m.name for m in with_learned([rough])]
    assert names[:3] == ["rough", "rough + residual", "rough + trees"]
    assert names[3:] == [*(m.name for m in table_2()), *(f"log {m.name}" for m in table_2()), "trees"]
    assert [m.name for m in members_of("x", bases=lambda: [rough])] == [*names, "rough, as it is"]
