"""What a table's columns are: which knob, where several are set by one flag, and how runs ended."""

import gzip
import json
from pathlib import Path
from typing import Any

import pytest

from autoscout.deploy.recommendation import best_of_job
from autoscout.importing.bring_in import ImportOptions, bring_in, bring_in_all
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
    done = shown(tmp_path, "mbs,tp,step_time_s,oom,ok,timeout\n1,2,1,False,True,30\n2,2,,True,no,1\n4,2,1,0,False,\n")
    assert [row.status for row in done.shown] == ["ok", "oom", "error"]
    assert done.columns["oom"] == "status, if yes or no"


def test_a_failed_row_may_have_no_number(tmp_path: Path):
    """It was refused, so that a failure was lost."""
    [row] = shown(tmp_path, "mbs,tp,step_time_s,status\n1,2,N/A,oom\n").shown
    assert row.status == "oom"


ROWS = [{"config": {"tp": 2, "mbs": 1}, "step_time_s": 1.5}, {"config": {"tp": 1, "mbs": 2}, "status": "oom"}]


@pytest.mark.parametrize(
    ("name", "text", "reader"),
    [
        ("t.json", json.dumps(ROWS), ""),
        ("t.jsonl", "\n".join(map(json.dumps, ROWS)), ""),
        ("T.CSV", "tp,mbs,step_time_s,status\n2,1,1.5,\n1,2,,oom\n", ""),
        ("t.tsv.gz", gzip.compress(b"tp\tmbs\tstep_time_s\tstatus\n2\t1\t1.5\t\n1\t2\t\toom\n"), ""),
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
