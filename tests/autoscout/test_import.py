"""Results of other tools become measurements: mapped, converted, listed when they cannot be used, and undone."""

import gzip
import json
import os
import time
from pathlib import Path

import pytest
from imported import bring_in

from autoscout.importing import mapping
from autoscout.importing.bring_in import Done
from autoscout.importing.mapping import Use
from autoscout.space.graph import Space
from autoscout.space.knob import Knob
from autoscout.targets.deepspeed import importer
from autoscout.targets.jobs import load_job
from kb import forget, query, store
from kb.query_formats import render
from kb.records import AutoscoutError, Cluster, Job, Model, Node, Objective, Traffic

JOB = load_job("fixtures/jobs/tiny-gpt-cpu.toml")
SERVING = Job(
    name="chat",
    target="vllm",
    task="serve",
    model=Model(layers=2, hidden=8, heads=2, vocab=32),
    traffic=Traffic(concurrency=16, input_len=128, output_len=32),
    cluster=Cluster(nodes=[Node(device="a100", count=1)]),
    objective=Objective(maximize="output_tokens_per_s"),
)


def knob(name: str, sets: str, *values: bool | int | str, unit: str = "") -> Knob:
    return Knob(name=name, kind="dense", layer="", values=values, meaning="", sets=sets, unit=unit)


SPACE = Space(
    [
        knob("max_num_seqs", "max_num_seqs", 16, 32, 64),
        knob("prefix_caching", "enable_prefix_caching", False, True),
        knob("kv_cache_mib", "kv_cache_memory_bytes", 64, 128, unit="MiB"),
        knob("stage", "zero_optimization.stage", 0, 1, 2, 3),
        knob("mbs", "train_micro_batch_size_per_gpu", 1, 2, 4),
    ],
    [],
    {},
)


@pytest.fixture
def kb(tmp_path: Path) -> Path:
    return tmp_path / "kb" / "kb.duckdb"


def table(tmp_path: Path, text: str, name: str = "table.csv", encoding: str = "utf-8") -> Path:
    path = tmp_path / name
    path.write_bytes(text.encode(encoding))
    return path


def brought(kb: Path, path: Path, *maps: str, sets: tuple[str, ...] = (), units: tuple[str, ...] = ()) -> Done:
    return bring_in(kb, path, JOB, maps, sets, units)


def test_a_csv_with_a_mapping_units_failures_and_columns_of_its_own(kb, tmp_path):
    path = table(
        tmp_path,
        "tensor_model_parallel_size,pp,micro,iteration_time_ms,peak_mb,result,gpu,seed\n"
        "2,2,1,120.5,2048,ok,A100,1\n"
        "1,4,2,,,oom,A100,2\n",
    )
    done = brought(
        kb,
        path,
        *("micro=mbs", "iteration_time_ms=step_time_s", "peak_mb=peak_memory_gib", "result=status"),
        sets=("dp=1",),
    )
    assert (done.rows, done.good, done.new, done.bad) == (2, 2, 2, [])
    assert done.columns["iteration_time_ms"] == "metric step_time_s (ms → s)"
    assert done.columns["tensor_model_parallel_size"] == "knob tp"
    assert done.columns["gpu"] == "kept"
    ok, oom = [m for _, m in store.measurements(kb)]
    assert ok.configuration.knobs == {"pp": 2, "tp": 2, "dp": 1, "mbs": 1}
    assert ok.metrics == {"step_time_s": 0.1205, "peak_memory_gib": 2048e6 / 2**30, "seed": 1.0}
    assert ok.environment == {"gpu": "A100"}
    assert (oom.status, oom.configuration.knobs["pp"]) == ("oom", 4)
    assert query.run(kb, "SELECT job, measurements, failed, reader, file FROM imports").rows == [
        ("tiny-gpt-cpu", 2, 1, "csv", "table.csv")
    ]


def test_importing_again_changes_nothing_and_forgetting_undoes_it(kb, tmp_path):
    path = table(tmp_path, "tp,mbs,step_time_s\n1,1,0.5\n2,1,0.4\n")
    first, again = brought(kb, path), brought(kb, path)
    assert (first.id, first.new, again.new, again.known) == (again.id, 2, 0, 2)
    [name] = [p for p in (kb.parent / "imports").iterdir() if p.suffix == ".parquet"]
    gone = forget.forget(kb, [first.id])
    assert (gone.measurements, gone.files) == (2, [str(name)])
    assert store.measurements(kb) == []
    assert list((kb.parent / "imports").glob("[!.]*")) == []
    assert store.ingest_all(kb) == (0, [])
    assert brought(kb, path).new == 2  # who imports it again wants it again


