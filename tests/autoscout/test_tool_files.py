"""Files that tools really wrote (tool_files/; the tools' versions and commands stand in importing/tools/*.toml) become
what they say: values, units, status, load, date and cost."""

import json
import shutil
import sqlite3
import sys
from pathlib import Path

import msgspec
import pytest
from imported import bring_in, open_source

from autoscout.importing.bring_in import ImportOptions, bring_in_all
from autoscout.importing.converting import Shown
from autoscout.importing.tool_file import read_tool, shipped_tools
from autoscout.job.presets import models
from autoscout.space.graph import Space
from autoscout.space.knob import Knob
from autoscout.targets.jobs import load_job
from kb import query, store
from kb.records import AutoscoutError, Cluster, Job, Model, Node, Objective, Traffic

sys.path.insert(0, "tests/tools")
import tool_files_page

FILES = Path(__file__).parent / "tool_files"
CLOSED = Job(
    name="chat",
    target="vllm",
    task="serve",
    model=Model(layers=4, hidden=256, heads=4, kv_heads=2, ffn=688, vocab=2048, gated=True),
    traffic=Traffic(concurrency=2, input_len=64, output_len=16, requests=8),
    cluster=Cluster(nodes=[Node(device="cpu", count=1)]),
    objective=Objective(maximize="output_tokens_per_s"),
)
AT_4 = msgspec.structs.replace(CLOSED, traffic=Traffic(rate=4.0, input_len=64, output_len=16, requests=8))
TRAINING = load_job("fixtures/jobs/tiny-gpt-cpu.toml")
KNOB = ["max_num_seqs=16"]


def shown(tmp_path: Path, file: str | Path, job: Job, *maps: str, **options: list[str]) -> list[Shown]:
    given = ImportOptions(maps, options.get("sets", []), options.get("units", []), dry_run=True)
    [done] = bring_in_all(tmp_path / "kb.duckdb", FILES / file, job, given).imports
    return done.shown


def refused(tmp_path: Path, file: str, job: Job, sentence: str, *maps: str) -> None:
    with pytest.raises(AutoscoutError, match=sentence):
        shown(tmp_path, file, job, *maps, sets=KNOB if job.task == "serve" else ["mbs=2"])


def about(row: Shown, **expected: float) -> None:
    assert row.status == "ok"
    assert {name: row.metrics[name] for name in expected} == {n: pytest.approx(v) for n, v in expected.items()}


def database(tmp_path: Path, name: str) -> Path:
    path = tmp_path / f"{name}.db"
    with sqlite3.connect(path) as con:
        con.executescript((FILES / name / ("study.sql" if name == "optuna" else "mlflow.sql")).read_text())
    return path


def test_vllm_bench_serve(tmp_path: Path):
    [row] = shown(tmp_path, "vllm/conc2.json", CLOSED)  # max_num_seqs by --metadata
    about(row, ttft_mean_ms=794.13799, ttft_p50_ms=826.78507, tpot_p99_ms=580.68520, output_tokens_per_s=4.5566065)
    assert (row.name, row.cost_s) == ("max_num_seqs16", pytest.approx(84.27324))
    assert time_of(row) == "2026-11-28 15:53:46"
    assert [each.metrics["output_tokens_per_s"] for each in shown(tmp_path, "vllm/append.json", CLOSED, sets=KNOB)] == [
        pytest.approx(17.001706),
        pytest.approx(27.723825),
    ]
    about(shown(tmp_path, "vllm/detailed.json", CLOSED, sets=KNOB)[0], goodput_rps=18.510402, e2el_p90_ms=129.82307)
    about(shown(tmp_path, "vllm/rate4.json", AT_4, sets=KNOB)[0], requests_per_s=1.6252382)
    refused(tmp_path, "vllm/rate4.json", CLOSED, "with 4 requests/s, but the job has at most 2 requests at a time")
    refused(tmp_path, "vllm/ramp.json", AT_4, r"ramped up \(linear\), but the job has 4 requests/s")


def test_a_request_that_vllm_bench_says_failed(tmp_path: Path):
    """Exit 0, and percentiles of the seven others."""
    [row] = shown(tmp_path, "vllm/failed.json", CLOSED, sets=KNOB)
    assert (row.status, row.evidence, row.metrics) == ("error", "1 of 8 requests failed", {})


