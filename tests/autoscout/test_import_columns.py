"""What a table's columns are: which knob, where several are set by one flag, and how runs ended."""

import gzip
import json
from pathlib import Path
from typing import Any

import pytest
from imported import bring_in

from autoscout.deploy.recommendation import best_of_job
from autoscout.importing.bring_in import ImportOptions, bring_in_all
from autoscout.importing.converting import Done
from autoscout.importing.mapping import uses
from autoscout.targets.jobs import JobSpace, load_job
from kb.records import AutoscoutError


def test_a_flag_is_the_knob_that_always_acts():
    """`tensor_parallel_size` became the degree of engines that read prompts alone: no imported row was valid."""
    space = JobSpace.of_job(load_job(Path("fixtures/jobs/llama-3-8b-serve.toml")))
    columns = ["tensor_parallel_size", "pipeline_parallel_size", "max_num_seqs", "prefill_tp"]
    found = uses(columns, space, {}, [], [])
    assert [found[column].name for column in columns] == ["tp", "pp", "max_num_seqs", "prefill_tp"]


@pytest.mark.parametrize(
    "text",
    [
        "status,start_time,params.mbs,params.tp,metrics.step_time_s\n"
        "FINISHED,x,1,2,5.2\nFAILED,x,2,1,9.9\nRUNNING,x,4,2,3\n",
        '"Name","State","mbs","tp","step_time_s"\n"a","finished",1,2,5.2\n"b","crashed",2,1,9.9\n"c","running",4,2,3\n',
        "step_time_s,state,config/mbs,config/tp\n5.2,done,1,2\n9.9,error,2,1\n3,pending,4,2\n",
    ],
)
def test_tables_that_trackers_export_say_how_runs_ended(tmp_path: Path, text: str):
    """A run that crashed, and one that still ran, came in as measurements where the column is called State."""
    table = tmp_path / "t.csv"
    table.write_text(text)
    job = load_job(Path("fixtures/jobs/smallest-cpu.toml"))
    [done] = bring_in_all(tmp_path / "kb.duckdb", table, job, ImportOptions(dry_run=True)).imports
    assert [(row.status, row.metrics.get("step_time_s")) for row in done.shown] == [("ok", 5.2), ("error", 9.9)]
    [bad] = done.bad
    assert bad.reason in (
        "the run is running, so its result is not complete",
        "the run is pending, so its result is not complete",
    )


def test_a_decimal_comma_between_semicolons(tmp_path: Path):
    """Spreadsheets of half of Europe write 5,2; 2,048 may be two thousand and is not guessed."""
    table = tmp_path / "t.csv"
    table.write_text("mbs;tp;step_time_s\n1;2;5,2\n2;1;0,125\n4;1;2,048\n1;1;x\n")
    job = load_job(Path("fixtures/jobs/smallest-cpu.toml"))
    [done] = bring_in_all(tmp_path / "kb.duckdb", table, job, ImportOptions(dry_run=True)).imports
    assert [row.metrics.get("step_time_s") for row in done.shown] == [5.2, 0.125]
    assert [bad.reason for bad in done.bad] == [
        "step_time_s is '2,048', which is not a number",
        "step_time_s is 'x', which is not a number",
    ]


def test_a_table_without_a_metric_says_how_to_name_one(tmp_path: Path):
    table = tmp_path / "t.csv"
    table.write_text("mbs;tp;Seconds a step\n1;2;5.2\n")
    job = load_job(Path("fixtures/jobs/smallest-cpu.toml"))
    with pytest.raises(
        AutoscoutError, match="has no metric; name the column that contains one with --map COLUMN=METRIC"
    ):
        bring_in_all(tmp_path / "kb.duckdb", table, job, ImportOptions(dry_run=True))


def test_what_is_known_by_imports_alone_is_not_nothing(tmp_path: Path):
    """`best` said that nothing is known, where `FROM results` had the rows."""
    job, kb, table = (
        load_job(Path("fixtures/jobs/llama-3-8b-serve.toml")),
        tmp_path / "kb.duckdb",
        tmp_path / "rows.csv",
    )
    table.write_text("tensor_parallel_size,output_tokens_per_s\n1,900\n2,1400\n")
    bring_in(kb, table, job, (), (), ())
    with pytest.raises(
        AutoscoutError, match="2 measurements of llama-3-8b-serve are known, but none applies to this cluster"
    ):
        best_of_job(kb, job)


