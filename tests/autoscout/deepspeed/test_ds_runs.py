"""DeepSpeed autotuning's experiments and what it leaves, one by one (docs/deepspeed.md): 1, 11, 14 to 25."""

import base64
import json
import os
import shlex
import shutil
import sys
import time
from pathlib import Path

import msgspec
import numpy as np
import pytest
import verbs
from cases import few
from ds_configs import CONFIG
from imported import bring_in

from autoscout.line.launch_line import Line
from autoscout.search.strategy import strategy
from autoscout.space.explain import completed, parse
from autoscout.space.graph import Space
from autoscout.studies.rivals.deepspeed_grid import EARLY_STOPPING
from autoscout.studies.rivals.deepspeed_staged import runs_and_pays, worth_more
from autoscout.targets.command.arguments import Place
from autoscout.targets.deepspeed import artefacts, profiler
from autoscout.targets.deepspeed.arguments import rendered_config, started
from autoscout.targets.deepspeed.autotuning import OBJECTIVES, STRATEGIES, mapped
from autoscout.targets.deepspeed.zero_memory import largest_micro_batch, needed_bytes, stages_that_fit
from autoscout.targets.jobs import JobSpace, load_job, profiler_of
from kb import store
from kb.records import Configuration, Measurement, Objective, Value

sys.path.insert(0, str(Path(__file__).parents[2] / "tools"))
import namespace_hosts


def configuration(job, *words: str) -> Configuration:
    space = JobSpace.of_job(job)
    return completed(space, parse(space, list(words)), space.reference)


def measured(job, tmp_path: Path, *words: str) -> Measurement:
    running = profiler_of(job)
    try:
        return running.run(configuration(job, *words), "it", tmp_path / "run")
    finally:
        running.close()


def run_tune(folder: Path, kb: Path, *more: object, profiles: int | None = 6, path: str = ""):
    before = Path.cwd()
    os.chdir(folder)
    try:
        asked = ["--script", "train.py", "--loss", "loss: ([0-9.]+)", "--kb", kb]
        asked += [] if "--hostfile" in more else ["--gpus", 2]
        asked += ["--profiles", profiles] if profiles else []
        path = path or f"{folder / 'bin'}{os.pathsep}{os.environ['PATH']}"
        return verbs.run("tune", "ds_config.json", *asked, *more, PATH=path)
    finally:
        os.chdir(before)


def persons(folder: Path, config: dict) -> None:
    """A folder with a ds_config and its script; torchrun starts the script once, without torch."""
    shutil.copy(Path(__file__).parent / "pretends.py", folder / "train.py")
    (folder / "ds_config.json").write_text(json.dumps(config))
    path = folder / "bin" / "torchrun"
    path.parent.mkdir()
    path.write_text(f'#!/bin/sh\nwhile [ "${{1%.py}}" = "$1" ]; do shift; done\nexec {sys.executable} "$@"\n')
    path.chmod(0o755)


@pytest.fixture(scope="module")
def session(tmp_path_factory):
    """A tuning of a ds_config, and its training with the winner."""
    folder = tmp_path_factory.mktemp("persons")
    persons(folder, CONFIG)
    done = run_tune(folder, folder / "kb", "--train")
    assert done.returncode == 0, done.stderr
    return folder, done


def test_01_entry_tunes_a_ds_config_with_its_script_and_trains_with_the_winner(session):
    folder, done = session
    assert "training with the winner" in done.stderr
    results = folder / "autotuning_results"
    best = json.loads((results / "ds_config_optimal.json").read_text())
    assert best["train_micro_batch_size_per_gpu"] == 8
    assert best["zero_optimization"]["stage"] == 0
    assert "train.py" in (results / "cmd_optimal.txt").read_text()