def test_guidellm(tmp_path: Path):
    [row] = shown(tmp_path, "guidellm/b.json", CLOSED, sets=KNOB)
    about(row, ttft_mean_ms=545.30564, tpot_mean_ms=170.00819, e2el_mean_ms=3103.89727, output_tokens_per_s=10.238903)
    assert row.cost_s == pytest.approx(12.501339)
    refused(tmp_path, "guidellm/b.json", AT_4, "with at most 2 requests at a time, but the job has 4 requests/s")
    told = json.loads((FILES / "guidellm" / "b.json").read_text())
    told["benchmarks"][0]["metrics"]["request_totals"] |= {"successful": 5, "errored": 2, "incomplete": 1}
    (tmp_path / "b.json").write_text(json.dumps(told))
    [row] = shown(tmp_path, tmp_path / "b.json", CLOSED, sets=KNOB)
    assert (row.status, row.evidence, row.metrics) == ("error", "3 of 8 requests failed", {})


def test_aiperf(tmp_path: Path):
    """Its own output_token_throughput of 7.37 counts 158 tokens, of answers that it tokenized again; they had 128."""
    [row] = shown(tmp_path, "aiperf/profile_export_aiperf.json", CLOSED, sets=KNOB)
    about(row, ttft_p50_ms=358.83049, itl_mean_ms=325.19400, output_tokens_per_s=128 / 21.395087616)
    assert "tpot_mean_ms" not in row.metrics
    told = json.loads((FILES / "aiperf" / "profile_export_aiperf.json").read_text())
    later = tmp_path / "profile_export_aiperf.json"
    later.write_text(json.dumps(told | {"time_to_first_token": told["time_to_first_token"] | {"unit": "sec"}}))
    refused(tmp_path, str(later), CLOSED, "states time_to_first_token.unit = sec, but its values are read as ms")
    later.write_text(json.dumps(told | {"completed_request_count": {"unit": "requests", "avg": 9.0}}))
    [row] = shown(tmp_path, later, CLOSED, sets=KNOB)
    assert (row.status, row.evidence, row.metrics) == ("error", "1 of 9 requests failed", {})


def test_inference_perf(tmp_path: Path):
    """A closed loop's requested_rate is its number of requests by the second."""
    file = "inference-perf/{}/stage_0_lifecycle_metrics.json"
    [row] = shown(tmp_path, file.format("closed"), CLOSED, sets=KNOB)
    about(row, ttft_mean_ms=280.59279, output_tokens_per_s=128 / 6.130430370999875)
    at_8 = msgspec.structs.replace(CLOSED, traffic=Traffic(rate=8.0, input_len=64, output_len=16))
    refused(tmp_path, file.format("closed"), at_8, "with at most 2 requests at a time, but the job has 8 requests/s")
    at_2 = msgspec.structs.replace(CLOSED, traffic=Traffic(rate=2.0, input_len=64, output_len=16))
    refused(tmp_path, file.format("even"), at_2, r"with 2 requests/s \(even arrivals\), but the job has 2 requests/s")


def test_sglang_bench_serving(tmp_path: Path):
    [row] = shown(tmp_path, "sglang/conc2.jsonl", CLOSED, sets=KNOB)
    about(row, ttft_p99_ms=249.13486, e2el_mean_ms=662.11583, output_tokens_per_s=48.120087)


def test_inferencex(tmp_path: Path):
    """Seconds, and throughputs of a device."""
    row, told = json.loads((FILES / "inferencex" / "agg_conc2.json").read_text()), tmp_path / "agg.json"
    [made] = shown(tmp_path, "inferencex/agg_conc2.json", CLOSED)
    about(made, ttft_mean_ms=794.13799, ttft_p99_ms=1527.36641, tpot_p99_ms=580.68520, output_tokens_per_s=4.5566065)
    told.write_text(json.dumps([row | {"tp": 2, "output_tput_per_gpu": 2.0}, row | {"dp_attention": "true"}]))
    [half] = shown(tmp_path, told, CLOSED)
    assert (half.name, half.metrics["output_tokens_per_s"]) == ("tp2", 4.0)
    for changed, sentence in (
        ({"framework": "sglang"}, "was measured with sglang, but the job's target is vllm"),
        ({"conc": 4}, "at most 4 requests at a time, but the job has at most 2"),
        ({"dp_attention": "true"}, "has data parallel attention"),
        ({"ep": 8}, "ep is '7.0', which is neither true nor false"),
    ):
        told.write_text(json.dumps(row | changed))
        refused(tmp_path, str(told), CLOSED, sentence)