def shown(tmp_path: Path, text: str | bytes, name: str = "t.csv", job: str = "smallest-cpu", **options: Any) -> Done:
    table = tmp_path / name
    table.write_bytes(text if isinstance(text, bytes) else text.encode())
    found = load_job(Path(f"fixtures/jobs/{job}.toml"))
    [done] = bring_in_all(tmp_path / "kb.duckdb", table, found, ImportOptions(dry_run=True, **options)).imports
    return done


@pytest.mark.parametrize(
    ("header", "row", "metrics"),
    [
        ("Micro batch size,TP,Step time [ms]", "1,2,812.5", {"step_time_s": 0.8125}),
        ("micro_batch,tensor_parallel,Iteration Time (milliseconds)", "1,2,500", {"step_time_s": 0.5}),
        ("MBS,tp_size,avg_step_time_ms,p99 step time (ms)", "1,2,500,900", {"step_time_s": 0.5}),
        ("mbs,tp,step_time_s,mean_step_time_ms", "1,2,1,2", {"step_time_s": 1.0}),
        ("mbs,tp,step_time_s,Peak mem (GiB)", "1,2,1,2", {"step_time_s": 1.0, "peak_memory_gib": 2.0}),
        ("mbs,tp,tokens/sec", "1,2,5120", {"tokens_per_s": 5120.0, "step_time_s": 0.1}),
        ("mbs,tp,Throughput (tokens/s)", "1,2,5120", {"tokens_per_s": 5120.0, "step_time_s": 0.1}),
    ],
)
def test_headers_as_people_write_them(tmp_path: Path, header: str, row: str, metrics: dict[str, float]):
    """They were left out: rows had no metric, or were taken for a configuration without the knob."""
    [found] = shown(tmp_path, f"{header}\n{row}\n").shown
    assert (found.name, found.metrics) == ("tp2_mbs1", pytest.approx(metrics))


def test_metrics_of_a_benchmark_in_a_table_of_one_s_own(tmp_path: Path):
    text = (
        "tp,mean_ttft_ms,TPOT P99 (s),median_itl_ms,output_throughput,Request throughput (req/s)\n2,200,0.03,20,900,8\n"
    )
    [row] = shown(tmp_path, text, job="llama-3-8b-serve").shown
    expected = {"ttft_mean_ms": 200.0, "tpot_p99_ms": 30.0, "itl_p50_ms": 20.0}
    assert row.metrics == pytest.approx({**expected, "output_tokens_per_s": 900.0, "requests_per_s": 8.0})


def test_a_metric_without_a_unit_is_asked_for_under_the_column_s_own_name(tmp_path: Path):
    with pytest.raises(AutoscoutError, match="column Step Time has no unit; give it, for example --unit 'Step Time=s'"):
        shown(tmp_path, "mbs,tp,Step Time\n1,2,800\n")
    assert shown(tmp_path, "mbs,tp,Step Time,tokens_per_s\n1,2,800,9\n").good == 1


def test_names_of_one_knob_or_metric_that_are_there_twice_are_not_guessed(tmp_path: Path):
    done = shown(tmp_path, "mbs,tp_size,tensor_parallel,step_time_s\n1,2,2,1\n")
    assert [row.name for row in done.shown] == ["mbs1"]
    with pytest.raises(AutoscoutError, match="the row has no metric"):
        shown(tmp_path, "mbs,tp,mean_step_time_s,median_step_time_s\n1,2,1,1\n")


STATUSES = [
    ("pass", "", "ok"),
    ("SUCCESSFUL", "", "ok"),
    ("FAIL (OOM)", "", "oom"),
    ("CUDA out of memory. Tried to allocate 2.00 GiB", "", "oom"),
    ("CUDA_OOM", "", "oom"),
    ("NCCL timed out", "", "timeout"),
    ("exit code 137", "", "error"),
    ("ValueError: heads not divisible", "", "error"),
    ("failed", "torch.OutOfMemoryError: CUDA out of memory", "oom"),
    ("failed", "OSError: [Errno 28] No space left on device", "infrastructure"),
    ("failed", "ok", "error"),
    ("", "RESOURCE_EXHAUSTED: out of memory", "oom"),
    ("", "no error", "ok"),
    ("", "True", "error"),
    ("", "False", "ok"),
    ("", "0.02", "ok"),
]


