"""What a session sees of an experiment: metrics, adoption of finished results, and death with its owner."""

import json
import math
import signal
import subprocess
import sys
import time
from pathlib import Path

import msgspec
import psutil
import pytest
from profile_bench import Bench, configuration, tiny_job

from autoscout.running import early, equivalence
from autoscout.running.interpreter import context_of
from autoscout.running.worker import ending
from autoscout.targets.megatron.measurement import measurement
from autoscout.targets.megatron.profiler import bar_in_seconds
from kb.records import Measurement, Objective

pytestmark = pytest.mark.engine

TINY = tiny_job()
OWNER = """
import sys
from pathlib import Path
import msgspec
from autoscout.targets.jobs import profiler_of
from kb.records import Configuration, Job
job = msgspec.json.decode(sys.argv[1], type=Job)
profiler_of(job).run(Configuration({"mbs": 2, "tp": 2}), "tiny", Path(sys.argv[2]))
"""


def test_an_experiment_measures(bench: Bench) -> None:
    folder = bench.folder()
    measured = bench.profiler(TINY).run(configuration(tp=2), "tiny", folder)
    assert measured.status == "ok"
    assert len(measured.iterations_s) == TINY.launch.iterations
    assert measured.metrics["step_time_min_s"] <= measured.metrics["step_time_s"]
    assert measured.metrics["tokens_per_s"] == pytest.approx(8 * 64 / measured.metrics["step_time_s"])
    assert measured.metrics["cpu_s"] > 0
    assert measured.metrics["peak_memory_gib"] == max(measured.rank_memory_gib)
    assert len(measured.rank_memory_gib) == 2
    assert measured.device_s == pytest.approx(2 * measured.cost_s)
    assert measured.environment["megatron-core"]
    assert measured.environment["launcher"] == "warm"
    parts = {name: value for name, value in measured.metrics.items() if name.startswith("start_")}
    assert parts.keys() == {f"start_{of}_s" for of in ("import", "groups", "config", "build", "first_step")}
    assert 0 < sum(parts.values()) < measured.cost_s
    # Only groups in use: gloo keeps three threads for each, and with all that Megatron makes they were 61.
    assert json.loads((folder / "rank-0.json").read_text())["threads"] < 20


@pytest.mark.parametrize(("best_s", "fidelity"), [(1e-4, "short"), (1e3, "measured")])
def test_all_ranks_give_up_together_what_cannot_win(bench: Bench, best_s: float, fidelity: str) -> None:
    job = tiny_job(iterations=11, measure_s=1000.0)  # so many that it ends by nothing else
    profiler = bench.profiler(job)
    assert isinstance(profiler, early.Aimed)
    profiler.aim(early.Bar(best_s))
    measured = profiler.run(configuration(tp=2), "tiny", bench.folder())
    assert (measured.status, measured.fidelity) == ("ok", fidelity)
    assert (len(measured.iterations_s) == 3) is (fidelity == "short")
    assert ("behind the best after 3 iterations" in measured.evidence) is (fidelity == "short")
    assert measured.conditions["width"] > 0


@pytest.mark.parametrize(("best_s", "few"), [(1e3, 2), (math.inf, 4)])
def test_a_run_of_the_search_ends_with_the_first_iterations_that_agree(bench: Bench, best_s: float, few: int) -> None:
    """One of the final rounds needs four at least. The losses that are compared are told by both."""
    profiler = bench.profiler(tiny_job(iterations=5, measure_s=1000.0))
    assert isinstance(profiler, early.Aimed)
    profiler.aim(early.Bar(best_s, spread=1.0))
    measured = profiler.run(configuration(tp=2), "tiny", bench.folder())
    assert (measured.status, measured.fidelity) == ("ok", "measured")
    took = measured.iterations_s
    assert len(took) == next(n for n in range(few, 6) if n == 5 or ending.settled(took[:n], 1.0))
    assert len(measured.losses) == 3


@pytest.mark.parametrize(("objective", "seconds"), [("step_time_s", 0.5), ("tokens_per_s", 0.5), ("cpu_s", None)])
def test_the_bar_is_told_in_seconds_of_a_step(objective: str, seconds: float | None) -> None:
    goal = Objective(maximize=objective) if objective == "tokens_per_s" else Objective(minimize=objective)
    job = msgspec.structs.replace(TINY, objective=goal)
    cost = 0.5 / (8 * 64) if objective == "tokens_per_s" else 0.5
    told = bar_in_seconds(job, early.Bar(cost))
    assert told.get("best_s") == (seconds and pytest.approx(seconds))
    in_a_round = bar_in_seconds(job, early.Bar(math.inf))
    assert in_a_round.keys() == told.keys() - {"best_s"}
    short = msgspec.structs.replace(job.traffic, lengths=[8, 24])  # whose padding is no token
    of_samples = bar_in_seconds(msgspec.structs.replace(job, traffic=short), early.Bar(cost))
    assert of_samples.get("best_s") == (seconds and pytest.approx(seconds / (4 if objective == "tokens_per_s" else 1)))


def test_slow_configurations_measure_fewer_iterations(bench: Bench) -> None:
    assert len(bench.run(tiny_job(iterations=50, measure_s=0.0)).iterations_s) == 2


