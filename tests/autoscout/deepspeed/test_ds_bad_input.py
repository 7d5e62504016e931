"""Every bad ds_config, script, host file and results folder gets one sentence and a documented exit code."""

import json
import math
import os
import signal
import threading
import time
from pathlib import Path

import pytest
import verbs
from ds_configs import CONFIG
from imported import bring_in

from autoscout.space.explain import completed, parse
from autoscout.targets.deepspeed import ds_config, importer
from autoscout.targets.jobs import JobSpace, profiler_of
from kb.records import AutoscoutError


def refused(place, config, said: str, **kwargs) -> None:
    with pytest.raises(AutoscoutError, match=said) as error:
        JobSpace.of_job(place.job(config, **kwargs))
    assert error.value.exit_code == 2
    assert "\n" not in str(error.value)


def test_comments_and_trailing_commas_are_read_as_deepspeed_reads_them(place):
    text = '{ // one\n "train_batch_size": 16, # two\n "bf16": {"x": "http://a#b"}, /* three\n */ "wandb": [1,],}'
    found = ds_config.parsed(text, "x")
    assert found == {"train_batch_size": 16, "bf16": {"x": "http://a#b"}, "wandb": [1]}


@pytest.mark.parametrize(
    ("config", "said"),
    [
        ('{"train_batch_size": 16', "is not JSON"),
        ("[1]", "must be an object"),
        ('{"train_batch_size": 1, "train_batch_size": 2}', "'train_batch_size' is given twice"),
        (
            {"zero_optimizaton": {"stage": [1, 2]}},
            "has no setting 'zero_optimizaton'; did you mean",
        ),
        ({"zero_optimization": {"stage": [1], "reduce_bukket_size": 1}}, "did you mean 'reduce_bucket_size'"),
        ({"zero_optimization": [1]}, "zero_optimization must be an object"),
        ({**CONFIG, "fp16": True}, "fp16 must be an object with settings"),
        ({**CONFIG, "autotuning": {"model_info": {"num_params": "x"}}}, "model_info.num_params = 'x' is not a number"),
        ({**CONFIG, "zero_optimization": {"stage": [math.nan, 1]}}, "NaN and Infinity are not numbers"),
        ({**CONFIG, "train_batch_size": [8, 16]}, "has a list for train_batch_size"),
        ({**CONFIG, "train_batch_size": 32}, "trains 32 samples per step; set traffic.global_batch = 32"),
        ({**CONFIG, "autotuning": {"metrik": "latency"}}, "no setting 'metrik'; did you mean 'metric'"),
        ({**CONFIG, "autotuning": {"metric": "speed"}}, "autotuning: Invalid enum value 'speed'"),
        ({**CONFIG, "autotuning": {"mp_size": 9}}, "mp_size = 9, but the job has 2 devices"),
        (
            {**CONFIG, "optimizer": {"params": {"lr": "auto"}}},
            'lr is "auto", which only the Hugging Face Trainer fills',
        ),
        ({**CONFIG, "bf16": {"enabled": "auto"}, "gradient_clipping": "auto"}, 'is "auto", which only the Hugging'),
    ],
)
def test_a_ds_config_that_cannot_be_tuned(place, config, said):
    refused(place, config, said)