@pytest.mark.parametrize("kind", ["sqlite", "journal"])
def test_optuna(tmp_path: Path, kind: str):
    """NaN and an exception are both FAIL; infinity is no measurement; a deleted study is none, either."""
    path = database(tmp_path, "optuna") if kind == "sqlite" else FILES / "optuna" / "journal.log"
    job = msgspec.structs.replace(CLOSED, space=msgspec.structs.replace(CLOSED.space))
    given = ImportOptions(["value=output_tokens_per_s"], dry_run=True)
    [done] = bring_in_all(tmp_path / "kb.duckdb", path, job, given).imports
    assert [row.status for row in done.shown] == ["ok", "error", "error", "ok", "ok"]
    assert [row.metrics.get("output_tokens_per_s") for row in done.shown] == [87.68, None, None, 50.24, 90.24]
    assert sorted(bad.reason for bad in done.bad) == [
        "is pruned, not complete",
        "is waiting, not complete",
        "value is 'inf', which is not a number",
    ]
    assert done.columns["user_ttft_p99_ms"] == "number user_ttft_p99_ms"
    assert all(0 < row.cost_s < 1 and row.at > 1.79e9 for row in done.shown)
    with pytest.raises(AutoscoutError, match="choose a study with --reader optuna:NAME; the studies are tune"):
        bring_in(tmp_path / "kb.duckdb", path, job, [], [], [], "optuna:old")


def test_optunas_table_of_trials(tmp_path: Path):
    """A pruned trial's last report stands there as its value, and was taken for a measurement."""
    given = ImportOptions(["value=output_tokens_per_s"], dry_run=True)
    [done] = bring_in_all(tmp_path / "kb.duckdb", FILES / "optuna" / "frame.csv", CLOSED, given).imports
    assert [row.status for row in done.shown] == ["ok", "error", "error", "ok", "ok"]
    assert [row.metrics.get("output_tokens_per_s") for row in done.shown] == [80.0, None, None, 85.0, 86.0]
    assert sorted(bad.reason for bad in done.bad) == [
        "is pruned, not complete",
        "is waiting, not complete",
        "value is 'inf', which is not a number",
    ]
    assert done.columns["params_max_num_seqs"] == "knob max_num_seqs"
    assert all(0 < row.cost_s < 1 and row.at > 1.79e9 for row in done.shown)


def test_two_studies_in_one_storage(tmp_path: Path):
    path = database(tmp_path, "optuna")
    with sqlite3.connect(path) as con:
        con.execute("INSERT INTO studies VALUES (2, 'other')")
        con.execute("INSERT INTO trials SELECT 9, number, 2, state, NULL, NULL FROM trials WHERE trial_id = 1")
        con.execute(
            "INSERT INTO trial_params SELECT 99, 9, param_name, param_value, distribution_json FROM trial_params"
        )
    with pytest.raises(AutoscoutError, match="choose a study with --reader optuna:NAME; the studies are tune, other"):
        bring_in(tmp_path / "kb.duckdb", path, CLOSED, [], [], [])


def test_mlflow(tmp_path: Path):
    """NaN is stored as 0.0 beside is_nan; a deleted run stays in the database."""
    [done] = bring_in_all(
        tmp_path / "kb.duckdb", database(tmp_path, "mlflow"), TRAINING, ImportOptions(dry_run=True)
    ).imports
    assert [(row.name, row.status, row.metrics.get("step_time_s")) for row in done.shown] == [
        ("mbs1", "ok", 0.515),
        ("mbs2", "ok", 0.615),
        ("mbs4", "error", 0.715),
    ]
    assert [bad.reason for bad in done.bad] == ["the run has not ended"]
    assert [row.cost_s for row in done.shown] == [pytest.approx(each, abs=1e-3) for each in (0.2, 0.22, 0.142)]