def test_a_lost_knowledge_base_gets_its_imports_back(kb, tmp_path):
    brought(kb, table(tmp_path, "tp,mbs,step_time_s\n1,1,0.5\n2,1,0.4\n"))
    before = store.measurements(kb)
    kb.unlink()
    assert store.ingest_all(kb) == (2, [])
    assert store.measurements(kb) == before


def test_bad_rows_are_listed_with_their_reason_and_the_others_come_in(kb, tmp_path):
    path = table(
        tmp_path,
        "tp,mbs,step_time_s,status\n"
        "1,1,0.5,ok\n"
        "2,1\n"
        "two,1,0.4,ok\n"
        "2,1.5,0.4,ok\n"
        "2,1,nan,ok\n"
        "2,1,-3,ok\n"
        "-2,1,0.4,ok\n"
        "1e23,1,0.4,ok\n"
        "2,0,0.4,ok\n"
        "2,1,1e-323,ok\n"
        "2,1,1e300,ok\n"
        "2,1,,ok\n"
        ",,0.4,ok\n"
        "4,1,0.4,splendid\n"
        '4,1,0.4,"ok\n',
    )
    done = brought(kb, path)
    assert (done.rows, done.good, done.new) == (15, 1, 1)
    assert [(bad.where, bad.reason) for bad in done.bad] == [
        ("line 3", "the line has 2 fields, but the header has 4"),
        ("line 4", "tp is 'two', which is not a number"),
        ("line 5", "mbs is 1.5, which is not a whole number"),
        ("line 6", "step_time_s is 'nan', which is not a number"),
        ("line 7", "step_time_s is -3, which is impossible"),
        ("line 8", "tp is -2, which is impossible"),
        ("line 9", "tp is 1e23, which is impossible"),
        ("line 10", "mbs is 0, which is impossible"),
        ("line 11", "step_time_s is 9.88131e-324, which is impossible"),
        ("line 12", "step_time_s is 1e+300, which is impossible"),
        ("line 13", "the row has no metric"),
        ("line 14", "the row has no knob of the job; give its configuration with --set KNOB=VALUE or --set NAME"),
        (
            "line 15",
            "the row's status 'splendid' is unknown; write ok, oom, timeout, killed, invalid or error, or "
            "ignore the column with --map COLUMN=-",
        ),
        ("line 16", "the line is not CSV (unexpected end of data)"),
    ]


@pytest.mark.parametrize(
    ("text", "options", "sentence"),
    [
        ("tp,tp,step_time_s\n1,1,1\n", (), "the column tp exists 2 times"),
        ("tp,time\n1,1\n", ("time=step_time_s",), "column time has no unit"),
        ("tp,t\n1,1\n", ("t=step_tim_s",), "did you mean 'step_time_s'?"),
        ("tp,t\n1,1\n", ("tt=step_time_s",), "the table has no column 'tt'"),
        ("tp,t\n1,1\n", ("t",), "write COLUMN="),
        ("tp,tensor_model_parallel_size,step_time_s\n1,1,1\n", (), "both map to tp"),
        ("", (), "is empty"),
        ("tp,step_time_s\n1,x\n", (), "none of its 1 rows can be imported; line 2"),
    ],
)
def test_tables_that_cannot_be_understood_are_refused(kb, tmp_path, text, options, sentence):
    with pytest.raises(AutoscoutError, match=sentence.replace("?", r"\?")) as refused:
        brought(kb, table(tmp_path, text), *options)
    assert refused.value.exit_code == 2
    assert not kb.exists() or store.mark(kb) == 0


def test_mixed_units_are_read_where_each_cell_says_its_own(kb, tmp_path):
    path = table(tmp_path, "tp,t\n1,120 ms\n2,0.25 s\n4,300\n")
    brought(kb, path, "t=step_time_s", units=("t=ms",))
    assert [m.metrics["step_time_s"] for _, m in store.measurements(kb)] == [0.12, 0.25, 0.3]


def test_a_metric_in_another_unit_is_that_metric(kb, tmp_path):
    """Step times in ms were numbers beside, and the row had no metric."""
    brought(kb, table(tmp_path, "tp,step_time_ms,peak_memory_gb\n1,500,10.737418240\n"))
    [(_, row)] = store.measurements(kb)
    assert (row.metrics["step_time_s"], row.metrics["peak_memory_gib"]) == (pytest.approx(0.5), pytest.approx(10.0))
    both = mapping.uses(["step_time_ms", "step_time_s"], SPACE, {}, [], [])
    assert (both["step_time_ms"].kind, both["step_time_s"]) == ("number", Use("metric", "step_time_s"))


