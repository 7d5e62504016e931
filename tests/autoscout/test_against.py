"""Tables of measured rows that other people wrote: other names, missing columns, failures, units."""

import csv
import gzip
import importlib
import sys
import warnings
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from autoscout.simulate.encode import FittedColumns
from autoscout.simulate.hardware.device import hardware
from autoscout.simulate.training.step import Training
from autoscout.simulate.validation import training_tables
from autoscout.simulate.validation.against import _rank, score
from autoscout.simulate.validation.measured import read, read_rows
from kb.records import AutoscoutError
from tui.cli import cli

OTHER_NAMES = {
    "n_gpus": "World Size",
    "layers": "num_hidden_layers",
    "hidden": "d_model",
    "micro_batch": "micro-batch-size",
    "global_batch": "GBS",
    "tp": "tensor_model_parallel_size",
    "pp": "PP_Size",
    "seq_len": "Sequence_Length",
    "gpu": "GPU Name",
    "ar": "recompute",
    "iteration_time_s": "Step Time (s)",
}


def layouts(gpu="NVIDIA A100-SXM4-80GB"):
    """18 rows of two models whose time is the model's own."""
    rows = [
        {
            "gpu": gpu, "n_gpus": 8, "layers": layers, "hidden": hidden, "heads": hidden // 128, "seq_len": 2048,
            "global_batch": 64, "micro_batch": mbs, "tp": tp, "pp": pp, "ar": "none", "dtype": "bf16",
        }
        for layers, hidden in ((24, 2048), (32, 4096))
        for tp, pp in ((1, 1), (2, 2), (4, 1))
        for mbs in (1, 2, 4)
    ]  # fmt: skip
    seconds = Training().predict(training_tables.columns_of(rows)).value
    return [{**row, "iteration_time_s": t} for row, t in zip(rows, seconds.tolist(), strict=True)]


def serving():
    return [
        {"gpu": "A100", "framework": "vLLM", "model": model, "tp": tp, "input_len": 128, "output_len": 128,
         "concurrency": users, "tpot_ms": 20.0 + users, "ttft_ms": 90.0, "status": "ok"}
        for model in ("Llama-2-7B", "mistral-7b") for tp in (1, 2) for users in (1, 8)
    ]  # fmt: skip


def written(path: Path, rows) -> Path:
    names = list(dict.fromkeys(name for row in rows for name in row))
    with gzip.open(path, "wt", newline="") if path.suffix == ".gz" else path.open("w", newline="") as file:
        writer = csv.DictWriter(file, names)
        writer.writeheader()
        writer.writerows(rows)
    return path


def analytic(path: Path) -> tuple[int, float]:
    scores = score(path).metrics["step_time_s"]
    return scores.rows, scores.members["analytic"].mape


RUN = {"gpu": "A100", "n_gpus": 16, "layers": 32, "hidden": 4096, "heads": 32, "seq_len": 4096, "global_batch": 128}


def test_other_names_of_columns_and_devices_say_the_same(tmp_path):
    renamed = [{OTHER_NAMES.get(k, k).replace(" (s)", "_s"): v for k, v in row.items()} for row in layouts()]
    assert analytic(written(tmp_path / "t.csv", renamed)) == (18, pytest.approx(0, abs=1e-9))


@pytest.mark.parametrize(
    ("name", "convert"),
    [
        ("step_time_ms", lambda row, s: 1e3 * s),
        ("tokens_per_s", lambda row, s: 64 * 2048 / s),
        ("tokens_per_s_per_gpu", lambda row, s: 64 * 2048 / s / 8),
        ("samples_per_s", lambda row, s: 64 / s),
    ],
)
def test_times_and_rates_of_other_units(tmp_path, name, convert):
    rows = [{**row, name: convert(row, row.pop("iteration_time_s"))} for row in layouts()]
    assert analytic(written(tmp_path / "t.csv.gz", rows)) == (18, pytest.approx(0, abs=1e-9))


def test_parquet_and_single_rows(tmp_path):
    import duckdb

    one = written(tmp_path / "one.csv", layouts()[:1])
    duckdb.sql(f"COPY (FROM read_csv('{one}')) TO '{tmp_path / 'one.parquet'}'")
    for path in (one, tmp_path / "one.parquet"):
        assert analytic(path) == (1, pytest.approx(0, abs=1e-9))