def test_wandb_offline(tmp_path: Path):
    rows = [shown(tmp_path, f"wandb/run-{i}.wandb", TRAINING)[0] for i in (1, 2)]
    assert [(row.name, row.status, row.metrics["step_time_s"]) for row in rows] == [
        ("mbs4", "ok", 0.52),  # the median of 0.51, 0.52 and 0.53
        ("mbs8", "error", 0.7),
    ]
    torn = tmp_path / "run-3.wandb"
    torn.write_bytes((FILES / "wandb" / "run-1.wandb").read_bytes()[:-60])
    with pytest.raises(AutoscoutError, match="does not state how the run ended"):
        shown(tmp_path, torn, TRAINING)


def test_ray_tune(tmp_path: Path):
    [done] = bring_in_all(tmp_path / "kb.duckdb", FILES / "ray", TRAINING, ImportOptions(dry_run=True)).imports
    assert [(row.name, row.status, row.metrics.get("step_time_s")) for row in done.shown] == [
        ("mbs2", "ok", 0.21000000000000002),  # its last report
        ("mbs4", "oom", None),
    ]
    assert done.shown[1].evidence == "RuntimeError: CUDA out of memory. Tried"
    assert [bad.reason for bad in done.bad] == [
        "step_time_s 0.11 and tokens_per_s 100 give 11 tokens a step, but the job has 2,048; "
        "check the units of both (--unit COLUMN=UNIT)"
    ]


def test_a_failure_of_another_job_is_none_of_a_configuration_that_was_only_set(tmp_path: Path):
    """Ray's run out of memory was of a training job's mbs, which a server has not."""
    refused(tmp_path, "ray/trial-3", CLOSED, "the run failed, and its row has neither a knob of the job nor a load")


def test_kernel_tuner(tmp_path: Path):
    """The compiler refused BS 3 and ended the run: its cache is no JSON."""
    space = Space([knob("BS", 1, 2, 64), knob("U", 1, 2)], [], {})
    job = msgspec.structs.replace(TRAINING, name="kernel")
    source = open_source(FILES / "kernel-tuner" / "k.json", job, space)
    rows = list(source.rows)
    assert [(row.cells["BS"], row.cells["U"], row.problem) for row in rows] == [
        (1, 1, ""),
        (1, 2, ""),
        (2, 1, ""),
        (2, 2, ""),
    ]
    assert rows[0].cells["cost_s"] == pytest.approx((483.574408 + 0.386266) / 1000)


@pytest.mark.parametrize(("which", "batch", "seconds"), [("hf", 4, 1.9712 / 6), ("trl", 2, 3.1438 / 4)])
def test_hf_trainers(tmp_path: Path, which: str, batch: int, seconds: float):
    file = f"{which}/trainer_state.json"
    job = msgspec.structs.replace(TRAINING, traffic=Traffic(seq_len=32, global_batch=batch))
    [row] = shown(tmp_path, file, job, sets=["mbs=2"])
    about(row, step_time_s=seconds)
    refused(tmp_path, file, TRAINING, f"the result is of a different job: its global_batch is {batch}.*, not 16")


def test_a_run_of_the_trainer_that_was_evaluated_at_its_end_has_ended(tmp_path: Path):
    state = json.loads((FILES / "hf" / "trainer_state.json").read_text())
    state["log_history"] += [{"eval_loss": 2.5, "eval_runtime": 4.0}, {"eval_other_loss": 2.6, "eval_runtime": 4.0}]
    path = tmp_path / "trainer_state.json"
    path.write_text(json.dumps(state))
    job = msgspec.structs.replace(TRAINING, traffic=Traffic(seq_len=32, global_batch=4))
    [row] = shown(tmp_path, path, job, sets=["mbs=2"])
    about(row, step_time_s=1.9712 / 6)


def test_litgpt(tmp_path: Path):
    """`step` counts iterations: two of them, of one micro batch each, are a step of the optimizer."""
    job = msgspec.structs.replace(
        TRAINING,
        traffic=Traffic(seq_len=32, global_batch=4),
        cluster=Cluster(nodes=[Node(device="cpu", count=1)]),
    )
    path = FILES / "litgpt" / "logs" / "csv" / "version_0" / "metrics.csv"
    [row] = shown(tmp_path, path, job, sets=["mbs=2"])
    times = [float(line.split(",")[2]) for line in path.read_text().splitlines()[1:]]
    about(row, step_time_s=2 * sum(times[2:]) / 8)
    refused(tmp_path, "litgpt/logs/csv/version_0/metrics.csv", TRAINING, "its global_batch is 4, not 16")