@pytest.mark.thorough
def test_a_slow_warm_up_does_not_cost_iterations(bench: Bench, tmp_path: Path) -> None:
    """As compilation and the start of communication would make it."""
    slow = """
        import sys, time
        plain, calls = time.perf_counter, 0
        def perf_counter():
            global calls
            if sys._getframe(1).f_code.co_name != "_iteration":
                return plain()
            calls += 1  # two calls an iteration
            return plain() + (1000 if calls > 1 else 0)
        time.perf_counter = perf_counter
    """
    (tmp_path / "sitecustomize.py").write_text("\n".join(line[8:] for line in slow.splitlines()))
    prefix = ["env", f"PYTHONPATH={tmp_path}"]
    measured = bench.run(tiny_job(command_prefix=prefix, iterations=5, measure_s=100.0), tp=2)
    assert measured.status == "ok", measured.evidence
    assert len(measured.iterations_s) == 5


def test_more_memory_shows(bench: Bench) -> None:
    small, large = bench.run(TINY), bench.run(tiny_job(vocab=2**15, hidden=256))
    assert large.metrics["peak_memory_gib"] > small.metrics["peak_memory_gib"] + 0.1


def test_torchrun_computes_the_same_as_the_warm_process(bench: Bench) -> None:
    warm, fresh = bench.run(TINY, tp=2), bench.run(tiny_job(launcher="torchrun"), tp=2)
    assert fresh.status == "ok", fresh.evidence
    assert equivalence.Losses("fp32").compare(warm, fresh) == ""
    assert fresh.environment["launcher"] == "torchrun"
    assert fresh.context == warm.context


def test_contexts_separate_what_cannot_be_compared() -> None:
    environment = {"torch": "2.13.0", "device": "cpu", "launcher": "warm"}
    assert context_of(TINY, environment) == context_of(TINY, environment | {"launcher": "torchrun"})
    assert context_of(TINY, environment) != context_of(TINY, environment | {"torch": "2.12.0"})
    assert context_of(TINY, environment) != context_of(tiny_job(hidden=128), environment)
    assert context_of(TINY, environment) != context_of(tiny_job(transformer_engine=True), environment)
    assert context_of(TINY, environment) != context_of(tiny_job(command_prefix=["taskset", "1"]), environment)
    same = tiny_job(timeout_s=1.0, launcher="torchrun", python="/opt/python")
    assert context_of(TINY, environment) == context_of(same, environment)


def test_a_finished_result_can_be_adopted_from_its_folder(bench: Bench) -> None:
    folder = bench.folder()
    measured = bench.profiler(TINY).run(configuration(dp=2), "dp2", folder)
    adopted = measurement(folder)
    assert adopted is not None
    changed = {"cost_s": 0.0, "device_s": 0.0, "at": 0.0}
    assert msgspec.structs.replace(adopted, **changed) == msgspec.structs.replace(measured, **changed)
    assert 0 < adopted.cost_s <= measured.cost_s

    (folder / "rank-1.json").unlink()
    assert measurement(folder) is None
    assert measurement(folder / "nowhere") is None


def test_an_earlier_attempt_in_the_folder_does_not_count(bench: Bench) -> None:
    folder = bench.folder()
    assert bench.profiler(TINY).run(configuration(), "mbs2", folder).status == "ok"
    assert bench.profiler(TINY).run(configuration(tp=3), "tp3", folder).status == "invalid"
    assert measurement(folder) is None


def test_losses_that_are_no_numbers_are_wrong(bench: Bench) -> None:
    folder = bench.folder()
    bench.profiler(TINY).run(configuration(), "mbs2", folder)
    result = json.loads((folder / "rank-0.json").read_text())
    result["losses"][1] = math.nan
    (folder / "rank-0.json").write_text(json.dumps(result))
    collected = measurement(folder)
    assert collected is not None
    assert collected.status == "wrong"
    assert "nan" in collected.evidence
    assert msgspec.json.decode(msgspec.json.encode(collected), type=Measurement) == collected


@pytest.mark.parametrize("launcher", ["warm", "torchrun"])
@pytest.mark.parametrize("moment", ["starting", "training"])
def test_nothing_survives_its_owner(tmp_path: Path, launcher: str, moment: str) -> None:
    job = tiny_job(launcher=launcher, iterations=10**6, measure_s=1e6)
    owner = subprocess.Popen([sys.executable, "-c", OWNER, msgspec.json.encode(job).decode(), str(tmp_path)])
    family = psutil.Process(owner.pid)
    descendants: list[psutil.Process] = []
    end = time.monotonic() + 240
    while time.monotonic() < end:
        descendants = family.children(recursive=True)
        trains = len(list(tmp_path.glob("rank-*.log"))) == 2 and len(descendants) >= 3
        if trains or (moment == "starting" and descendants):
            break
        time.sleep(0.05)
    time.sleep(0.5)
    descendants = [*{*descendants, *family.children(recursive=True)}]  # what was seen first may have ended since
    assert len(descendants) >= (3 if moment == "training" else 1)
    owner.send_signal(signal.SIGKILL)
    owner.wait()
    _, alive = psutil.wait_procs(descendants, timeout=1800)
    assert not alive


def test_experiment_json_is_the_whole_request(bench: Bench) -> None:
    folder = bench.folder()
    bench.profiler(TINY).run(configuration(tp=2), "tp2", folder)
    written = json.loads((folder / "experiment.json").read_text())
    assert written["about"]["name"] == "tp2"
    assert written["arguments"]["--tensor-model-parallel-size"] == 2
    assert written["arguments"]["--micro-batch-size"] == 2
