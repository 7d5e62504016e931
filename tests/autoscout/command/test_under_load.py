"""A line that starts a server of another engine: the job that `init` makes of it, its experiments and its export."""

import sys
from pathlib import Path

import msgspec
import pytest

from autoscout.machine.starting import job_file
from autoscout.targets.command.exported import exported, tried
from autoscout.targets.command.profiler import CommandProfiler
from autoscout.targets.jobs import JobSpace, load_job
from kb.records import AutoscoutError, Configuration

ENGINES = Path(__file__).parent / "engines"
LINE = [sys.executable, "-m", "sglang.launch_server", "--model", "meta/Llama-8B", "--tp", "2", "--port", "30000"]


def made(tmp_path, words, **environment):
    path = tmp_path / "job.toml"
    path.write_text(job_file(words, tmp_path)[0].replace('"GPU"', '"h100"'))  # trtllm-serve runs on nothing else
    job = load_job(path)
    variables = {"PYTHONPATH": str(ENGINES), **environment}
    return msgspec.structs.replace(job, launch=msgspec.structs.replace(job.launch, environment=variables))


def run(job, tmp_path, **changed):
    reference = JobSpace.of_job(job).reference
    configuration = Configuration({**reference.knobs, **changed})
    return CommandProfiler(job).run(configuration, "c", tmp_path / "experiment")


def test_a_server_is_a_job_that_serves_on_its_devices(tmp_path):
    job = made(tmp_path, LINE)
    assert (job.task, job.launch.script, job.name, job.devices) == ("serve", "sglang", "Llama-8B", 2)
    assert job.objective.metric == "output_tokens_per_s"
    assert JobSpace.of_job(job).reference.knobs["tp"] == 2


def test_an_experiment_starts_the_server_loads_it_and_ends_it(tmp_path):
    job = made(tmp_path, LINE)
    fast, slow = run(job, tmp_path, seqs=64), run(job, tmp_path, seqs=16)
    assert (fast.status, slow.status) == ("ok", "ok"), (fast.evidence, slow.evidence)
    assert fast.metrics["output_tokens_per_s"] == 32 / 4 * 256  # of the 32 users that the job has
    assert slow.metrics["output_tokens_per_s"] == 16 / 4 * 256
    assert fast.metrics["ttft_mean_ms"] == 102.4
    mine = f"PYTHONPATH={ENGINES}".encode()
    assert not [p for p in Path("/proc").iterdir() if p.name.isdigit() and mine in _environment(p)]


def test_a_server_that_does_not_start_is_a_failure_by_its_own_words(tmp_path):
    found = run(made(tmp_path, LINE, END="crash"), tmp_path)
    assert (found.status, "CUDA out of memory" in found.evidence) == ("oom", True), found.evidence


def test_the_export_is_the_servers_line_alone_and_its_check_loads_it(tmp_path):
    job = made(tmp_path, LINE)
    configuration = Configuration({**JobSpace.of_job(job).reference.knobs, "seqs": 64})
    launch = msgspec.structs.replace(exported(job, configuration), configuration=configuration.knobs)
    assert launch.program[:7] == [*LINE[:3], "--model-path", "meta/Llama-8B", "--tp-size", "2"]
    assert launch.program[launch.program.index("--max-running-requests") + 1] == "64"
    assert launch.program[launch.program.index("--port") + 1] == "30000"
    assert tried(job, launch, "command", 2) > 0


def test_copies_share_devices_only_where_the_line_has_it(tmp_path):
    whole = made(tmp_path, [*LINE[:4], "DeepSeek-V3", "--tp", "8", "--dp", "8", "--enable-dp-attention"])
    assert whole.devices == 8
    assert JobSpace.of_job(whole).reference.knobs["dp_attention"] is True
    apart = made(tmp_path, [*LINE[:4], "Llama-8B", "--tp", "2", "--dp", "4"])
    assert apart.devices == 8
    assert {(k["tp"], k["dp"]) for k in _all(apart)} == {(8, 1), (4, 2), (2, 4), (1, 8)}