def test_auto_everywhere_is_what_the_hugging_face_trainer_fills_in(place):
    auto = dict.fromkeys(("train_batch_size", "gradient_accumulation_steps", "gradient_clipping"), "auto")
    config = {**auto, "train_micro_batch_size_per_gpu": "auto", "zero_optimization": {"stage": "auto"}}
    config |= {"autotuning": {"enabled": True, "max_train_micro_batch_size_per_gpu": 4}}
    path = place.job_file(config)
    path.write_text(path.read_text().replace("--deepspeed_config", "--per_device_train_batch_size 1 --deepspeed"))
    from autoscout.targets.command.arguments import Place
    from autoscout.targets.deepspeed.arguments import started
    from autoscout.targets.jobs import load_job

    job = load_job(path)
    space = JobSpace.of_job(job)
    chosen = completed(space, parse(space, ["mbs=4", "stage=2"]), space.reference)
    run = started(job, chosen, Place(folder="/f", port="1", iterations="5"))
    assert run.words[run.words.index("--per_device_train_batch_size") + 1] == "4"
    sent = json.loads(run.files["/f/ds_config.json"])
    assert sent["train_micro_batch_size_per_gpu"] == 4
    assert (sent["zero_optimization"]["stage"], sent["gradient_clipping"]) == (2, "auto")
    # Without the flags the Trainer's own defaults stand, and it refuses a ds_config with other numbers.
    path.write_text(path.read_text().replace("--per_device_train_batch_size 1 ", ""))
    words = started(load_job(path), chosen, Place(folder="/f", port="1", iterations="5")).words
    assert words[words.index("--per_device_train_batch_size") + 1] == "4"
    assert words[words.index("--gradient_accumulation_steps") + 1] == str(sent["gradient_accumulation_steps"])


def test_the_speed_under_a_trainer_is_what_the_engine_writes(place):
    """A Trainer lets it print no steps, so nothing would be read of its log."""
    from autoscout.targets.command.arguments import Place
    from autoscout.targets.deepspeed.arguments import started
    from autoscout.targets.deepspeed.command_line import job_of
    from autoscout.targets.jobs import load_job

    config = place.config({**CONFIG, "gradient_clipping": "auto"})
    job = load_job(place.toml(job_of(config, ["train.py", "--deepspeed", str(config)], "cpu", 2, None)))
    space = JobSpace.of_job(job)
    sent = started(job, space.reference, Place(folder="/f", port="1", iterations="5")).files["/f/ds_config.json"]
    assert json.loads(sent)["autotuning"]["metric_path"] == "/f/metrics.json"
    plain = job_of(place.config(CONFIG), ["train.py"], "cpu", 2, None)
    assert "metrics" not in plain["launch"]


def test_a_name_that_is_none_of_deepspeeds_nor_nearly_is_noted(place):
    job = place.job({**CONFIG, "my_own_settings": {"a": 1}})
    from autoscout.targets.target import target_of

    ignored = "DeepSpeed ignores 'my_own_settings' in the ds_config, because it has no such setting"
    assert ignored in target_of(job).notes_on_job(job)


def test_a_number_of_trials_that_gives_way_to_the_budget_is_said(place):
    from autoscout.targets.target import target_of

    job = place.job({**CONFIG, "autotuning": {"enabled": True, "tuner_num_trials": 9}})
    assert any("the job's budget sets 30 experiments" in said for said in target_of(job).notes_on_job(job))
    usual = place.job({**CONFIG, "autotuning": {"enabled": True, "tuner_num_trials": 30}})
    assert not any("trials" in said for said in target_of(usual).notes_on_job(usual))


LISTED = {**CONFIG, "autotuning": {"enabled": True, "fast": True}}


def test_lists_that_deepspeeds_fast_mode_would_not_take_apart_are_said(place):
    """It hands them to its engine, which refuses them, and ends with exit code 0."""
    from autoscout.targets.target import target_of

    said = "also tuned: zero_optimization.reduce_bucket_size; DeepSpeed's own fast mode would pass the"
    assert any(note.startswith(said) for note in target_of(place.job()).notes_on_job(place.job(LISTED)))
    slow = {**LISTED, "autotuning": {"enabled": True, "fast": False}}
    for other in ({**LISTED, "zero_optimization": {"stage": [0, 1]}}, slow):
        assert not any("fast mode" in note for note in target_of(place.job()).notes_on_job(place.job(other)))


