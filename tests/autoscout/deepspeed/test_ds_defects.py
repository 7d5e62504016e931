"""The thirteen defects of DeepSpeed's autotuner (docs/deepspeed.md, a to m): each of these fails on what it does."""

import json
import os
import re
import shutil
import subprocess
import sys
import threading
from pathlib import Path

import msgspec
import pytest
from ds_configs import CONFIG

from autoscout.job.objective import cost
from autoscout.line.launch_line import Line
from autoscout.running.cluster.choosing import chooser
from autoscout.running.cluster.placement import Device, Host
from autoscout.running.cluster.scheduler import Scheduler, SlotPart
from autoscout.search.strategy import strategy
from autoscout.space.explain import completed, parse
from autoscout.studies.rivals.deepspeed_grid import EARLY_STOPPING
from autoscout.targets.command.arguments import Place
from autoscout.targets.deepspeed import artefacts, importer, profiler
from autoscout.targets.deepspeed.arguments import rendered_config, saying_each_step, started
from autoscout.targets.deepspeed.autotuning import OBJECTIVES, mapped, settings
from autoscout.targets.deepspeed.command_line import job_of
from autoscout.targets.deepspeed.config_space import read_config
from autoscout.targets.deepspeed.tuning_space import filled
from autoscout.targets.jobs import JobSpace, load_job, profiler_of
from autoscout.targets.target import target
from kb.records import Configuration, Job, Measurement, Objective


def of(job, *words: str) -> Configuration:
    space = JobSpace.of_job(job)
    return completed(space, parse(space, list(words)), space.reference)


def run(job, folder, *words: str) -> Measurement:
    profiler = profiler_of(job)
    try:
        return profiler.run(of(job, *words), "it", folder)
    finally:
        profiler.close()


BY_THREE = {**CONFIG, "train_batch_size": 312}  # of 3 ranks, and of 13


def over_hosts(place, lines: str) -> Job:
    hosts = place.folder / "hosts"
    hosts.write_text(lines)
    return load_job(place.toml(job_of(place.config(BY_THREE), ["train.py"], "cpu", 1, hosts)))


def test_a_latency_is_minimized(place):
    job = place.job(goal='minimize = "step_time_s"')
    fast, slow = (
        Measurement(configuration=of(job, f"mbs={m}"), name="", context="", status="ok", metrics={"step_time_s": s})
        for m, s in ((8, 0.1), (1, 0.9))
    )
    assert (cost(job.objective, fast) or 0) < (cost(job.objective, slow) or 0)
    assert "| global       | 2 " in artefacts.summary(job, [slow, fast], fast, 1.0)
    assert "0.1 " in artefacts.summary(job, [slow, fast], fast, 1.0).splitlines()[-4]


def test_b_flops_have_one_name_everywhere(place, tmp_path):
    assert OBJECTIVES["flops"] == OBJECTIVES["FLOPS_per_gpu"]
    more = 'metrics = { flops_per_gpu = { file = "{folder}/metrics.json", json = "FLOPS_per_gpu" } }'
    found = run(place.job(more=more, goal='maximize = "flops_per_gpu"'), tmp_path / "r", "stage=0", "mbs=1")
    assert found.status == "ok", found.evidence
    assert found.metrics["flops_per_gpu"] > 0


def test_c_the_word_error_is_no_failure(place, tmp_path):
    assert run(place.job(), tmp_path / "run", "stage=1").status == "ok"  # it prints "0 errors so far" to stderr
    folder = tmp_path / "theirs" / "z0"
    folder.mkdir(parents=True)
    (folder / "ds_config.json").write_text(json.dumps({"train_batch_size": 16}))
    (folder / "stderr.log").write_text("0 errors, error_if_nonfinite=False\nthe end\n")
    assert next(importer.read(tmp_path / "theirs", place.job()).rows).cells["evidence"] == "left no metrics.json"


def test_d_experiments_share_no_arguments(place):
    line = Line(("train.py", "--bs", "1"))
    many = [threading.Thread(target=lambda n=n: seen.append(mapped(line, {"b": "--bs"}, {"b": n}))) for n in range(8)]
    seen: list[Line] = []
    for thread in many:
        thread.start()
    for thread in many:
        thread.join()
    assert sorted(one.words[2] for one in seen) == [str(n) for n in range(8)]
    assert line.words == ("train.py", "--bs", "1")
    job, at = place.job(), Place(folder="/f", port="1", iterations="5")
    one = started(job, of(job, "mbs=1"), at)
    started(job, of(job, "mbs=8"), at)
    assert started(job, of(job, "mbs=1"), at) == one


