"""A server's line of SGLang or TensorRT-LLM is predicted as a row of a table of measurements is."""

import numpy as np
import pytest

from autoscout.machine.starting import job_file
from autoscout.simulate.encode import of_configurations, of_job
from autoscout.simulate.serving.simulator import ServingSimulator
from autoscout.simulate.validation.serving_tables import columns_of_rows
from autoscout.targets.jobs import JobSpace, load_job, simulators_of
from autoscout.targets.target import target_of
from kb.records import Configuration

SGLANG = "python -m sglang.launch_server --model-path Qwen/Qwen3-30B-A3B --tp 2"
TRTLLM = "trtllm-serve Qwen/Qwen3-30B-A3B --tp_size 2 --max_batch_size 256"
OF_LOADS = ("concurrency", "rate", "batch", "input_len", "output_len", "requests", "random")


@pytest.mark.parametrize(
    ("line", "row"),
    [
        (SGLANG, {"framework": "SGLang", "version": "0.5"}),
        (f"{SGLANG} --mem-fraction-static 0.7", {"framework": "SGLang", "gpu_memory_utilization": 0.7}),
        (f"{SGLANG} --ep-size 2", {"framework": "SGLang", "version": "0.5", "ep": 2}),
        (TRTLLM, {"framework": "TensorRT-LLM", "version": "1.2", "max_num_seqs": 256, "gpu_memory_utilization": 0.9}),
        (f"{TRTLLM} --ep_size 1", {"framework": "TensorRT-LLM", "version": "1.2", "max_num_seqs": 256, "ep": 1}),
    ],
)
@pytest.mark.parametrize("metric", ["output_tokens_per_s", "tpot_mean_ms"])
def test_it_is_what_a_tables_row_of_it_is(line, row, metric, tmp_path):
    text, path = job_file(line.split(), tmp_path)[0], tmp_path / "job.toml"
    for device in ("GPU", "cpu"):
        text = text.replace(f'device = "{device}"', 'device = "h100"')
    text = text.replace('maximize = "output_tokens_per_s"', "@@")
    verb = "maximize" if metric == "output_tokens_per_s" else "minimize"
    path.write_text(text.replace("@@", f'{verb} = "{metric}"'))
    job = load_job(path)
    space = JobSpace.of_job(job)
    own = {**of_job(job), **of_configurations(space, [Configuration(dict(space.reference.knobs))])}
    (member,) = simulators_of(job)
    shared = {"gpu": "h100", "tp": 2, "model": "qwen3-30b-a3b", "dtype": "bf16", "concurrency": 32}
    columns, _ = columns_of_rows([{**shared, "input_len": 1024, "output_len": 256, metric: 1.0, **row}])
    same_load = {name: values for name, values in columns.items() if name not in OF_LOADS} | {"traffic": job.traffic}
    expected = float(ServingSimulator(metric).predict(same_load).value[0])
    assert np.isfinite(expected)
    assert float(member.predict(own).value[0]) == pytest.approx(expected)


def test_trtllm_serves_file_says_which_engines_wait_for_each_others_prompts(tmp_path):
    settings, path = tmp_path / "extra.yml", tmp_path / "job.toml"
    line = f"trtllm-serve Qwen/Qwen3-30B-A3B --tp_size 8 --ep_size 8 --config {settings}"

    def told(text):
        settings.write_text(text)
        path.write_text(job_file(line.split(), tmp_path)[0].replace('"GPU"', '"h100"').replace('"cpu"', '"h100"'))
        job = load_job(path)
        space = JobSpace.of_job(job)
        columns = of_configurations(space, [Configuration(dict(space.reference.knobs))])
        names = ("tp", "dp", "adp_timeout_iters", "adp_wait_iters")
        return [float(columns[name][0]) if name in columns else None for name in names], job

    assert told("kv_cache_config: {}")[0] == [8, None, None, None]
    assert told("enable_attention_dp: true")[0] == [1, 8, None, None]
    balanced = "enable_attention_dp: true\nattention_dp_config: {enable_balance: true, timeout_iters: 60}"
    columns, job = told(balanced)
    assert columns == [1, 8, 60, 10]
    (member,) = simulators_of(job)
    space = JobSpace.of_job(job)
    own = {**of_job(job), **of_configurations(space, [Configuration(dict(space.reference.knobs))])}
    assert np.isfinite(member.predict(own).value[0])
    assert any("but attention data parallelism" in note for note in target_of(job).notes_on_job(job))
    assert told("enable_attention_dp: [")[0] == [8, None, None, None]  # no YAML: as if it were not here