@pytest.mark.parametrize(
    ("said", "zero"),
    [
        ({"framework": "PyTorch FSDP"}, 3),
        ({"framework": "DeepSpeed ZeRO-2"}, 2),
        ({"sharding_strategy": "FULL_SHARD", "framework": "PyTorch"}, 3),
        ({"framework": "PyTorch FSDP", "sharding": "SHARD_GRAD_OP"}, 2),
        ({"framework": "PyTorch FSDP", "sharding": "NO_SHARD"}, 0),
        ({"framework": "DeepSpeed", "zero_stage": "stage 1"}, 1),
        ({"framework": "PyTorch FSDP", "zero_stage": 1}, 1),
        ({"framework": "PyTorch DDP"}, None),
        ({"framework": "PyTorch FSDP", "use_distributed_optimizer": 1}, None),
    ],
)
def test_how_a_trainer_shards_is_read_from_its_name_or_its_strategy(said, zero):
    assert training_tables.of_row({**RUN, **said}).get("zero") == zero


def test_a_strategy_that_shards_within_a_node_shards_over_its_devices():
    told = training_tables.of_row({**RUN, "sharding": "HYBRID_SHARD", "gpus_per_node": 8})
    assert (told["zero"], told["zero_group"]) == (3, 8)


@pytest.mark.parametrize(
    ("said", "attention"), [("True", "flash"), ("1", "flash"), ("0", "unfused"), ("no", "unfused")]
)
def test_a_switch_for_flash_attention_is_read(said, attention):
    assert training_tables.of_row({**RUN, "use_flash_attn": said})["attention"] == attention


def test_failures_are_counted_and_memory_is_judged_by_them(tmp_path):
    rows = [{**row, "status": "ok"} for row in layouts()]
    rows[0] |= {"status": "CUDA out of memory", "iteration_time_s": ""}
    rows[1] |= {"status": "crashed", "iteration_time_s": ""}
    report = score(written(tmp_path / "t.csv", rows))
    assert report.metrics["step_time_s"].rows == 16
    assert report.memory is not None
    assert (report.memory.runs, report.memory.died) == (17, 1)
    assert report.skipped == {"its status is a failure": 1}
    unsaid = [{**row, "framework": "Megatron-Bridge", "precision": "BF16", "ar": ""} for row in rows]
    report = score(written(tmp_path / "unsaid.csv", unsaid))  # what these recompute or offload is not said
    assert report.memory is None
    only = score(written(tmp_path / "died.csv", rows[:1]))
    assert only.metrics == {}
    assert only.memory is not None
    assert only.memory.died == 1


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"gpu": "TPU v5e"}, "no constants for device TPU v5e"),
        ({"tp": 8, "pp": 2}, "n_gpus is less than tp × pp × cp"),
        ({"global_batch": 1, "tp": 1}, "global_batch is less than one micro_batch per replica"),
        ({"experts": 64, "topk": 6}, "no expert_ffn (with so many experts, each is narrower than ffn)"),
        ({"seq_len": ""}, "no seq_len"),
        ({"model": "mimo-vlm-7b"}, "a kind of model or run that is not predicted (mimo)"),
        (
            {"framework": "Megatron-Bridge 26.08", "precision": ' variant0 (table cell "a (b)")'},
            "no precision (Megatron-Bridge has FP8 and BF16 rows)",
        ),
    ],
)
def test_a_row_that_cannot_be_as_it_says_is_counted_with_the_reason(tmp_path, change, why):
    rows = [{**row, **dict.fromkeys(("model", "experts", "topk", "precision", "framework"), "")} for row in layouts()]
    rows[0] |= change
    report = score(written(tmp_path / "t.csv", rows))
    assert report.skipped == {why: 1}
    assert report.metrics["step_time_s"].rows == 17


@pytest.mark.parametrize(
    ("name", "device"),
    [
        ("NVIDIA A100-SXM4-40GB", "NVIDIA A100 40 GB SXM4"),
        ("nvidia a100 80gb pcie", "NVIDIA A100 80 GB PCIe"),
        ("a800", "NVIDIA A800 80 GB SXM4"),
        ("H100 SXM5 80GB HBM3", "NVIDIA H100 80 GB SXM5"),
        ("NVIDIA L40S", "NVIDIA L40S"),
        ("NVIDIA A40", "NVIDIA A40"),
        ("NVIDIA L4", "NVIDIA L4"),
        ("NVIDIA GB200 NVL72", "NVIDIA GB200"),
        ("H100 PCIe", "NVIDIA H100 80 GB PCIe"),
        ("H100 NVL 80GB", None),  # other clocks and links
        ("H100-SXM-96GB(HBM2e, 500W)", None),
        ("A6000", "NVIDIA RTX A6000"),
        ("A4500", None),
        ("", None),
    ],
)
def test_names_of_devices(name, device):
    found = hardware(name)
    assert (found and found.name) == device