def test_what_its_engine_refuses_is_one_sentence_with_the_field(place, tmp_path):
    """pydantic says on lines of its own which field, and what is wrong with it."""
    error = "pydantic_core._pydantic_core.ValidationError: 1 validation error for DeepSpeedZeroConfig"
    field = "  Input should be a valid integer [type=int_type, input_value=[50000, 5000000], input_type=list]"
    further = "    For further information visit https://errors.pydantic.dev/2.12/v/int_type"
    lines = ["Traceback (most recent call last):", error, "reduce_bucket_size", field, further]
    told = "\n".join(f"[rank0]: {line}" for line in lines)
    (place.folder / "train.py").write_text(f"import sys\nsys.exit({told!r})\n")
    job = place.job()
    profiler = profiler_of(job)
    found = profiler.run(JobSpace.of_job(job).reference, "it", tmp_path / "run")
    profiler.close()
    assert found.status == "invalid"
    assert "reduce_bucket_size: Input should be a valid integer, not [50000, 5000000]" in found.evidence
    assert "errors.pydantic.dev" not in found.evidence


def test_offloading_without_an_optimizer(place):
    bare = {k: v for k, v in CONFIG.items() if k != "optimizer"}
    fixed = {**bare, "zero_optimization": {"stage": [1, 3], "offload_optimizer": {"device": "cpu"}}}
    refused(place, fixed, "offloading needs one of DeepSpeed's own optimizers")
    listed = {**bare, "zero_optimization": {"stage": [1, 3], "offload_optimizer": {"device": ["none", "cpu"]}}}
    path = place.job_file(listed)
    done = verbs.run("explain", path, "stage=3", "mbs=1", "offload_optimizer=cpu")
    assert "not valid" in done.stdout
    assert "offloading needs one of DeepSpeed's own optimizers" in done.stdout
    assert all("cpu" not in c.knobs.values() for c in feasible(JobSpace.load(path)))


def feasible(space):
    return [space.feasible.configuration(row) for row in range(len(space.feasible.codes))]


def test_a_script_that_ignores_the_config_is_found_out(place, tmp_path):
    job = place.job(flags="--ignores")
    space = JobSpace.of_job(job)
    profiler = profiler_of(job)
    found = profiler.run(completed(space, parse(space, ["mbs=4"]), space.reference), "it", tmp_path / "run")
    profiler.close()
    assert found.status == "invalid"
    assert (
        "the script trains with train_micro_batch_size_per_gpu = 1, but AutoScout set 4: the script ignores"
        in found.evidence
    )


def test_a_command_that_does_not_name_the_config(place):
    path = place.job_file()
    path.write_text(path.read_text().replace("--deepspeed_config ds_config.json", "--deepspeed"))
    done = verbs.run("tune", path, "--no-tui", "--kb", place.folder / "kb")
    assert done.returncode == 2
    assert "does not give ds_config.json to the script" in done.stderr
    assert "Traceback" not in done.stderr


def test_words_that_do_not_go_together(place):
    place.config(CONFIG)
    none = verbs.run("tune", place.folder / "ds_config.json", "--kb", place.folder / "kb")
    assert none.returncode == 2
    assert "name the script that uses this ds_config" in none.stderr
    job = verbs.run("tune", place.job_file(), "--script", "train.py")
    assert job.returncode == 2
    assert "need a ds_config.json" in job.stderr
    gone = verbs.run("tune", place.folder / "gone.json", "--script", "train.py")
    assert gone.returncode == 2
    assert "cannot be read as a ds_config (No such file or directory)" in gone.stderr


def test_a_host_file_with_uneven_slots_is_kept_and_a_bad_line_named(place):
    from autoscout.targets.deepspeed.command_line import job_of

    hosts = place.folder / "hosts"
    hosts.write_text("a slots=4\nb slots=1\n")
    config = place.config(CONFIG)
    made = job_of(config, ["train.py"], "cpu", 1, hosts)
    assert [node["count"] for node in made["cluster"]["nodes"]] == [4, 1]
    hosts.write_text("a slots=4\nb slots=many\n")
    with pytest.raises(AutoscoutError, match="line 2: 'b slots=many' does not have the form"):
        job_of(config, ["train.py"], "cpu", 1, hosts)


def result(root: Path, name: str, config: object, **files: str) -> None:
    folder = root / name
    folder.mkdir(parents=True)
    (folder / "ds_config.json").write_text(config if isinstance(config, str) else json.dumps(config))
    for file, text in files.items():
        (folder / file.replace("__", ".")).write_text(text)