def test_encodings(kb, tmp_path):
    text = "tp,step_time_s,gpu\n1,0.5,Größe\n"
    for i, encoding in enumerate(("utf-8-sig", "utf-16")):
        assert brought(kb, table(tmp_path, text.replace("0.5", f"0.{i + 1}"), f"{i}.csv", encoding)).new == 1
    zipped = tmp_path / "z.csv.gz"
    zipped.write_bytes(gzip.compress(b"tp;step_time_s\n1;0.7\n"))
    assert brought(kb, zipped).new == 1
    with pytest.raises(AutoscoutError, match="line 2 is not UTF-8; convert it first"):
        brought(kb, table(tmp_path, text, "l.csv", "latin-1"))
    zipped.write_bytes(zipped.read_bytes()[:-9])
    with pytest.raises(AutoscoutError, match="truncated or malformed"):
        brought(kb, zipped)
    assert store.mark(kb) == 3


def test_prompts_and_paths_are_not_stored(kb, tmp_path):
    private = {
        "prompt": "hello there",
        "log_path": "/home/ann/x.log",
        "API_key": "sk-abcdefghijk",
        "HF_TOKEN": "hf_abcdefghijk",
        "db_password": "hunter2",
        "E-Mail": "ann@corp.example",
        "node": "gpu-07.corp",
        "whatever": "ann-said-so",
        "note": "/home/ann/y",
        "model_name": "/home/ann/models/x",
        "gpu": "A100",
    }
    path = table(tmp_path, f"TP,Step_Time_S,{','.join(private)}\n1,0.5,{','.join(private.values())}\n")
    done = brought(kb, path, "note=+")
    assert {name for name, use in done.columns.items() if not use.startswith("left out")} == {
        *("TP", "Step_Time_S", "note", "model_name", "gpu")
    }
    assert done.notes == ["1 values of note look like paths and were left out", *done.notes[1:]]
    [(_, kept)] = store.measurements(kb)
    assert (kept.configuration.knobs, kept.environment) == ({"tp": 1}, {"gpu": "A100"})
    stored = b"".join(f.read_bytes() for f in kb.parent.rglob("*") if f.is_file())
    assert not [value for name, value in private.items() if name != "gpu" and value.encode() in stored]
    [everything] = query.run(kb, "SELECT to_json(r) FROM runs AS r").rows
    assert "ann" not in everything[0]
    assert "hello" not in everything[0]


def test_a_dry_run_stores_nothing(kb, tmp_path):
    done = bring_in(kb, table(tmp_path, "tp,step_time_s\n1,0.5\n"), JOB, [], [], [], dry_run=True)
    assert (done.good, done.valid, kb.exists()) == (1, 0, False)


def test_parquet(kb, tmp_path):
    brought(kb, table(tmp_path, "tp,mbs,step_time_s\n1,1,0.5\n2,1,0.4\n"))
    out = tmp_path / "out.parquet"
    rendered = render(query.run(kb, "SELECT tp, mbs, step_time_s * 1000 AS t_ms FROM runs"), "parquet")
    assert isinstance(rendered, bytes)
    out.write_bytes(rendered)
    other = tmp_path / "other" / "kb.duckdb"
    assert bring_in(other, out, JOB, ["t_ms=step_time_s"], [], []).new == 2
    assert [m.metrics for _, m in store.measurements(other)] == [m.metrics for _, m in store.measurements(kb)]
    out.write_bytes(b"PAR1 nothing")
    with pytest.raises(AutoscoutError, match="cannot be read as Parquet"):
        bring_in(other, out, JOB, [], [], [])


def test_deepspeed_autotuning_results(tmp_path):
    def experiment(name: str, stage: int, mbs: int, **files: str) -> None:
        folder = tmp_path / "autotuning_results" / name
        folder.mkdir(parents=True)
        config = {"train_batch_size": 8, "train_micro_batch_size_per_gpu": mbs, "zero_optimization": {"stage": stage}}
        (folder / "ds_config.json").write_text(json.dumps({**config, "autotuning": {"enabled": True}}))
        for file, text in files.items():
            (folder / file.replace("__", ".")).write_text(text)

    experiment("z1_mbs2", 1, 2, metrics__json=json.dumps({"throughput": 40.0, "latency": 200.0}))
    experiment("z3_mbs4", 3, 4, stderr__log="torch.OutOfMemoryError: CUDA out of memory. Tried")
    experiment("z2_mbs1", 2, 1, stderr__log="x\nValueError: fp16 is not supported\n")
    experiment("z0_mbs1", 0, 1, metrics__json='{"throug')
    job = Job(
        name="ds",
        target="deepspeed",
        model=Model(layers=2, hidden=8, heads=2, vocab=32),
        traffic=Traffic(seq_len=16, global_batch=8),
        cluster=Cluster(nodes=[Node(device="cpu", count=2)]),
        objective=Objective(minimize="step_time_s"),
    )
    assert importer.recognizes(tmp_path)
    source = importer.read(tmp_path, job)
    meant = mapping.uses(source.columns, SPACE, source.meaning, [], [])
    assert (meant["zero_optimization.stage"].name, meant["train_micro_batch_size_per_gpu"].name) == ("stage", "mbs")
    rows = {Path(row.where).name: row for row in source.rows}
    assert rows["z1_mbs2"].cells["step_time_s"] == 0.2
    assert rows["z1_mbs2"].cells["tokens_per_s"] == 640.0
    assert rows["z3_mbs4"].cells["status"] == "oom"
    assert rows["z2_mbs1"].cells["evidence"] == "ValueError: fp16 is not supported"
    assert rows["z0_mbs1"].problem.startswith("metrics.json cannot be read")