odd = st.one_of(st.none(), st.integers(-3, 10**6), st.floats(), st.booleans(), st.text(max_size=8))
changes = st.lists(
    st.one_of(
        st.tuples(st.just("drop"), st.integers(0, 30)),
        st.tuples(st.just("rename"), st.integers(0, 30)),
        st.tuples(st.just("upper"), st.integers(0, 30)),
        st.tuples(st.just("fill"), st.integers(0, 30), odd),
        st.tuples(st.just("spoil"), st.integers(0, 30), st.integers(0, 30), odd),
    ),
    max_size=5,
)


def changed(rows, edits):
    rows = [dict(row) for row in rows]
    for edit in edits:
        names = list(rows[0])
        name = names[edit[1] % len(names)]
        if edit[0] == "spoil":
            rows[edit[2] % len(rows)][name] = edit[3]
        else:
            for row in rows:
                value = row.pop(name)
                if edit[0] == "fill":
                    row[name] = edit[2]
                elif edit[0] != "drop":
                    row[name.upper() if edit[0] == "upper" else OTHER_NAMES.get(name, f"{name}_2")] = value
        if not rows[0]:
            break
    return rows


@settings(max_examples=settings().max_examples // 6, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(edits=changes, kind=st.sampled_from([layouts, serving]), count=st.integers(1, 8))
def test_any_table_is_scored_or_refused_with_a_sentence(tmp_path, edits, kind, count):
    rows = [row for row in changed(kind()[:count], edits) if row]
    if not rows:
        return
    path = written(tmp_path / "t.csv", rows)
    with warnings.catch_warnings():
        warnings.simplefilter("error", RuntimeWarning)
        try:
            report = score(path)
        except AutoscoutError as error:
            report, refusal = None, error
        else:
            refusal = None
    if report is None:
        assert refusal is not None
        assert refusal.exit_code == 2
        assert str(refusal)
        return
    for scores in report.metrics.values():
        assert scores.rows <= len(rows)
        assert all(np.isfinite(accuracy.mape) for accuracy in scores.members.values())


def test_latencies_that_no_device_reaches_and_caches_without_kernels_are_refused(tmp_path):
    """2,048 tokens of a model of 7 billion parameters take an H100 seconds, not 50 ms. Rows that read each weight as
    two bytes, or many requests' keys, passed at a speed that one byte a weight, or no keys, would allow."""
    row = {"gpu": "H100", "framework": "TensorRT-LLM", "model": "Qwen2-7B", "tp": 1, "batch": 1, "input_len": 2048,
           "output_len": 2048, "e2e_latency_s": 15.0, "kv_dtype": ""}  # fmt: skip
    wide = {**row, "tp": 4, "precision": "fp16"}
    impossible = [{**wide, "batch": 32, "e2e_latency_s": 1.05}, {**wide, "batch": 64, "e2e_latency_s": 2.27}]
    rows = [row, {**row, "e2e_latency_s": 0.05}, {**row, "gpu": "A100", "kv_dtype": "fp8"}, *impossible]
    report = score(written(tmp_path / "t.csv", rows))
    assert report.metrics["e2el_mean_ms"].rows == 1
    assert sorted(report.skipped.values()) == [1, 3]
    assert report.skipped["faster than its devices can read the weights"] == 3


def test_a_job_s_layouts_keep_their_order_when_another_framework_teaches(tmp_path):
    """Its rows say that recomputation is cheap and tensor parallelism dear; what they teach of the level holds."""
    here = [{**row, "framework": "mine", "source": "mine"} for row in layouts()]
    other = [
        {**row, "framework": "theirs", "source": "theirs", "layers": 40, "hidden": 5120, "heads": 40}
        | {"iteration_time_s": row["iteration_time_s"] * 3.2 * (0.7 if row["tp"] == 1 else 1.3)}
        for row in layouts()[:9]
    ]
    scores = score(written(tmp_path / "t.csv", here + other)).metrics["step_time_s"]
    ensemble, alone = scores.members["ensemble"].rank, scores.members["analytic"].rank
    assert ensemble is not None
    assert alone is not None
    assert ensemble > alone - 0.05


def test_where_a_row_stands_in_its_table_and_what_its_model_is_called_teach_nothing(tmp_path):
    row = {"gpu": "H100", "framework": "vLLM", "version": "0.9.1", "tp": 1, "batch": 4, "input_len": 512,
           "output_len": 128, "e2e_latency_s": 3.0}  # fmt: skip
    rows = [{**row, "model": model} for model in ("Qwen2-7B", "Llama-2-7b")]
    (found,) = read(written(tmp_path / "t.csv", rows)).sets
    assert not {"row", "source", "model", "why_not"} & set(found.columns)
    assert not {"version"} & set(FittedColumns(found.columns).names)
    assert found.groups["model"].tolist() == ["Qwen2-7B", "Llama-2-7b"]


def test_rank_is_over_pairs_that_differ_and_the_same_ones_for_every_member():
    job, measured = np.array(["a"] * 4 + ["b"] * 2), np.array([1.0, 1.01, 2.0, 3.0, 5.0, 5.1])
    assert _rank(job, measured, measured) == 1.0
    assert _rank(job, np.array([1.01, 1.0, 2.0, 3.0, 9.0, 1.0]), measured) == 1.0  # differ by less than 5 %: noise
    assert _rank(job, np.ones(6), measured) == 0.0  # predicted to be alike: no order, but no better than that either
    assert _rank(job, np.array([1.0, 1.0, 3.0, 2.0, 5.0, 5.0]), measured) == pytest.approx((4 - 1) / 5)
    assert _rank(job[4:], measured[4:], measured[4:]) is None


def test_what_was_said_of_running_out_of_memory_stands_beside_what_became_of_it(tmp_path):
    rows = [
        {"gpu": "A100", "n_gpus": 8, "layers": 32, "hidden": 4096, "heads": 32, "seq_len": 2048, "global_batch": 256,
         "tp": tp, "micro_batch": mbs, "zero_stage": 1, "iteration_time_s": 10.0 if fits else "",
         "framework": "Megatron-LM", "status": "ok" if fits else "oom"}
        for tp, mbs, fits in ((8, 1, True), (4, 1, True), (8, 2, True), (1, 8, False), (1, 16, False), (2, 32, False))
    ]  # fmt: skip
    memory = score(written(tmp_path / "t.csv", rows)).memory
    assert memory is not None
    assert (memory.right, memory.favourites) == (1.0, (1, 0))
    assert sum(bin_.runs for bin_ in memory.calibration) == 6
    assert (memory.calibration[0].died, memory.calibration[-1].died) == (0.0, 1.0)
    assert all(bin_.least <= bin_.said <= bin_.most for bin_ in memory.calibration)


def test_scoring_does_without_the_studies(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in sys.modules if name.startswith("autoscout.studies")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "autoscout.studies", None)
    with pytest.raises(ModuleNotFoundError):
        importlib.import_module("autoscout.studies.bench.run")
    ended = CliRunner().invoke(cli, ["predict", "--against", str(written(tmp_path / "runs.csv", layouts()))])
    assert ended.exception is None
    assert "step_time_s: 18 rows of 2 jobs" in ended.output


def test_a_failure_in_place_of_a_time_is_a_failure_and_other_texts_are_counted(tmp_path: Path):
    """Such rows counted as runs that fit in memory, and texts were dropped without a word."""
    rows = layouts()
    rows[0]["iteration_time_s"], rows[1]["iteration_time_s"], rows[2]["iteration_time_s"] = "OOM", "crashed", "1 812"
    report = score(written(tmp_path / "t.csv", rows))
    assert report.memory is not None
    assert (report.memory.runs, report.memory.died) == (17, 1)
    assert report.skipped == {"its status is a failure": 1, "its iteration_time_s is not a number": 1}


def test_a_comma_is_a_decimal_sign_between_semicolons(tmp_path: Path):
    """All times were dropped without a word, while `import` reads them."""
    path = written(tmp_path / "t.csv", layouts())
    text = path.read_text()
    path.write_text(text.replace(",", ";").replace(".", ","))
    assert analytic(path) == (18, pytest.approx(0, abs=1e-9))


@pytest.mark.parametrize("name", ["Step Time (s)", "iteration time [s]", "Time per step (s)"])
def test_a_unit_in_brackets_and_words_with_spaces(tmp_path: Path, name: str):
    rows = [{**row, name: row.pop("iteration_time_s")} for row in layouts()]
    assert analytic(written(tmp_path / "t.csv", rows)) == (18, pytest.approx(0, abs=1e-9))


@pytest.mark.parametrize("name", ["Tokens/s", "tokens/sec", "tokens per second"])
def test_rates_as_people_write_them(tmp_path: Path, name: str):
    rows = [{**row, name: 64 * 2048 / row.pop("iteration_time_s")} for row in layouts()]
    assert analytic(written(tmp_path / "t.csv", rows)) == (18, pytest.approx(0, abs=1e-9))


def test_a_statistic_may_stand_before_its_metric():
    rows = [{**row, "mean_ttft_ms": row.pop("ttft_ms"), "p99_tpot_ms": row["tpot_ms"]} for row in serving()]
    assert [found.metric for found in read_rows(rows).sets] == ["tpot_mean_ms", "tpot_p99_ms", "ttft_mean_ms"]
