"""RL jobs: an iteration's phases, the samples that it has, the guard of its first updates, and what goes wrong."""

import json
import re
import sys
import tempfile
from pathlib import Path

import msgspec
import pytest
from click.testing import CliRunner
from job_files import written

from autoscout.line.launch_line import Line
from autoscout.targets.command import phases
from autoscout.targets.command.profiler import CommandProfiler
from autoscout.targets.command.recognised import job_of
from autoscout.targets.command.rewards import FirstUpdates
from autoscout.targets.jobs import JobSpace, load_job
from autoscout.targets.target import target_of
from autoscout.targets.tracing import ShadowAsked
from kb.records import AutoscoutError, Measurement
from tui.cli import cli
from tui.draw.iteration_bars import has_phases, of_iteration

HERE = Path(__file__).parent
TEXT = f"""
name = "rl"
task = "rl"
target = "command"
traffic = {{ global_batch = 4 }}
[objective]
maximize = "samples_per_s"
[launch]
script = "grpo"
path = "{HERE}"
command = "{sys.executable} rl_trainer.py --per_device_train_batch_size 2 --num_generations 2"
iterations = 4
timeout_s = 20
[space]
fix = {{ workers = 0, checkpointing = true }}
limit = {{ mbs = [1, 2, 4] }}
[cluster]
nodes = [{{ device = "cpu", count = 1 }}]
"""


@pytest.fixture
def job(tmp_path):
    return lambda *changes: load_job(written(tmp_path, TEXT, *changes))


def run(job, tmp_path, **knobs) -> Measurement:
    reference = JobSpace.of_job(job).reference
    asked = msgspec.structs.replace(reference, knobs={**reference.knobs, **knobs})
    return CommandProfiler(job).run(asked, "one", tmp_path / "one")


def test_the_phases_of_an_iteration_add_up_to_it(job, tmp_path):
    found = run(job(), tmp_path)
    assert found.status == "ok", found.evidence
    m = found.metrics
    assert sum(m[f"{phase}_s"] for phase in phases.PHASES) == pytest.approx(m["step_time_s"], rel=0.02)
    assert m["rollout_s"] > m["update_s"] > m["logprobs_s"] > m["wait_s"] > 0.009
    assert m["weights_s"] == 0
    assert 0.02 < m["idle_share"] < 0.3
    assert m["samples_per_s"] * m["step_time_s"] == pytest.approx(4, rel=0.1)
    assert m["lag_updates"] == 0
    assert found.losses[:4] == [0.5, 0.0123, 0.5, 0.0123]
    assert len(found.per_rank["rollout_s"]) == 1


def test_micro_batches_keep_the_samples_of_an_iteration(job, tmp_path):
    for mbs in (1, 4):
        found = run(job(), tmp_path, mbs=mbs)
        assert found.status == "ok", found.evidence
        assert found.metrics["samples_per_s"] * found.metrics["step_time_s"] == pytest.approx(4, rel=0.1)


def test_ranks_that_do_not_know_of_each_other_are_found_wrong(job, tmp_path):
    lost = job(("count = 1", "count = 2"), ("global_batch = 4", "global_batch = 8"))
    found = run(lost, tmp_path, mbs=2)
    assert found.status == "wrong"
    assert "drew 4 answers, but traffic.global_batch = 8 needs 8" in found.evidence
    assert "--use_cpu" in found.evidence


@pytest.mark.parametrize(
    ("how", "status", "said"),
    [
        ("reward", "error", "ZeroDivisionError: the reward of an empty answer"),
        ("engine", "infrastructure", "EngineDeadError"),
        ("endless", "timeout", "no result after 3 s"),
    ],
)
def test_what_ends_in_mid_iteration(job, tmp_path, how, status, said):
    found = run(job(("--num_generations 2", f"--num_generations 2 --end {how}"), ("_s = 20", "_s = 3")), tmp_path)
    assert (found.status, said in found.evidence) == (status, True), found.evidence