def test_e_cleaning_up_needs_no_pdsh_nor_ssh_and_never_ends_the_tuner(place, tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))  # neither is there
    with subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)  # z2_run"]) as bystander:
        found = run(place.job(flags="--fails-at-stage 2"), tmp_path / "z2_run", "stage=2")
        assert found.status == "oom"
        assert bystander.poll() is None  # theirs ends by name whatever has the experiment's name in its command
        bystander.kill()
    assert run(place.job(), tmp_path / "z2_run", "stage=2").status == "ok"


def test_f_hosts_that_differ_keep_their_devices(place):
    """Theirs takes the smallest count for all: three hosts of one device."""
    job = over_hosts(place, "a slots=8\nb slots=4\n\nc slots=1\n")
    assert [len(host.devices) for host in chooser(job)(job.devices, frozenset()).hosts] == [8, 4, 1]


def test_g_a_large_job_does_not_block_smaller_ones():
    """test_scheduler.py has the rest: nobody starves either."""
    scheduler = Scheduler([Host("n1", tuple(Device(str(i), "gpu") for i in range(4)))])
    scheduler.submit("running", (SlotPart("gpu", 3),), 100.0)
    assert [name for name, _ in scheduler.start(0.0)] == ["running"]
    scheduler.submit("large", (SlotPart("gpu", 4),), 100.0)
    scheduler.submit("small", (SlotPart("gpu", 1),), 10.0)
    assert [name for name, _ in scheduler.start(1.0)] == ["small"]


def test_h_the_hostfile_reaches_every_launch_and_one_node_needs_no_name(place):
    job = over_hosts(place, "one slots=2\nother slots=1\n")
    assert chooser(job)(job.devices, frozenset()).spelled == "one:0,1 other:0"
    for node, ranks in ((0, 2), (1, 1)):
        there = Place(folder="/f", port="7", iterations="5", node=str(node), head="one", ranks=str(ranks))
        line = " ".join(started(job, of(job, "mbs=1"), there).words)
        assert f"--nnodes 2 --node-rank {node} --nproc-per-node {ranks} --master-addr one --master-port 7" in line
    exported = target("deepspeed").launch(job, of(job, "mbs=1"))
    lines = target("deepspeed").formats()["hostfile"](exported).splitlines()[-2:]
    assert [line.split()[1] for line in lines] == ["slots=2", "slots=1"]
    alone = load_job(place.toml(job_of(place.config(BY_THREE), ["train.py"], "cpu", 3, None)))
    line = " ".join(started(alone, of(alone, "mbs=1"), Place(folder="/f", port="7", iterations="5")).words)
    assert "--nproc-per-node 3 --master-port 7" in line
    assert "addr" not in line


def test_i_configurations_share_nothing(place):
    template = {"z": "$S"}
    assert (filled(template, {"s": 1}), filled(template, {"s": 2}), template) == ({"z": 1}, {"z": 2}, {"z": "$S"})
    job = place.job()
    sent = rendered_config(job, of(job, "stage=2"))
    sent["zero_optimization"]["stage"] = 7
    assert rendered_config(job, of(job, "stage=2"))["zero_optimization"]["stage"] == 2
    assert read_config(job)["zero_optimization"]["stage"] == [0, 1, 2, 3]


@pytest.mark.parametrize("name", ["deepspeed", "deepspeed-model"])
def test_j_the_model_takes_names_and_inactive_settings_and_runs_its_first_trials(place, name):
    if name == "deepspeed-model":
        pytest.importorskip("xgboost")
    zero = {"stage": [0, 1, 2], "reduce_bucket_size": [1000, 2000], "offload_optimizer": {"device": ["none", "cpu"]}}
    space = JobSpace.of_job(place.job({**CONFIG, "zero_optimization": zero}))
    chosen, asked = strategy(name, space, seed=3), []
    for _ in range(12):
        for c in chosen.ask():
            asked.append(c)
            seconds = 1.0 + (c.knobs.get("offload_optimizer") == "cpu") + int(c.knobs["stage"]) / 10
            metrics = {"samples_per_s": 16 / seconds}
            chosen.tell([Measurement(configuration=c, name="", context="", status="ok", metrics=metrics)])
    assert len(asked) == len({c.id for c in asked}) >= 6  # stage 0 has fewer settings than the others