def test_a_results_folder_of_another_version_with_auto_lists_and_half_written_files(place, tmp_path):
    root = tmp_path / "results"
    good = json.dumps({"throughput": 40.0, "latency": 200.0})
    old = {"train_batch_size": 16, "train_micro_batch_size_per_gpu": 2, "zero_optimization": {"stage": 2}}
    offloads = {**old, "zero_optimization": {"stage": 2, "cpu_offload": True}}
    result(root, "old", offloads, metrics__json=good)
    auto = {"train_batch_size": "auto", "train_micro_batch_size_per_gpu": "auto", "zero_optimization": {"stage": 1}}
    result(root, "auto", auto, metrics__json=good)
    result(root, "lists", {**old, "optimizer": {"params": {"betas": [0.9, 0.9]}}}, metrics__json=good)
    result(root, "half", '{"train_batch_si', metrics__json=good)
    result(root, "half-metrics", old, metrics__json='{"throu')
    result(root, "whole-exp", '{"train_', exp__json=json.dumps({"ds_config": old}), metrics__json=good)
    result(root, "interrupted", old, stderr__log="Traceback\nKeyboardInterrupt\n")
    result(root, "no-numbers", old, metrics__json='{"speed": "fast"}')
    result(root, "profile_model_info", old)
    job = place.job(
        {**CONFIG, "zero_optimization": {"stage": [0, 1, 2], "offload_optimizer": {"device": ["none", "cpu"]}}}
    )
    rows = {row.where: row for row in importer.read(root, job).rows}
    assert rows["old"].cells["zero_optimization.offload_optimizer.device"] == "cpu"
    assert "so the number of samples per step is unknown" in rows["auto"].problem
    assert "train_batch_size" not in rows["auto"].cells
    assert rows["lists"].cells["step_time_s"] == 0.4
    assert "cannot be read" in rows["half"].problem
    assert "metrics.json cannot be read" in rows["half-metrics"].problem
    assert rows["whole-exp"].cells["step_time_s"] == 0.4
    assert "was interrupted" in rows["interrupted"].problem
    assert "has no number" in rows["no-numbers"].problem
    done = bring_in(tmp_path / "kb.duckdb", root, job, [], [], [])
    assert (done.good, len(done.bad)) == (3, 5)
    nothing = tmp_path / "nothing"
    result(nothing, "half", "{")
    with pytest.raises(AutoscoutError, match="none of its 1 rows can be imported") as error:
        bring_in(tmp_path / "kb.duckdb", nothing, job, [], [], [])
    assert error.value.exit_code == 2


def test_overwrite_never_deletes_what_is_somebody_elses(place):
    from autoscout.targets.deepspeed.artefacts import prepared

    mine = place.folder / "autotuning_results"
    mine.mkdir()
    (mine / "thesis.tex").write_text("x")
    job = place.job({**CONFIG, "autotuning": {"enabled": True, "overwrite": True}})
    with pytest.raises(AutoscoutError, match="does not contain results of DeepSpeed's autotuner"):
        prepared(job, place.folder)
    assert (mine / "thesis.tex").exists()


def test_a_killed_rank_is_a_failure_with_its_cause_and_the_session_goes_on(place, tmp_path):
    (place.folder / "train.py").write_text(
        "import os, time\nopen('pid', 'w').write(str(os.getpid()))\ntime.sleep(60)\n"
    )
    job = place.job()

    def kill() -> None:
        path = place.folder / "pid"
        for _ in range(400):
            if path.exists() and path.read_text():
                os.kill(int(path.read_text()), signal.SIGKILL)
                return
            time.sleep(0.05)

    thread = threading.Thread(target=kill)
    thread.start()
    profiler = profiler_of(job)
    found = profiler.run(JobSpace.of_job(job).reference, "it", tmp_path / "run")
    profiler.close()
    thread.join()
    assert found.status in ("killed", "error", "oom", "infrastructure")
    assert found.evidence