@pytest.mark.hosts
@pytest.mark.skipif(bool(namespace_hosts.missing()), reason=f"hosts of namespaces: {namespace_hosts.missing()}")
def test_01_the_winner_trains_on_the_hosts_by_the_interpreter_that_was_named(tmp_path, monkeypatch):
    """torchrun was looked for beside us, and was to start "NODE" of "HEAD" on this machine."""
    persons(tmp_path, CONFIG)
    (tmp_path / "bin" / "python").symlink_to(sys.executable)
    (tmp_path / "hosts").write_text("h0 slots=1\nh1 slots=1\n")
    more = ("--hostfile", "hosts", "--python", tmp_path / "bin" / "python", "--train")
    with namespace_hosts.hosts(2) as hosts:
        path = f"{hosts.bin}{os.pathsep}{os.environ['PATH']}"
        done = run_tune(tmp_path, tmp_path / "kb", *more, profiles=1, path=path)
    assert done.returncode == 0, done.stderr
    trained = done.stdout[done.stdout.rindex("json = ") :]
    assert "CurrSamplesPerSec" in trained
    assert json.loads((tmp_path / "autotuning_results" / "ds_config.json").read_text())["train_batch_size"] == 16


def test_11_files_of_an_experiment(session):
    results, exps = (session[0] / f"autotuning_{name}" for name in ("results", "exps"))
    folders = [path for path in results.iterdir() if path.is_dir()]
    assert len(folders) >= 4
    for folder in folders:
        left = {path.name for path in folder.iterdir()}
        assert {"cmd.txt", "ds_config.json", "exp.json", "stdout.log", "stderr.log", "metrics.json"} <= left
        about = json.loads((exps / f"{folder.name}.json").read_text())
        assert about.keys() == {"name", "ds_config", "num_gpus", "num_nodes", "hostfile"}
        assert about["num_gpus"] == 2
        assert folder.name.startswith(f"z{about['ds_config'].get('zero_optimization', {}).get('stage', 0)}_")


def test_15_what_ran_is_not_run_again(session):
    folder, _ = session
    again = run_tune(folder, folder / "kb", "--json")
    assert again.returncode == 0, again.stderr
    journal = max(folder.glob("*sessions/*/journal.jsonl"), key=os.path.getmtime)
    assert b'"answered"' in journal.read_bytes()


@pytest.mark.parametrize(("trials", "patience", "ran"), few([(3, 5, 3), (50, 0, 28), (50, 3, 4), (50, 2, 3)], 2))
def test_23_a_session_follows_the_number_of_trials_and_the_early_stopping(tmp_path, trials, patience, ran):
    """The reference, which is no trial of the tuner's, is the best already: no trial gains anything."""
    asked = {"enabled": True, "tuner_type": "gridsearch", "tuner_num_trials": trials, "tuner_early_stopping": patience}
    persons(tmp_path, {**CONFIG, "autotuning": asked})
    done = run_tune(tmp_path, tmp_path / "kb", "--warm-start", "off", profiles=None)
    assert done.returncode == 0, done.stderr
    journal = next(tmp_path.glob("*sessions/*/journal.jsonl")).read_text().splitlines()
    started = [e for line in journal if (e := json.loads(line))["type"] == "experiment_started"]
    assert sum(e["purpose"] in ("search", "default") for e in started) == ran


def test_25_summary_and_the_optimal_config(session):
    results = session[0] / "autotuning_results"
    lines = (results / "summary.txt").read_text().splitlines()
    columns = [cell.strip() for cell in lines[0].split("|")[1:-1]]
    assert columns == ["tuning_space", "num_experiments", "best_samples_per_s", "best_exp_name"]
    assert lines[2].startswith("| z0 ")
    assert any(line.startswith("| global ") for line in lines)
    assert "Tuning completed in" in "\n".join(lines)
    assert "autotuning" not in json.loads((results / "ds_config_optimal.json").read_text())


def test_25_the_summary_has_the_runs_in_the_middle(place, tmp_path):
    """It had the last ones, by which the stage's best was another than the best of all, which re-measuring chose."""
    job = place.job()
    wins, other = configuration(job, "mbs=1"), configuration(job, "mbs=8")
    runs = [(wins, 388.0), (other, 234.0), (wins, 257.0), (other, 231.0), (other, 171.0), (wins, 182.0)]
    took = [
        Measurement(configuration=of, name="", context="", status="ok", metrics={job.objective.metric: rate})
        for of, rate in runs
    ]
    results = artefacts.write(job, tmp_path, took, took[-1], 1.0)
    rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in (results / "summary.txt").open()]
    assert [(row[2], row[3][:10]) for row in rows if len(row) == 4][2:] == [("257", "z0_tmbspg1")] * 2