def test_what_no_reader_knows(kb, tmp_path):
    path = table(tmp_path, "hello", "x.doc")
    with pytest.raises(AutoscoutError, match="no reader recognizes this"):
        brought(kb, path)
    with pytest.raises(AutoscoutError, match="there is no such file"):
        brought(kb, tmp_path / "none.csv")
    with pytest.raises(AutoscoutError, match="--reader 'yaml' is unknown; known: aiconfigurator, aiperf, csv"):
        bring_in(kb, path, JOB, [], [], [], "yaml")


def test_a_loss_that_is_no_number_is_no_success(kb, tmp_path):
    brought(kb, table(tmp_path, "tp,step_time_s,final_loss\n1,0.5,nan\n2,0.5,3.2\n"))
    assert [m.status for _, m in store.measurements(kb)] == ["wrong", "ok"]


def test_a_hundred_thousand_columns_take_no_longer_each():
    columns = [f"column_{i}" for i in range(100_000)]
    began = time.process_time()
    mapping.uses(columns[:10_000], SPACE, {}, [], [])
    few = time.process_time() - began
    mapping.uses(columns, SPACE, {}, [], [])
    assert time.process_time() - began - few < 40 * few


def test_what_unpacks_without_end_ends_with_a_sentence(kb, tmp_path):
    bomb = tmp_path / "bomb.csv.gz"
    bomb.write_bytes(gzip.compress(b"tp,step_time_s\n" + (b"1," + b" " * 10_000_000 + b"\n") * 4))
    with pytest.raises(AutoscoutError, match="decompressed size is more than 200 times"):
        bring_in(kb, bomb, JOB, [], [], [], dry_run=True)
    bomb.write_bytes(gzip.compress(b"t" * 17_000_000, 1))
    with pytest.raises(AutoscoutError, match="first line is longer"):
        brought(kb, bomb)


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("study.log", '{"op_code": 0}\n'),
        ("study.log", '{"op_code": 5, "trial_id": 7}\n'),
        ("study.log", '{"op_code":0,"study_name":["x"]}\n'),
        ("study.log", '{"op_code":5,"trial_id":7}\n'),
        ("study.log", '{"op_code": 0, "study_name": ["x"]}\n'),
        ("study.log", '{"op_code": 4, "study_id": 3, "state": 99}\n'),
        ("result.json", '{"request_throughput": 1, "output_throughput": 2, "a": ' + "[" * 100_000),
        ("result.json", '{"request_throughput": {"x": 1}, "output_throughput": null, "max_concurrency": "many"}'),
        ("x/ds_config.json", '{"train_batch_size": "eight"}'),
        ("x/ds_config.json", '{"train_batch_size": {"a": [1]}}'),
        ("x/exp.json", '{"ds_config": 7}'),
        ("x/exp.json", "[" * 100_000),
        ("t.csv", "tp,step_time_s\n" + "9" * 400 + ",1\n"),
        ("t.csv", 'tp,step_time_s\n"' + "1,1\n" * 1000),
    ],
)
def test_odd_fields_are_one_sentence(kb, tmp_path, name, text):
    path = tmp_path / "in" / name
    path.parent.mkdir(parents=True)
    path.write_text(text)
    (path.parent / "metrics.json").write_text("[1]")
    given = path.parent.parent if "/" in name else path
    with pytest.raises(AutoscoutError) as refused:
        brought(kb, given)
    assert refused.value.exit_code == 2


def test_half_an_import_is_swept_away(kb, tmp_path):
    left = kb.parent / "imports" / ".unfinished-abc"
    left.mkdir(parents=True)
    (left / "kb.duckdb").write_text("x")
    os.utime(left, (1, 1))
    brought(kb, table(tmp_path, "tp,step_time_s\n1,0.5\n"))
    assert not left.exists()
    assert len(list((kb.parent / "imports").glob("[!.]*"))) == 1
