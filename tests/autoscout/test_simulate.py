"""The simulators of a job: the paper's four, their log-linear form, trees, residuals, and the memory estimate."""

import msgspec
import numpy as np
import pytest
from landscape import job_of, measured, space_of, step_time

from autoscout.simulate.encode import FittedColumns, of_configurations, of_job, take
from autoscout.simulate.ensemble import MIN_ROWS, Simulators, fit, medians
from autoscout.simulate.learned.linear import DEVICES, TABLE_2, LinearMember, kinds_of, table_2
from autoscout.simulate.learned.residual import Residual
from autoscout.simulate.learned.trees import Trees
from autoscout.simulate.member import Prediction
from autoscout.simulate.training.memory import Memory, estimate_gib
from autoscout.space.explain import completed

JOB = job_of("tiny-gpt-cpu")
SPACE = space_of("tiny-gpt-cpu")


class Biased:
    """An analytic member whose error is known: 1.5 times the truth, and a little more with every doubling of tp."""

    name = "biased"

    def applies(self, columns):
        return ""

    def fit(self, columns, values):
        pass

    def predict(self, columns):
        n = len(columns["tp"])
        knobs = [{k: columns[k][i] for k in ("tp", "pp", "cp", "dp", "mbs", "ar")} for i in range(n)]
        truth = np.array([base(k) for k in knobs])
        return Prediction(value=1.5 * truth * columns["tp"] ** 0.1, error=np.full(n, 0.5))


def base(knobs):
    micro_batches = 16 // (knobs["mbs"] * knobs["dp"])
    return 0.2 + 0.02 * micro_batches * (knobs["tp"] + knobs["cp"]) + 0.02 * knobs["pp"]


def configurations(n, seed=0):
    rng = np.random.default_rng(seed)
    return [SPACE.sample(rng) for _ in range(n)]


def history(n, seed=0, noise=0.0):
    return [measured(SPACE, c, noise, i) for i, c in enumerate(configurations(n, seed))]


def table(n, seed=0):
    """Columns of the job's configurations, and their step times."""
    found = configurations(n, seed)
    return {**of_job(JOB), **of_configurations(SPACE, found)}, np.array([step_time(c) for c in found])


def error(member, columns, values):
    return float(np.abs(member.predict(columns).value / values - 1).mean())


def test_the_members_are_those_of_table_2():
    assert [m.name for m in table_2()] == ["3D-Parallelism", "5D-Parallelism", "DDP-Aware", "Communication-Aware"]
    common = (DEVICES, "mbs", "tp", "pp", "dp")
    assert all(knobs[:5] == common for knobs in TABLE_2.values())
    assert [knobs[5:] for knobs in TABLE_2.values()] == [(), ("ep", "cp", "sp"), ("ddp_optim",), ("ar", "tp_comm")]


def test_regressors_of_active_and_inactive_knobs():
    space = space_of("llama-3.2-3b")
    configuration = completed(space, {"a100": 8, "a40": 0, "tp": 2, "ar": "full"}, space.reference)
    columns = of_configurations(space, [configuration])
    member = LinearMember("all", (DEVICES, "tp", "ep", "ar", "tp_comm", "ddp_optim"))
    member._kinds = kinds_of(columns)
    assert member._features(columns).tolist() == [[8, 0, 2, 1, 1, 0, 1]]


def test_a_cluster_of_one_kind_counts_its_devices():
    columns = {"gpu": np.array(["a100", "a100-40g", "a40", "a100"]), "gpus": 4}
    member = LinearMember("devices", (DEVICES,))
    member._kinds = kinds_of(columns)
    assert member._features(columns).tolist() == [[4, 0, 0], [0, 4, 0], [0, 0, 4], [4, 0, 0]]


def test_no_prediction_of_a_line_is_below_half_of_the_fastest_seen():
    columns, times = table(100)
    everywhere = {**of_job(JOB), **SPACE.feasible.columns()}
    for member in table_2():
        member.fit(columns, times)
        assert member.predict(everywhere).value.min() >= times.min() / 2


def test_trees_learn_what_lines_cannot():
    columns, times = table(400)
    held_out, truth = table(200, seed=1)
    found = {}
    for member in (*table_2(), *table_2(log=True), Trees()):
        member.fit(columns, times)
        found[member.name] = error(member, held_out, truth)
    assert found["trees"] < 0.5 * min(e for name, e in found.items() if name != "trees")
    assert found["log 5D-Parallelism"] < found["5D-Parallelism"]


def test_a_few_rows_correct_the_level_of_an_analytic_member():
    held_out, truth = table(200, seed=1)
    found = {}
    for rows in (1, 5, 50):
        member = Residual(Biased())
        member.fit(*table(rows))
        found[rows] = error(member, held_out, truth)
    assert error(Biased(), held_out, truth) > 0.3
    assert found[50] < found[5] < found[1] < error(Biased(), held_out, truth)
    assert found[5] < 0.7 * error(Biased(), held_out, truth)