def test_14_launch_with_the_config_as_a_file_or_base64(place, tmp_path):
    job = place.job()
    run = started(job, configuration(job, "stage=2", "mbs=4"), Place(folder="/tmp/f", port="1", iterations="5"))
    assert run.words[-2:] == ["--deepspeed_config", "/tmp/f/ds_config.json"]
    hostile = Place(folder="/tmp/my $runs; 'x'", port="1", iterations="5")
    words = started(job, configuration(job, "stage=2", "mbs=4"), hostile).words
    sent = json.loads(base64.urlsafe_b64decode(words[-1]))
    assert sent["zero_optimization"]["stage"] == 2
    assert measured(job, tmp_path / "a b;c", "stage=2").status == "ok"


def test_14_arg_mappings_patch_the_persons_flags_and_leave_auto():
    line = Line(("train.py", "--bs", "1", "--x=3", "--deepspeed", "c.json"))
    mappings = {"train_micro_batch_size_per_gpu": "--bs", "gradient_accumulation_steps ": " --gas", "y": "--x"}
    values = {"train_micro_batch_size_per_gpu": 8, "gradient_accumulation_steps": 2, "y": 4, "z": "auto"}
    patched = mapped(line, {**mappings, "z": "--z"}, values)
    assert patched.words == ("train.py", "--bs", "8", "--x=4", "--deepspeed", "c.json", "--gas", "2")


def test_15_overwrite_empties_what_was_left_and_nothing_else(place):
    job = place.job({**CONFIG, "autotuning": {"enabled": True, "overwrite": True}})
    exps, results = artefacts.prepared(job, place.folder)
    (results / "old").mkdir()
    artefacts.prepared(job, place.folder)
    assert not (results / "old").exists()
    kept = place.job({**CONFIG, "autotuning": {"enabled": True}})
    (exps / "old.json").write_text("{}")
    artefacts.prepared(kept, place.folder)
    assert (exps / "old.json").exists()


def test_16_an_error_is_what_ended_the_run(place, tmp_path):
    found = measured(place.job(), tmp_path, "stage=1")  # prints "0 errors so far" to stderr
    assert (found.status, found.evidence) == ("ok", "")
    failed = measured(place.job(flags="--fails-at-stage 1"), tmp_path, "stage=1")
    assert failed.status == "oom"


def test_17_every_process_of_an_experiment_is_ended(place, tmp_path):
    name = f"sleeper{os.getpid()}"
    (place.folder / "train.py").write_text(
        f"import subprocess\nsubprocess.Popen(['bash', '-c', 'exec -a {name} sleep 600'])\n"
        + (Path(__file__).parent / "pretends.py").read_text()
    )
    assert measured(place.job(), tmp_path, "stage=0").status == "ok"
    time.sleep(0.2)
    lines = [p.read_bytes() for p in Path("/proc").glob("[0-9]*/cmdline") if p.parent.exists()]
    assert not [line for line in lines if line.startswith(name.encode())]


def test_18_model_info_run(place, tmp_path):
    job = place.job()
    info = profiler.model_info(job, JobSpace.of_job(job).reference, tmp_path / profiler.INFO, 60)
    assert info == {"num_params": 1000, "trainable_num_params": 1000, "activation_mem_per_gpu": 64, "rank": 0}
    sent = json.loads((tmp_path / profiler.INFO / "ds_config.json").read_text())
    assert (sent["train_micro_batch_size_per_gpu"], sent["zero_optimization"]["stage"]) == (1, 3)


def test_19_memory_by_stage_and_what_fits():
    assert [needed_bytes(1000, stage, 4) for stage in range(4)] == [16000, 10000, 7000, 4000]
    assert [needed_bytes(1000, stage, 4, half=True) for stage in range(4)] == [20000, 8000, 6500, 5000]
    assert needed_bytes(1000, 0, 4, mp_size=2) == 8000
    assert stages_that_fit(1000, 100, 9000, 4) == [2, 3]
    assert largest_micro_batch(9000, 7000, 100) == 20
    assert largest_micro_batch(7050, 7000, 100) == 0