def test_k_a_failed_run_is_not_done_for_ever(place, tmp_path):
    folder = tmp_path / "run"
    assert run(place.job(flags="--fails-at-stage 1"), folder, "stage=1").status == "oom"
    job = place.job()
    profiler = profiler_of(job)
    again = profiler.run(of(job, "stage=1"), "it", folder)
    profiler.close()
    assert again.status == "ok"
    infrastructure = msgspec.structs.replace(again, status="infrastructure")
    assert cost(Objective(maximize="samples_per_s"), infrastructure) is None


def test_l_defaults_are_said_once():
    """Theirs are in a README and in the code, and two differ; ours on a page and in the code, compared here."""
    page = (Path(__file__).parents[3] / "docs" / "deepspeed.md").read_text()
    said = page.partition("<!-- defaults -->\n")[2].partition("\n<!-- end -->")[0]
    told = {name: json.loads(value) for name, value in re.findall(r"`(\w+)` (\S+?)[,.](?:\s|$)", said)}
    assert told == msgspec.to_builtins(settings({}))
    assert told["tuner_early_stopping"] == EARLY_STOPPING


def test_l_a_default_is_what_a_session_does(place):
    made = job_of(place.config({**CONFIG, "autotuning": {"enabled": True}}), ["train.py"], "cpu", 2, None)
    found = settings({})
    assert made["budget"]["profiles"] == found.tuner_num_trials
    assert made["objective"] == OBJECTIVES[found.metric]
    job = load_job(place.toml(made))
    assert target("deepspeed").patience(job) == found.tuner_early_stopping


def test_m_a_run_out_of_memory_has_its_class_and_a_run_without_end_a_limit(place, tmp_path):
    assert run(place.job(flags="--fails-at-stage 1"), tmp_path / "a", "stage=1").status == "oom"
    (place.folder / "train.py").write_text("import time\ntime.sleep(600)\n")
    assert run(place.job(more="timeout_s = 1.0"), tmp_path / "b", "stage=1").status == "timeout"
    formats = target("deepspeed").formats()
    assert {"slurm", "hostfile", "deepspeed"} <= formats.keys()


def test_a_run_that_was_ended_as_an_operator_compiled_leaves_no_lock(tmp_path):
    """Four runs of a first session timed out, and so would every later one of anybody: each waited for the lock."""
    other, ours = (tmp_path / "py311_cpu" / name / "lock" for name in ("async_io", "deepspeed_shm_comm"))
    for lock in (other, ours):
        lock.parent.mkdir(parents=True)
        lock.touch()
    os.utime(other, (1000.0, 1000.0))
    late = Measurement(configuration=Configuration({}), name="", context="", status="timeout", at=2000.0, cost_s=120.0)
    os.utime(ours, (1900.0, 1900.0))
    found = profiler.judged(late, tmp_path, tmp_path)
    assert (found.status, other.exists(), ours.exists()) == ("infrastructure", True, False)
    assert "while DeepSpeed compiled its operator deepspeed_shm_comm" in found.evidence
    assert profiler.judged(late, tmp_path, tmp_path).status == "timeout"  # without one it is as it was


def test_a_checked_export_says_each_step_and_an_exported_one_what_the_user_said(tmp_path):
    """DeepSpeed by itself says its speed after no step: `export --check` ran into its limit on every job."""
    for name in ("train.py", "ds_config.json", "job.toml"):
        shutil.copy(Path("fixtures/deepspeed") / name, tmp_path)
    job = load_job(tmp_path / "job.toml")
    launch = target("deepspeed").launch(job, JobSpace.of_job(job).reference)
    (before,), (after,) = (
        [json.loads(text) for name, text in each.files.items() if name.endswith("ds_config.json")]
        for each in (launch, saying_each_step(job, launch))
    )
    assert "steps_per_print" not in before
    assert after == before | {"steps_per_print": 1, "log_level": "info"}