def test_what_was_learned_on_top_fades_where_nothing_was_measured():
    """The trees' part at once, the level that a few rows tell much later; both say that they are less sure."""
    columns, times = table(200)
    few = np.arange(5)
    far = {**take(columns, few), "hidden": 128 * 2**10}  # the landscape itself knows no hidden size
    physics = Biased().predict(far).value
    for member, kept in ((Residual(Biased()), 0.6), (Trees(Biased()), 0.01)):
        member.fit(columns, times)
        near, away = member.predict(take(columns, few)), member.predict(far)
        learned = np.log(near.value / physics)
        assert np.abs(np.log(away.value / physics)).max() < kept * np.abs(learned).max()
        assert (away.error > 3 * near.error).all()
        assert "hidden 131072 (seen 128)" in member.why_outside(far)


def test_outside_counts_doublings_and_names_never_seen():
    seen = FittedColumns(
        {"tp": np.array([1, 2, 4]), "ar": np.array(["none", "full", "none"]), "sp": np.array([False, False, True])}
    )
    asked = {"tp": np.array([2, 8, 17]), "ar": np.array(["none", "none", "selective"]), "sp": False}
    assert seen.outside(asked) == pytest.approx([0, np.log2(9 / 5), np.log2(18 / 5) + 1])
    assert seen.why_outside(take(asked, np.array([2]))) == "tp 17 (seen 1 to 4), ar selective (seen full, none)"


def test_the_simulators_of_a_job_predict_configurations_and_whole_spaces_alike():
    rows = history(200)
    simulators = fit(JOB, SPACE, rows)
    assert simulators is not None
    value, members = simulators.predict(SPACE.feasible.configuration(7))
    assert set(members) <= set(simulators.weights)  # nothing lies outside of what they were fitted on
    everywhere = Simulators(JOB, SPACE, rows).predictors()["ensemble"](SPACE.feasible.codes)
    assert everywhere.shape == (len(SPACE.feasible),)
    assert everywhere[7] == pytest.approx(value, rel=1e-4)  # spaces in single precision
    truth = np.array([step_time(SPACE.feasible.configuration(i)) for i in range(0, len(SPACE.feasible), 50)])
    assert np.abs(everywhere[::50] / truth - 1).mean() < 0.1


def test_as_published_the_weights_are_equation_2_over_the_four_lines():
    simulators = Simulators(JOB, SPACE, history(200), published=True)
    ensemble = simulators.ensemble
    positive = {name: max(0.0, r) for name, r in ensemble.r2.items()}
    assert set(positive) == set(TABLE_2)
    assert ensemble.weights == pytest.approx({n: r / sum(positive.values()) for n, r in positive.items() if r > 0})
    value, members = simulators.predict(SPACE.reference)
    assert value == pytest.approx(sum(ensemble.weights[m] * members[m] for m in members))
    assert max(ensemble.weights, key=lambda name: ensemble.weights[name]) == "5D-Parallelism"  # cp costs here


def test_too_few_rows_and_failures_give_no_learned_simulators():
    assert fit(JOB, SPACE, history(MIN_ROWS - 1) * 3) is None
    assert medians(history(3) * 4, "step_time_s")[0] == [m.configuration for m in history(3)]


def test_the_memory_estimate_moves_as_memory_does():
    space = space_of("llama-3.1-nemotron-nano-8b", fix={"a40": 0})
    default = space.reference

    def gib(**knobs):
        return estimate_gib(space.attributes, completed(space, knobs, default))

    assert gib(tp=2) < gib(tp=1)
    assert gib(ar="full") < gib(ar="selective") < gib(ar="none")
    assert gib(mbs=1) < gib(mbs=4)
    assert gib(distopt=True) < gib(distopt=False)


@pytest.mark.parametrize("name", ["llama-3.2-3b", "llama-3.1-nemotron-nano-8b", "qwen3-30b-a3b"])
def test_the_expert_default_fits_every_device_that_it_uses(name):
    space = space_of(name)
    codes = np.array([space.codes_of(space.reference.knobs)])
    columns = {n: v for n, v in space.attributes.items() if n != "degrees"} | space.columns(codes)
    assert Memory().filled(columns)[0] <= 0.92  # of what the driver's own leaves; 0.88 of a device's whole memory


@pytest.mark.thorough
def test_what_other_jobs_measured_helps_a_job_that_has_no_rows():
    """Three sizes of a job whose times follow the landscape; a fourth is predicted without a row of it."""

    def sized(hidden):
        job = msgspec.structs.replace(JOB, model=msgspec.structs.replace(JOB.model, hidden=hidden))
        scale = (hidden / 128) ** 0.5
        rows = [
            msgspec.structs.replace(m, metrics={"step_time_s": scale * m.metrics["step_time_s"]})
            for m in history(120, seed=hidden)
        ]
        return job, rows

    job, truth = sized(192)
    past = [sized(hidden) for hidden in (128, 256, 384)]
    simulators = Simulators(job, SPACE, [], past=past)
    assert "past jobs" in simulators.weights
    columns = simulators.columns([m.configuration for m in truth])
    measured = np.array([m.metrics["step_time_s"] for m in truth])

    def off(found):
        return np.abs(found.ensemble.predict(columns).value / measured - 1).mean()

    assert off(simulators) < 0.5 * off(Simulators(job, SPACE, []))
    assert off(Simulators(job, SPACE, truth[:5], past=past)) < off(Simulators(job, SPACE, truth[:5]))