def test_a_session_says_which_phase_the_gain_comes_from(tmp_path, monkeypatch):
    """More micro batches take longer in the stand-in, by their clock and in the update alone."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))  # a lock of our own on the machine
    slow = ("--num_generations 2", "--num_generations 2 --micro_s 0.1"), ("mbs = [1, 2, 4]", "mbs = [1, 2]")
    file, given = written(tmp_path, TEXT, *slow), ("--kb", str(tmp_path / "kb" / "kb.duckdb"))
    tuned = CliRunner().invoke(cli, ["tune", str(file), *given, "--no-tui", "--json"])
    assert tuned.exit_code == 0, tuned.output
    found = json.loads(tuned.stdout)
    assert found["best"]["configuration"]["mbs"] == 2
    session = found["session"]["session"]
    told = json.loads(CliRunner().invoke(cli, ["why", session, *given, "--json"]).stdout)["phases"]
    assert told.keys() == {"reference"}, "what is launched now is the best"
    assert told["reference"]["update_s"] > told["reference"]["logprobs_s"]
    shown = CliRunner().invoke(cli, ["why", session, *given]).stdout
    assert re.search(r"^rollout +[█░]{7} +\d+% +[\d.]+ s +answers generated", shown, re.MULTILINE)
    parts = CliRunner().invoke(cli, ["sql", *given, "--json", "SELECT DISTINCT part FROM parts"])
    assert {row["part"] for row in json.loads(parts.stdout)} == {*phases.PHASES}


def test_a_shadow_of_an_iteration_is_refused_if_the_trainer_generates(job):
    model = "[model]\nlayers = 2\nhidden = 64\nheads = 4\nvocab = 64\n[cluster]"
    lengths = ("global_batch = 4 }", "global_batch = 4, seq_len = 64, input_len = 8, output_len = 16 }")
    for changes, why in (((), "has no \\[model\\]"), ((lengths, ("[cluster]", model)), "needs real tensors")):
        asked = job(*changes)
        with pytest.raises(AutoscoutError, match=why) as told:
            target_of(asked).shadow(ShadowAsked(asked, JobSpace.of_job(asked).reference, "one", None, 1.0))
        assert told.value.exit_code == 2


def test_bars_show_each_phase_and_what_no_phase_is_told_of():
    of_verl = {"step_time_s": 10.0, "rollout_s": 6.0, "reference_s": 1.0, "update_s": 2.0}
    assert has_phases(of_verl)
    assert not has_phases({"step_time_s": 10.0, "forward_backward_s": 8.0})
    shown = of_iteration({"reference": of_verl, "best": {**of_verl, "step_time_s": 8.0, "rollout_s": 4.0}}, True).plain
    rows = {row.split()[0]: row.split()[1:] for row in shown.splitlines()}
    assert rows["rollout"][:8] == ["####...", "60%", "6.000", "s", "####...", "50%", "4.000", "s"]
    assert rows["other"][:3] == ["#......", "10%", "1.000"]
    assert rows["iteration"] == ["10.00", "s", "8.000", "s"]
    assert not {"wait", "weights"} & rows.keys()


def line(words: str) -> Line:
    return Line(tuple(words.split()))


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        ("--per_device_train_batch_size 3 --num_generations 4", "the 3 × 1 × 2 answers"),
        ("--per_device_train_batch_size 2 --steps_per_generation 3 --num_generations 8", "the 2 × 3 × 2 answers"),
        (
            "--per_device_train_batch_size 4 --generation_batch_size 12 --num_generations 4",
            "--generation_batch_size 12",
        ),
        ("--per_device_train_batch_size 4 --num_generations 1", "--num_generations is 1"),
        ("--steps_per_generation 2 --generation_batch_size 32 --num_generations 8", "accepts only one of"),
    ],
)
def test_a_batch_that_trl_refuses_is_said_before_anything_starts(flags, said):
    notes = job_of(line(f"torchrun --nproc-per-node 2 grpo.py --output_dir out {flags}"))["notes"]
    assert any("does not start" in note and said in note for note in notes), notes


VERL = "python3 -m verl.trainer.main_ppo trainer.n_gpus_per_node=8 actor_rollout_ref.rollout.n=1 data.train_batch_size="


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ("512 actor_rollout_ref.actor.ppo_mini_batch_size=100", "divide the 100 × 1 samples of a mini batch"),
        ("100 actor_rollout_ref.actor.ppo_mini_batch_size=64", "divide the 100 × 1 samples of a step"),
        ("100 actor_rollout_ref.actor.ppo_mini_batch_size=64 actor_rollout_ref.actor.use_dynamic_bsz=True", ""),
        ("64 actor_rollout_ref.actor.ppo_mini_batch_size=64", ""),
    ],
)
def test_a_batch_that_verl_refuses_is_said_before_anything_starts(settings, said):
    """verl 0.9.1 pads a step of dynamic micro batches, but never a mini batch."""
    refused = [note for note in job_of(line(f"{VERL}{settings}"))["notes"] if "does not start" in note]
    assert (len(refused), said in "".join(refused)) == (bool(said), True), refused


def test_a_script_of_any_name_is_known_by_its_flags():
    found = job_of(
        line("accelerate launch --num_processes 4 my_rl.py --output_dir o --num_generations 8 --max_steps 9")
    )
    assert found["task"] == "rl"
    assert found["launch"]["script"] == "grpo"
    assert found["traffic"]["global_batch"] == 32
    assert found["objective"] == {"maximize": "samples_per_s"}
    assert job_of(line("trl sft --output_dir o --dataset_name d"))["launch"]["script"] == "trl"


def measured(losses, norm=0.5, lag=0.0, **knobs) -> Measurement:
    metrics = {"samples_per_s": 8.0, "step_time_s": 2.0, "reward_std": 0.2, "lag_updates": lag}
    told = {"name": "m", "context": "", "status": "ok", "metrics": metrics, "losses": losses, "grad_norms": [norm]}
    return msgspec.convert({"configuration": {"knobs": knobs}, **told}, Measurement)


def test_the_guard_holds_rewards_and_losses_of_the_first_updates(job):
    check, reference = target_of(job()).equivalence(job()), measured([0.5, 0.02, 0.6, 0.1], vllm=False)
    assert isinstance(check, FirstUpdates)
    assert check.compare(reference, measured([0.5, 0.0205, 0.65, -0.3], vllm=False)) == ""  # later ones: as averages
    assert "reward of update 1 is 0.52" in check.compare(reference, measured([0.52, 0.02, 0.6, 0.1], vllm=False))
    assert "reward of update 2 is 0.1" in check.compare(reference, measured([0.5, 0.02, 0.1, 0.1], vllm=False))
    assert "first update's loss is 0.2" in check.compare(reference, measured([0.5, 0.2, 0.6, 0.1], vllm=False))
    assert "gradient norm" in check.compare(reference, measured([0.5, 0.02, 0.6, 0.1], norm=0.6, vllm=False))
    assert "not finite" in check.compare(reference, measured([float("nan"), 0.02], vllm=False))


def test_other_answers_are_compared_as_averages_and_older_ones_are_another_training(job):
    check, reference = target_of(job()).equivalence(job()), measured([0.5, 0.02, 0.6, 0.1], vllm=False)
    assert check.compare(reference, measured([0.55, 0.2, 0.62, 0.1], norm=2.0, vllm=True)) == ""
    assert "reward of update 1" in check.compare(reference, measured([0.9, 0.02, 0.6, 0.1], vllm=True))
    older = measured([0.5, 0.02, 0.6, 0.1], lag=3.0, vllm=False)
    assert "generated up to 3 updates earlier" in check.compare(reference, older)
    stated = job(('"samples_per_s"\n[launch]', '"samples_per_s"\nconstraints = ["lag_updates <= 3"]\n[launch]'))
    assert target_of(stated).equivalence(stated).compare(reference, older) == ""


def test_iterations_of_several_updates_get_as_many_steps(job, tmp_path):
    several = job(("--num_generations 2", "--num_generations 2 --num_iterations 2"))
    assert phases.updates(several, JobSpace.of_job(several).reference) == 2
    assert any("up to 1 update earlier" in note for note in target_of(several).notes_on_job(several))
    found = run(several, tmp_path)
    assert found.status == "ok"
    assert found.metrics["lag_updates"] == 1
    assert found.metrics["samples_per_s"] * found.metrics["step_time_s"] == pytest.approx(4, rel=0.1)


def test_the_environments_own_sitecustomize_still_runs(job, tmp_path):
    (tmp_path / "theirs").mkdir()
    (tmp_path / "theirs" / "sitecustomize.py").write_text("print('theirs ran', flush=True)\n")
    both = job(("timeout_s = 20", f'timeout_s = 20\nenvironment = {{ PYTHONPATH = "{tmp_path}/theirs" }}'))
    found = run(both, tmp_path)
    assert found.status == "ok", found.evidence
    assert "theirs ran" in (tmp_path / "one" / "output.log").read_text()