@pytest.mark.parametrize(("status", "error", "known"), STATUSES)
def test_how_a_run_ended_is_read_from_what_its_row_says(tmp_path: Path, status: str, error: str, known: str):
    """Texts of failures were refused as unknown, or a run that was out of memory became another error."""
    [row] = shown(tmp_path, f'mbs,tp,step_time_s,status,error\n1,2,0.5,"{status}","{error}"\n').shown
    assert row.status == known
    assert row.evidence == ("" if known == "ok" or status.lower() == "oom" else row.evidence)


def test_a_failure_in_place_of_a_metric_or_as_yes_in_a_column_of_its_own(tmp_path: Path):
    done = shown(tmp_path, "mbs,tp,step_time_s\n1,2,OOM\n2,2,timeout\n4,2,N/A\n")
    assert [(row.status, row.metrics) for row in done.shown] == [("oom", {}), ("timeout", {})]
    assert [bad.reason for bad in done.bad] == ["step_time_s is 'N/A', which is not a number"]
    done = shown(
        tmp_path, "mbs,tp,step_time_s,oom,ok,timeout,done\n1,2,1,False,True,30,no\n2,2,,True,no,1,\n4,2,1,0,False,,\n"
    )
    assert [row.status for row in done.shown] == ["ok", "oom", "error"]
    assert done.columns["oom"] == "status, if yes or no"


def test_a_failed_row_may_have_no_number(tmp_path: Path):
    """It was refused, so that a failure was lost."""
    [row] = shown(tmp_path, "mbs,tp,step_time_s,status\n1,2,N/A,oom\n").shown
    assert row.status == "oom"


def test_dates_are_read_and_what_is_none_is_counted(tmp_path: Path):
    """Dates in text were dropped without a word."""
    text = "mbs,tp,step_time_s,finished\n1,2,1,2026-05-01T10:00:00Z\n1,2,1,1777629600\n1,2,1,yesterday\n"
    done = shown(tmp_path, text, maps=["finished=at"])
    assert [row.at for row in done.shown] == [1777629600.0, 1777629600.0, 0.0]
    assert done.notes == ["1 values of finished are not times and were left out"]


def test_a_knob_that_is_set_and_has_a_column_is_noted(tmp_path: Path):
    done = shown(tmp_path, "mbs,tp,step_time_s\n1,2,1\n,2,1\n", sets=["mbs=4"])
    assert [row.name for row in done.shown] == ["tp2_mbs1", "tp2_mbs4"]
    assert done.notes == ["--set mbs applies only to rows without a value in column mbs"]


ROWS = [{"config": {"tp": 2, "mbs": 1}, "step_time_s": 1.5}, {"config": {"tp": 1, "mbs": 2}, "status": "oom"}]


@pytest.mark.parametrize(
    ("name", "text", "reader"),
    [
        ("t.json", json.dumps(ROWS), ""),
        ("t.jsonl", "\n".join(map(json.dumps, ROWS)), ""),
        ("T.CSV", "tp,mbs,step_time_s,status\n2,1,1.5,\n1,2,,oom\n", ""),
        ("t.tsv.gz", gzip.compress(b"tp\tmbs\tstep_time_s\tstatus\n2\t1\t1.5\t\n1\t2\t\toom\n", mtime=0), ""),
        ("t.txt", "tp,mbs,step_time_s,status\n2,1,1.5,\n1,2,,oom\n", "csv"),
    ],
)
def test_tables_under_other_names_and_as_json(tmp_path: Path, name: str, text: str | bytes, reader: str):
    """No reader recognized them, not even the one that the user had named."""
    done = shown(tmp_path, text, name, reader=reader)
    assert [(row.name, row.status) for row in done.shown] == [("tp2_mbs1", "ok"), ("mbs2", "oom")]


def test_one_object_of_json_is_read_if_the_user_says_so(tmp_path: Path):
    text = json.dumps({"tp": 2, "mbs": 1, "step_time_s": 1.5})
    with pytest.raises(AutoscoutError, match="if it is a table, give --reader csv or --reader json"):
        shown(tmp_path, text, "t.json")
    assert shown(tmp_path, text, "t.json", reader="json").good == 1


def test_a_column_of_the_last_object_is_a_column(tmp_path: Path):
    rows = [{"tp": 2, "mbs": 1, "step_time_s": 1.5}] * 2000 + [{"tp": 2, "mbs": 2, "status": "oom"}]
    done = shown(tmp_path, "\n".join(map(json.dumps, rows)), "t.jsonl")
    assert (done.good, done.columns["status"]) == (2001, "status status")
