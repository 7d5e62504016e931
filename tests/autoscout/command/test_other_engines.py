"""A line of SGLang or TensorRT-LLM is predicted as the serving model's tables are."""

from pathlib import Path

import numpy as np
import pytest

from autoscout.machine.starting import job_file
from autoscout.simulate.encode import of_configurations, of_job
from autoscout.simulate.serving.setup import columns_of_job
from autoscout.simulate.serving.simulator import ServingSimulator
from autoscout.simulate.validation.serving_tables import columns_of_rows
from autoscout.targets.command.other_engines import simulators
from autoscout.targets.jobs import JobSpace, load_job
from kb.records import Configuration, Job

SGLANG = "python -m sglang.launch_server --model-path Qwen/Qwen3-30B-A3B --tp 2"
TRTLLM = "trtllm-serve Qwen/Qwen3-30B-A3B --tp_size 2 --max_batch_size 256"
OF_LOADS = ("concurrency", "rate", "batch", "input_len", "output_len", "requests", "random")


def job_of(tmp_path: Path, line: str, devices: int = 2) -> Job:
    text, path = job_file(line.split(), tmp_path)[0], tmp_path / "job.toml"
    for device in ("GPU", "cpu"):
        text = text.replace(f'device = "{device}"', 'device = "rtx-pro-6000"')
    path.write_text(text.replace("count = 2", f"count = {devices}"))
    return load_job(path)


def predicted(job: Job, metric: str = "output_tokens_per_s", **knobs: object) -> float:
    space = JobSpace.of_job(job)
    row = of_configurations(space, [Configuration({**space.reference.knobs, **knobs})])
    columns = {**of_job(job), **columns_of_job(job), **row}
    (member,) = simulators(job, metric)
    assert member.applies(columns) == ""
    return float(member.predict(columns).value[0])


@pytest.mark.parametrize(
    ("line", "row"),
    [
        (SGLANG, {"framework": "SGLang", "version": "0.5"}),
        (f"{SGLANG} --mem-fraction-static 0.7", {"framework": "SGLang", "gpu_memory_utilization": 0.7}),
        (f"{SGLANG} --ep-size 2", {"framework": "SGLang", "version": "0.5", "ep": 2}),
        (TRTLLM, {"framework": "TensorRT-LLM", "version": "1.2", "max_num_seqs": 256, "gpu_memory_utilization": 0.9}),
    ],
)
@pytest.mark.parametrize("metric", ["output_tokens_per_s", "tpot_mean_ms"])
def test_it_is_what_a_tables_row_of_it_is(line, row, metric, tmp_path):
    job = job_of(tmp_path, line)
    shared = {"gpu": "rtx-pro-6000", "tp": 2, "model": "qwen3-30b-a3b", "dtype": "bf16", "concurrency": 32}
    columns, _ = columns_of_rows([{**shared, "input_len": 1024, "output_len": 256, metric: 1.0, **row}])
    same_load = {name: values for name, values in columns.items() if name not in OF_LOADS} | {"traffic": job.traffic}
    assert predicted(job, metric) == pytest.approx(float(ServingSimulator(metric).predict(same_load).value[0]))


def test_its_knobs_are_the_models(tmp_path):
    job = job_of(tmp_path, TRTLLM)
    assert predicted(job, seqs=16) < 0.8 * predicted(job, seqs=64)
    assert predicted(job, tp=1, pp=2) < predicted(job)
    job = job_of(tmp_path, f"{SGLANG} --dp 2", 4)
    assert np.isnan(predicted(job)), "copies of a mixture that share nothing are not modelled"
    assert np.isfinite(predicted(job, tp=4, dp=1))


def test_what_a_line_leaves_open_is_not_predicted(tmp_path):
    for flag, said in (("--speculative-algorithm EAGLE3", "accepted"), ("--quantization fp8", "kernels")):
        (member,) = simulators(job_of(tmp_path, f"{SGLANG} {flag}"), "tpot_mean_ms")
        assert said in member.applies({})
    assert simulators(job_of(tmp_path, SGLANG.replace("Qwen/Qwen3-30B-A3B", "own/Model")), "tpot_mean_ms") == []