def test_torchtitan(tmp_path: Path):
    """On CPUs its memory is a little below nothing."""
    none = "memory/max_reserved(GiB)=-"
    [row] = shown(tmp_path, "titan/events.out.tfevents.1", TRAINING, none, sets=["mbs=2"])
    about(row, step_time_s=(0.57442349 + 0.58081687) / 2)
    assert (row.cost_s, row.name) == (pytest.approx(3.36, abs=2), "mbs2")


def test_vllm_bench_throughput_and_latency(tmp_path: Path):
    """Everything at once is the load of a job whose users are as many as its requests, and of no other."""
    all_at_once = msgspec.structs.replace(
        CLOSED, traffic=Traffic(concurrency=8, input_len=64, output_len=16, requests=8)
    )
    [row] = shown(tmp_path, "vllm/throughput.json", all_at_once, sets=KNOB)
    about(row, requests_per_s=1.13418029, total_tokens_per_s=91.3015130)
    assert "output_tokens_per_s" not in row.metrics
    refused(
        tmp_path,
        "vllm/throughput.json",
        CLOSED,
        "with all requests at once, but the job has at most 2 requests at a time",
    )
    longer = msgspec.structs.replace(
        all_at_once, traffic=Traffic(concurrency=8, input_len=512, output_len=64, requests=8)
    )
    refused(tmp_path, "vllm/throughput.json", longer, "has 80 total tokens per request, but the job has 576")
    refused(tmp_path, "vllm/latency.json", all_at_once, "in a batch of unknown size")


def test_a_sweep(tmp_path: Path):
    """summary.json repeats the runs, and is read where it is given."""
    for given in (FILES / "sweep", FILES / "sweep" / "SERVE--max_num_seqs=8" / "summary.json"):
        rows = shown(
            tmp_path,
            given,
            msgspec.structs.replace(CLOSED, traffic=msgspec.structs.replace(CLOSED.traffic, requests=4)),
        )
        assert [row.name for row in rows] == ["max_num_seqs8", "max_num_seqs8"]
    failure = {"error_type": "RuntimeError", "error": "CUDA out of memory", "serve_overrides": {"max_num_seqs": 512}}
    path = tmp_path / "SERVE--max_num_seqs=512-failure.json"
    path.write_text(json.dumps(failure | {"bench_overrides": {}}))
    [row] = shown(tmp_path, path, CLOSED)
    assert (row.name, row.status, row.evidence) == ("max_num_seqs512", "oom", "CUDA out of memory")
    path.write_text(json.dumps(failure | {"bench_overrides": {"max_concurrency": 64}}))
    refused(tmp_path, str(path), CLOSED, "at most 64 requests at a time, but the job has at most 2")


def test_tensorboard(tmp_path: Path):
    [row] = shown(
        tmp_path,
        "tensorboard/run/events.out.tfevents.1",
        TRAINING,
        "iteration-time=step_time_s",
        sets=["mbs=2"],
        units=["iteration-time=s"],
    )
    about(row, step_time_s=0.52)
    [row] = shown(
        tmp_path,
        "tensorboard/hparams/events.out.tfevents.1",
        TRAINING,
        "hparam/step_time_s=step_time_s",
        units=["hparam/step_time_s=s"],
    )
    assert row.name == "mbs4"


def test_estimates_are_predictions_of_their_own_load_and_never_the_best(tmp_path: Path):
    """Each row of aiconfigurator's table has a concurrency of its own: three candidates are of three loads."""
    kb = tmp_path / "kb.duckdb"
    job = of_preset("qwen3-32b", Traffic(concurrency=64, input_len=4000, output_len=500))
    [done] = bring_in_all(kb, FILES / "aiconfigurator", job, ImportOptions()).imports
    assert [bad.reason for bad in done.bad] == [
        "the result was measured with at most 32 requests at a time, but the job has at most 64 requests at a time",
        "the result was measured with at most 10 requests at a time, but the job has at most 64 requests at a time",
    ]
    stored = "SELECT fidelity, max_num_seqs, tp, metrics->>'e2el_mean_ms', output_tokens_per_s FROM runs"
    assert query.run(kb, stored).rows == [("predicted", 64, 4, "14219.514", 2245.928)]
    assert (store.measurements(kb), query.run(kb, "FROM best").rows) == ([], [])


