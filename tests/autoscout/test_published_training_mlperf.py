"""What a training log of MLPerf says of a step and of its layout."""

import json
from pathlib import Path
from typing import Any

import pytest

from tests.tools.published_training_mlperf import exported, printed, rows_of, seconds_of

MARK = ':::MLLOG {"time_ms": %d, "key": "%s", "value": %s, "metadata": {%s}}\n'


def log(*marks: tuple[int, str, Any, str]) -> str:
    return "".join(MARK % (at, key, json.dumps(value), more) for at, key, value, more in marks)


def test_samples_a_second_are_those_of_training():
    told = log((1, "tracked_stats", {"throughput": 4.0}, ""), (2, "eval", {"validation_throughput": 99.0}, ""))
    assert seconds_of(told, 8, 8192) == 2.0


def test_blocks_of_tokens_tell_the_steps_of_a_log_that_times_none():
    count = f'"epoch_count": {3 * 16 * 2048}'  # three steps
    spans = ((1000, 7000), (8000, 14600), (20000, 26300))
    marks = [
        (at, f"block_{kind}", None, count) for span in spans for at, kind in zip(span, ("start", "stop"), strict=True)
    ]
    assert seconds_of(log(*marks), 16, 2048) == pytest.approx(2.1)
    timed = log(*((at, "tracked_stats", {"train_step_timing in s": s}, "") for at, s in ((1, 1.5), (2, 1.7), (3, 9.0))))
    assert seconds_of(log(*marks) + timed, 16, 2048) == 1.7
    assert seconds_of(log((1, "run_start", None, "")), 16, 2048) == 0


def test_a_printed_configuration_is_read_once_and_ranks_are_no_part_of_it():
    text = "0:       tensor_model_parallel_size: 4\n0:       enable_cuda_graph: false\nmicro_batch_size: null\n"
    text += "  ub_tp_comm_overlap: True\n1:       tensor_model_parallel_size: 8\n"
    assert printed(text) == {"tp": 4, "graphs": 0, "tp_comm_overlap": 1}


def test_a_script_says_more_than_what_its_folder_shares(tmp_path: Path):
    (tmp_path / "configs").mkdir()
    (tmp_path / "configs/config_common.sh").write_text("export MC_TP_OVERLAP_RS_DGRAD=True\nexport MBS=1\n")
    script = tmp_path / "config_8x8.sh"
    script.write_text(
        'export TP="${TP:=4}"  # split\nexport DGXNNODES="${DGXNNODES:-8}"\nexport MBS=2\n# export CP=8\n'
    )
    assert exported(script) == {"tp_comm_dgrad": 1, "tp": 4, "nodes": 8, "mbs": 2}


@pytest.fixture
def pages(tmp_path: Path) -> Path:
    """Two submitters with two nodes, one with the other's logs, and NVIDIA's configurations for eight nodes."""
    theirs = tmp_path / "training_v4.1/NVIDIA/benchmarks/llama2_70b_lora/implementations/nemo"
    theirs.mkdir(parents=True)
    for device, cp, graphs in (("H100", 2, 1), ("H200", 1, 0)):
        more = f"export DGXNNODES=8\nexport TP={8 // cp}\nexport CP={cp}\nexport LAYER_CUDA_GRAPH={graphs}\n"
        (theirs / f"config_DGX{device}_8x8x1.sh").write_text(more)
    marks = log(
        (5, "run_start", None, ""), (6, "global_batch_size", 8, ""), (7, "gradient_accumulation_steps", 4, ""),
        (8, "train_loss", 1.0, ""), (9, "tracked_stats", {"throughput": 8.0}, ""),
    )  # fmt: skip
    for submitter in ("One", "Two"):
        system = {"accelerator_model_name": "NVIDIA H100-SXM5-80GB", "accelerators_per_node": 8, "number_of_nodes": 2}
        for name in ("results/two/llama2_70b_lora", "systems"):
            (tmp_path / "training_v4.1" / submitter / name).mkdir(parents=True)
        (tmp_path / "training_v4.1" / submitter / "systems/two.json").write_text(json.dumps(system))
        (tmp_path / "training_v4.1" / submitter / "results/two/llama2_70b_lora/result_0.txt").write_text(marks)
    return tmp_path


def test_a_log_without_its_layout_is_read_with_nvidia_s_for_the_device(pages: Path):
    rows, reasons = rows_of(pages)
    assert reasons == {"the runs of another submission once more": 1}
    (row,) = rows
    said = {
        name: row[name] for name in ("gpu", "gpus", "tp", "cp", "dp", "sp", "graphs", "iteration_time_s", "held_out")
    }
    assert said == {
        "gpu": "h100", "gpus": 16, "tp": 4, "cp": 2, "dp": 2, "sp": 1, "graphs": 1, "iteration_time_s": 1.0,
        "held_out": True,
    }  # fmt: skip
    assert row["framework"] == "NeMo 24.09"


def test_a_log_that_no_configuration_fits_is_counted(pages: Path):
    for script in pages.glob("training_v4.1/NVIDIA/**/config_*.sh"):
        script.write_text(script.read_text().replace("TP=", "TP=2"))
    assert rows_of(pages)[1]["neither a layout in its log nor a configuration that fits"] == 1