def test_tensorrt_llms_server_is_known(tmp_path):
    job = made(tmp_path, ["trtllm-serve", "serve", "Qwen/Qwen3-8B", "--tensor_parallel_size", "4"])
    assert (job.launch.script, job.name, job.devices) == ("tensorrt-llm", "Qwen3-8B", 4)
    assert {(k["tp"], k["pp"]) for k in _all(job)} == {(4, 1), (2, 2), (1, 4)}
    (tmp_path / "job.toml").write_text((tmp_path / "job.toml").read_text().replace('"h100"', '"mi300x"'))
    with pytest.raises(AutoscoutError, match="'tensorrt-llm' runs on NVIDIA's GPUs alone, and not on mi300x"):
        load_job(tmp_path / "job.toml")


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ([*LINE, "--nnodes", "2"], "over 2 nodes"),
        ([*LINE[:3], "--tp", "2"], "says no model"),
        (["text-generation-launcher", "--model-id", "Qwen/Qwen3-8B"], "starts a server, which does not end"),
        (["lmdeploy", "serve", "api_server", "Qwen/Qwen3-8B"], "'serve' starts a server"),
    ],
)
def test_what_cannot_be_started_as_it_stands_is_said(tmp_path, line, says):
    with pytest.raises(AutoscoutError, match=says) as error:
        job_file(line, tmp_path)
    assert error.value.exit_code == 2


def _all(job):
    columns = JobSpace.of_job(job).feasible.columns()
    return [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]


def _environment(process):
    try:
        return (process / "environ").read_bytes()
    except OSError:
        return b""


def test_a_load_that_the_engines_tool_does_not_send_is_refused(tmp_path):
    """A trace became requests that were all as long as its longest, at a rate of 0."""
    (tmp_path / "chat.csv").write_text("arrival_s,input_tokens,output_tokens\n0,100,10\n1,200,30\n4,6000,20\n")
    text, path = job_file(LINE, tmp_path)[0], tmp_path / "job.toml"
    usual = "concurrency = 32\ninput_len = 1024\noutput_len = 256"
    assert usual in text
    path.write_text(text.replace(usual, 'trace = "chat.csv"'))
    with pytest.raises(AutoscoutError, match=r"write rate = 0.5, input_len = 2100 and output_len = 20, which are the"):
        load_job(path)
    path.write_text(text.replace("input_len = 1024", "input_len = [100, 200, 6000]"))
    with pytest.raises(AutoscoutError, match=r"write concurrency = 32, input_len = 2100 .* instead of quantiles"):
        load_job(path)
    path.write_text(text.replace(usual, f"{usual}\nshared_prefix = 100"))
    with pytest.raises(AutoscoutError, match="knows no sessions and no shared_prefix"):
        load_job(path)


def test_a_metric_that_the_engines_tool_does_not_say_is_answered_with_those_that_it_does(tmp_path):
    """It named each latency in five units, and highest rates as unknown."""
    text, path = job_file(LINE, tmp_path)[0], tmp_path / "job.toml"
    asked = 'maximize = "output_tokens_per_s"'
    limited = 'constraints = ["ttft_p99_ms <= 1500", "tpot_p99_ms <= 50", "itl_p99_s <= 1"]'
    path.write_text(text.replace(asked, f"{asked}\n{limited}"))
    assert load_job(path).objective.constraints[1] == "tpot_p99_ms <= 50"
    path.write_text(text.replace(asked, f'{asked}\nconstraints = ["zzz <= 1"]'))
    with pytest.raises(AutoscoutError) as told:
        load_job(path)
    assert "ttft_p99_ms" in str(told.value)
    assert "ttft_p99_us" not in str(told.value)
    path.write_text(text.replace(asked, 'maximize = "max_rate_rps"\nconstraints = ["ttft_p99_ms <= 1500"]'))
    with pytest.raises(AutoscoutError, match=r"only target = 'vllm' searches for; give the traffic\.rate"):
        load_job(path)