def test_a_folder_of_mixed_results(tmp_path: Path):
    """What can be read is, once; the rest is named."""
    folder, kb = tmp_path / "results", tmp_path / "kb.duckdb"
    for name in ("vllm", "aiperf", "inference-perf", "hf"):
        shutil.copytree(FILES / name, folder / name)
    (folder / "half.json").write_text((FILES / "vllm" / "conc2.json").read_text()[:300])
    (folder / "notes.txt").write_text("nothing")
    first = bring_in_all(kb, folder, CLOSED, ImportOptions(sets=KNOB))
    assert {done.reader: (done.good, done.rows) for done in first.imports} == {
        "aiperf": (1, 1),
        "inference-perf": (1, 2),
        "vllm-bench-serve": (6, 8),
        "hf-trainer": (0, 1),
        "vllm-bench-latency": (0, 1),
        "vllm-bench-throughput": (0, 1),
    }
    assert sorted(bad.where for bad in first.left) == ["half.json", "notes.txt"]
    before = store.measurements(kb)
    again = bring_in_all(kb, folder, CLOSED, ImportOptions(sets=KNOB))
    assert [done.id for done in again.imports] == [done.id for done in first.imports]
    assert sum(done.new for done in again.imports) == 0
    assert store.measurements(kb) == before


def test_a_tool_of_a_person(tmp_path: Path):
    """A reader beside the knowledge base, or by its file."""
    (tmp_path / "mine.out").write_text(
        json.dumps({"runs": [{"cfg": {"mbs": 2}, "secs": {"step": "500"}, "ended": "bad"}]})
    )
    reader = tmp_path / "mine.toml"
    reader.write_text(
        """tool = "mine"
versions = "1"
held = [{ version = "1", command = "mine" }]
[file]
kind = "json"
names = ["*.out"]
needs = ["runs"]
rows = "runs"
settings = ["cfg"]
[derived]
"step_time_s@ms" = "secs.step"
[status]
of = "ended"
words = { good = "ok" }
left_out = { bad = "ended badly" }
"""
    )
    with pytest.raises(AutoscoutError, match="runs\\[0\\]: ended badly"):
        bring_in(tmp_path / "kb.duckdb", tmp_path / "mine.out", TRAINING, [], [], [], str(reader))
    (tmp_path / "readers").mkdir()
    reader.rename(tmp_path / "readers" / "mine.toml")
    (tmp_path / "mine.out").write_text((tmp_path / "mine.out").read_text().replace("bad", "good"))
    [row] = shown(tmp_path, tmp_path / "mine.out", TRAINING)
    about(row, step_time_s=0.5)


@pytest.mark.parametrize(
    ("changed", "sentence"),
    [
        ('nedes = ["a"]\n', "the key file.nedes is unknown; did you mean 'needs'"),
        ('[says]\nspeed = "a"\n', "says.speed must be one of rate"),
        ('[derived]\nx = "a b"\n', "'a b' must be a path, or several"),
    ],
)
def test_mistakes_in_a_reader_are_named(tmp_path: Path, changed: str, sentence: str):
    path = tmp_path / "x.toml"
    path.write_text(f'tool = "x"\nversions = "1"\nheld = []\n[file]\nkind = "json"\n{changed}')
    with pytest.raises(AutoscoutError, match=sentence):
        read_tool(path)


def test_every_tool_says_what_it_was_held_against():
    assert len(shipped_tools()) >= 16
    for tool in shipped_tools():
        assert tool.held, tool.name
        assert tool.used, tool.name


def test_the_page_of_tools_is_made_from_their_files():
    pages = [Path(name).read_text() for name in ("docs/imports.md", "docs/lab/imports.md")]
    made = [tool_files_page.page(), tool_files_page.lab_page()]
    assert made == pages, "run: PYTHONPATH=. python tests/tools/tool_files_page.py"


def of_preset(preset: str, traffic: Traffic) -> Job:
    model = msgspec.convert(models()[preset], Model)
    cluster = Cluster(nodes=[Node(device="h200", count=4)])
    return msgspec.structs.replace(CLOSED, model=model, traffic=traffic, cluster=cluster)


def knob(name: str, *values: int) -> Knob:
    return Knob(name=name, kind="dense", layer="", values=values, meaning="", sets=name)


def time_of(row: Shown) -> str:
    from datetime import datetime

    return datetime.fromtimestamp(row.at).isoformat(" ")