def test_19_stages_and_micro_batches_that_cannot_fit_are_not_in_the_space(place):
    info = {"num_params": 10**9, "activation_mem_per_gpu": 2**30}
    asked = {"enabled": True, "model_info": info}
    config = {**CONFIG, "autotuning": asked, "zero_optimization": {"stage": "auto"}}
    del config["train_micro_batch_size_per_gpu"]
    path = place.job_file(config)
    path.write_text(path.read_text().replace("count = 2 }", "count = 2, memory_gib = 13 }"))
    space = JobSpace.of_job(load_job(path))
    assert space.knob["stage"].values == (1, 2, 3)
    assert space.knob["mbs"].values == (1, 2, 4)


def small_table(cost_of) -> Space:
    rows: list[dict[str, Value]] = [
        {"stage": s, "mbs": m, "bucket": b} for s in range(4) for m in (1, 2, 4, 8) for b in (1, 2)
    ]
    return Space.from_table(rows, ["stage"], ["mbs", "bucket"], Objective(minimize="step_time_s"))


def asked_by(name: str, cost_of, seed: int = 0, patience: int | None = None) -> list[dict]:
    space = small_table(cost_of)
    chosen, asked = strategy(name, space, seed=seed, patience=patience), []
    while batch := chosen.ask():
        for c in batch:
            cost = cost_of(c.knobs)
            asked.append(c.knobs)
            status = "oom" if cost is None else "ok"
            found = Measurement(configuration=c, name="", context="", status=status)
            chosen.tell([msgspec.structs.replace(found, metrics={} if cost is None else {"step_time_s": cost})])
    return asked


def test_20_stages_in_order_until_one_runs_no_larger_micro_batch():
    def fits(knobs):  # each stage runs twice the micro batch of the one before, the last one less
        most = {0: 2, 1: 4, 2: 8, 3: 1}[knobs["stage"]]
        return None if knobs["mbs"] > most else (5 - knobs["stage"]) + 1 / knobs["mbs"] + knobs["bucket"] / 100

    asked = asked_by("deepspeed-staged", fits)
    order = list(dict.fromkeys(k["stage"] for k in asked[1:]))  # the first is the reference, as for every strategy
    assert order == [0, 1, 2, 3]
    last = [k for k in asked[1:] if k["stage"] == 3]
    assert len(last) < 8  # it ran no larger micro batch than stage 2: the end


def test_21_micro_batch_search_between_what_fits_and_what_pays():
    def search(metric):
        trial, seen = runs_and_pays([1, 2, 4, 8, 16, 32, 64]), []
        size = next(trial)
        while True:
            seen.append(size)
            try:
                size = trial.send(metric(size))
            except StopIteration as found:
                return found.value, seen

    assert search(lambda m: None)[0] == (0, 0)
    assert search(lambda m: 10.0 * m) == ((1, 64), [1, 64])
    (_, most), seen = search(lambda m: 10.0 * m if m <= 16 else None)
    assert most == 16
    assert len(seen) < 7
    (_, most), _ = search(lambda m: min(10.0 * m, 40.0) if m < 64 else None)  # more than 4 gains nothing
    assert most < 64
    assert worth_more([1, 2, 4, 8, 16, 24, 28, 32], 32) == [16, 24, 28, 32]


def test_22_fast_mode_tunes_stage_and_micro_batch_only(place):
    base = {k: v for k, v in CONFIG.items() if k != "train_micro_batch_size_per_gpu"}
    fast = {**base, "zero_optimization": {"stage": "auto"}, "autotuning": {"enabled": True}}
    assert JobSpace.of_job(place.job(fast)).knob.keys() == {"mbs", "stage"}
    slow = {**fast, "autotuning": {"enabled": True, "fast": False}}
    assert {"mbs", "stage", "reduce_bucket", "allgather_bucket", "overlap_comm"} <= JobSpace.of_job(
        place.job(slow)
    ).knob.keys()


def test_23_three_tuners():
    def cost(knobs):
        return 1 + knobs["stage"] + 1 / knobs["mbs"] + knobs["bucket"] / 100

    assert STRATEGIES == {
        "gridsearch": "deepspeed-grid",
        "random": "deepspeed-random",
        "model_based": "deepspeed-model",
    }
    grid = asked_by("deepspeed-grid", cost)[1:]
    assert grid == sorted(grid, key=lambda k: (k["stage"], k["mbs"], k["bucket"]))
    one, two = asked_by("deepspeed-random", cost), asked_by("deepspeed-random", cost, seed=1)
    assert one != two
    best = min(range(len(one)), key=lambda i: cost(one[i]))
    assert len(one) == best + EARLY_STOPPING  # the best is one of the five, as in base_tuner.py


@pytest.mark.parametrize("name", ["deepspeed-grid", "deepspeed-random", "deepspeed-model"])
@pytest.mark.parametrize("patience", [0, 1, 2, 3, 9, 20])
def test_23_early_stopping_of_any_length(name, patience):
    if name == "deepspeed-model":
        pytest.importorskip("xgboost")

    def cost(knobs):
        return 9 - knobs["stage"] + 1 / knobs["mbs"] + (knobs["bucket"] == 2) * (knobs["mbs"] % 4)

    best, *trials = (cost(k) for k in asked_by(name, cost, seed=2, patience=patience))  # the reference is no trial
    best_at, ends = 0, []
    for i, value in enumerate(trials):  # as base_tuner.py counts
        best, best_at = (value, i) if value < best else (best, best_at)
        ends.append(patience > 0 and i + 1 >= best_at + patience)
    assert not any(ends[:-1])
    assert ends[-1] or len(trials) == 31


def test_23_the_model_based_tuner_ranks_with_xgboost():
    pytest.importorskip("xgboost")

    def cost(knobs):
        return None if knobs["stage"] == 3 else 1 + knobs["stage"] + 1 / knobs["mbs"] + knobs["bucket"] / 100

    ends = [min(c for k in asked_by("deepspeed-model", cost, seed) if (c := cost(k))) for seed in range(8)]
    assert np.median(ends) <= 1.26  # stage 0, mbs 8 or 4


def test_24_metrics_in_their_words_and_ours(place, tmp_path):
    job = place.job()
    found = measured(job, tmp_path, "stage=1", "mbs=8")
    assert found.metrics["step_time_s"] == pytest.approx(16 / found.metrics["samples_per_s"])
    assert found.metrics["peak_memory_gib"] == 0.52
    told = artefacts.metrics_of(job, found, 16)
    assert told["throughput"] == found.metrics["samples_per_s"]
    assert told["latency"] == pytest.approx(found.metrics["step_time_s"] * 1e6)
    assert OBJECTIVES["latency"] == {"minimize": "step_time_s"}
    flops = 'metrics = { flops_per_gpu = { file = "{folder}/metrics.json", json = "FLOPS_per_gpu" } }'
    found = measured(place.job(more=flops, goal='maximize = "flops_per_gpu"'), tmp_path, "stage=1", "mbs=8")
    assert found.metrics["flops_per_gpu"] == pytest.approx(1e9 / (0.004 * (1.3 + 1 / 8) * 1.05))


def test_ours_into_theirs_and_back(place, tmp_path):
    job = place.job()
    one = measured(job, tmp_path, "stage=2", "mbs=4")
    two = msgspec.structs.replace(
        measured(place.job(flags="--fails-at-stage 3"), tmp_path, "stage=3", "mbs=4"), context=one.context
    )
    artefacts.write(job, place.folder, [one, two], one, 12.0)
    done = bring_in(tmp_path / "kb.duckdb", place.folder / "autotuning_results", job, [], [], [])
    assert (done.reader, done.good, done.valid) == ("deepspeed", 2, 2)
    back = {m.configuration.id: m for _, m in store.measurements(tmp_path / "kb.duckdb")}
    assert back[one.configuration.id].metrics["samples_per_s"] == pytest.approx(one.metrics["samples_per_s"])
    assert back[two.configuration.id].status == "oom"


def test_an_export_is_what_was_measured(place):
    job = place.job()
    sent = rendered_config(job, configuration(job, "stage=2", "mbs=4"))
    assert "steps_per_print" not in sent
    assert (sent["train_micro_batch_size_per_gpu"], sent["gradient_accumulation_steps"]) == (4, 2)
    line = artefacts.command(job, configuration(job, "stage=2"), Path("/x/best.json"))
    assert shlex.split(line)[-1] == "/x/best.json"
