"""`init` of a line that serves: which model it is, how it is stored, where it runs."""

import json
import re
import shlex
import sys
import tomllib

import pytest
from test_starting import written

from autoscout.machine.starting import job_file
from autoscout.targets.jobs import JobSpace, load_job
from kb.records import AutoscoutError

LLAMA = {
    "model_type": "llama",
    "num_hidden_layers": 2,
    "hidden_size": 64,
    "num_attention_heads": 4,
    "vocab_size": 512,
    "torch_dtype": "float32",
}


def test_a_server_and_its_load_test_become_a_serving_job(tmp_path):
    (tmp_path / "tiny").mkdir()
    (tmp_path / "tiny" / "config.json").write_text(json.dumps(LLAMA))
    script = tmp_path / "serve.sh"
    script.write_text(
        f"export VLLM_LOGGING_LEVEL=WARN\nvllm serve {tmp_path}/tiny -tp 2 --max-num-seqs 8 --trust-remote-code &\n"
        "vllm bench serve --model x --random-input-len 64 --random-output-len 32 --num-prompts 50 --max-concurrency 5\n"
    )
    path = written(tmp_path, [str(script)])
    path.write_text(path.read_text().replace('"GPU"', '"h100"'))
    job = load_job(path)
    assert (job.target, job.task, job.devices, job.model.layers) == ("vllm", "serve", 2, 2)
    assert (job.traffic.concurrency, job.traffic.input_len, job.traffic.output_len) == (5, 64, 32)
    assert job.launch.model_path == str(tmp_path / "tiny")
    assert job.launch.current.endswith("--trust-remote-code")
    assert job.launch.environment == {"VLLM_LOGGING_LEVEL": "WARN"}
    assert JobSpace.of_job(job).reference.knobs["max_num_seqs"] == 8


@pytest.mark.parametrize(
    ("name", "stored"),
    [
        ("RedHatAI/Llama-3.1-8B-Instruct-FP8-dynamic", "fp8"),
        ("Qwen/Qwen3-30B-A3B-FP8", "fp8_block"),
        ("nvidia/Llama-3.1-8B-Instruct-FP4", "nvfp4"),
        ("x/Llama-3.1-8B-Instruct-AWQ", "int4"),
        ("x/Llama-3.1-8B-Instruct-quantized.w4a16", "int4"),
        ("x/Llama-3.1-8B-Instruct-quantized.w8a16", "w8a16"),
        ("x/Llama-3.1-8B-Instruct-GPTQ-Int8", "w8a16"),
        ("x/Llama-3.1-8B-Instruct-quantized.w8a8", "int8"),
        ("x/Llama-3.1-8B-Instruct", ""),
    ],
)
def test_a_name_tells_how_weights_are_stored(tmp_path, name, stored):
    """They counted as 16 bits, twice the memory."""
    text, notes = job_file(["vllm", "serve", name], tmp_path)
    assert tomllib.loads(text)["model"].get("stored", "") == stored
    assert any(note.endswith("random weights of that shape are served") for note in notes) == (not stored)


@pytest.mark.parametrize(
    ("name", "preset"),
    [
        ("meta-llama/Meta-Llama-3.1-70B-Instruct", "llama-3.1-70b"),
        ("nvidia/Llama-3.3-70B-Instruct-FP8", "llama-3.3-70b"),
        ("meta-llama/Meta-Llama-3-8B", "llama-3-8b"),
        ("deepseek-ai/DeepSeek-V3-0324", "deepseek-v3"),
        ("moonshotai/Kimi-K2-Instruct-0905", "kimi-k2"),
        ("deepseek-ai/DeepSeek-R1-Distill-Llama-70B", "llama-3.1-70b"),
    ],
)
def test_models_of_one_shape_are_known_by_each_of_their_names(tmp_path, name, preset):
    """They needed a config.json, which a node without a network does not get."""
    assert tomllib.loads(job_file(["vllm", "serve", name], tmp_path)[0])["model"]["preset"] == preset


@pytest.mark.parametrize("name", ["deepseek-ai/DeepSeek-V3.2-Exp", "deepseek-ai/DeepSeek-R1-Distill-Qwen-1.5B"])
def test_another_release_or_model_of_a_longer_name_is_not_that_model(tmp_path, name):
    assert "preset" not in tomllib.loads(job_file(["vllm", "serve", name], tmp_path)[0])["model"]


def test_a_model_that_was_published_in_8_bits_is_served_in_them(tmp_path):
    """With 16 bits DeepSeek-V3 would need two nodes of H200."""
    model = tomllib.loads(job_file(["vllm", "serve", "deepseek-ai/DeepSeek-V3"], tmp_path)[0])["model"]
    assert model == {"preset": "deepseek-v3", "stored": "fp8_block"}


@pytest.mark.parametrize(
    ("name", "preset"),
    [
        ("Qwen/Qwen3-32B-FP8", "qwen3-32b"),
        ("mistralai/Mixtral-8x7B-Instruct-v0.1", "mixtral-8x7b"),
        ("deepseek-ai/DeepSeek-V3", "deepseek-v3"),
    ],
)
def test_a_model_is_known_by_its_name_on_the_hub_without_a_line_too(tmp_path, name, preset):
    assert tomllib.loads(job_file([name], tmp_path)[0])["model"]["preset"] == preset


@pytest.mark.parametrize("name", ["llama-3-8b.toml", "runs/mixtral-8x7b.yaml"])
def test_a_file_that_is_not_here_is_no_model_for_its_name(tmp_path, name):
    with pytest.raises(AutoscoutError) as refused:
        job_file([name], tmp_path)
    assert refused.value.exit_code == 2


def test_a_model_folder_that_is_not_here_is_said(tmp_path):
    _, notes = job_file(["vllm", "serve", "/nowhere/Llama-3.1-8B"], tmp_path)
    assert any(
        note.startswith(
            "launch.model_path: /nowhere/Llama-3.1-8B is not a folder on this machine; write the model's folder"
        )
        for note in notes
    )


def test_a_line_that_serves_in_8_bits_is_searched_in_8_bits(tmp_path):
    line = "vllm serve x/Llama-3.1-8B --quantization fp8 --kv-cache-dtype fp8 -tp 1"
    made = tomllib.loads(job_file(shlex.split(line), tmp_path)[0])
    assert made["space"]["fix"] == {"quantization": "fp8", "kv_cache_dtype": "fp8"}


def test_a_line_that_serves_gpt_oss_serves_it_as_it_is_published(tmp_path):
    """117 billion parameters in 4 bits fit one H100; in 16 bits nothing did."""
    made, notes = job_file(shlex.split("vllm serve openai/gpt-oss-120b --max-num-seqs 64"), tmp_path)
    path = tmp_path / "job.toml"
    path.write_text(re.sub(r"nodes = .*", 'nodes = [{ device = "h100", count = 1 }]', made))
    job = load_job(path)
    assert (job.model.stored, job.model.windowed_layers, job.model.layers) == ("mxfp4", 18, 36)
    assert JobSpace.of_job(job).reference.knobs["tp"] == 1
    assert [note for note in notes if "random weights" in note] == []


@pytest.mark.parametrize(
    ("line", "prefix", "python"),
    [
        ("vllm serve meta-llama/Llama-3.1-8B-Instruct --max-model-len 8192", [], ""),
        ("apptainer exec --nv v.sif vllm serve Llama-3.1-8B", ["apptainer", "exec", "--nv", "v.sif"], "python3"),
        (f"{sys.executable} -m vllm.entrypoints.openai.api_server --model x/llama-3.1-8b", [], sys.executable),
        (f"{sys.executable} -u -m vllm.entrypoints.openai.api_server --model x/llama-3.1-8b", [], sys.executable),
        (
            "docker run -d --gpus all -p 8000:8000 vllm/vllm-openai:v0.9.1 --model x/Llama-3.1-8B --max-num-seqs 16",
            [
                "docker",
                "run",
                "--rm",
                "--network",
                "host",
                "--gpus",
                "all",
                "-p",
                "8000:8000",
                "--entrypoint",
                "",
                "vllm/vllm-openai:v0.9.1",
            ],
            "python3",
        ),
    ],
)
def test_a_line_that_starts_a_server_names_its_model(tmp_path, line, prefix, python, monkeypatch):
    monkeypatch.setenv("PATH", "/nowhere")
    text, notes = job_file(shlex.split(line), tmp_path)
    made = tomllib.loads(text)
    assert made["model"] == {"preset": "llama-3.1-8b"}
    assert made["launch"].get("command_prefix", []) == prefix
    assert made["launch"].get("python", "") == python
    assert made["launch"]["current"].startswith("vllm serve ")
    assert not {"--nv", "--gpus"} & set(made["launch"]["current"].split())  # no flags of the container's
    assert any(note.startswith("traffic: ") for note in notes)  # what was guessed is said


@pytest.mark.parametrize(
    ("line", "preset"),
    [
        ("python3 -m sglang.launch_server --model-path x/Llama-3.1-8B --tp-size 2", "sglang"),
        ("trtllm-serve x/Llama-3.1-8B --tp_size 2", "tensorrt-llm"),
    ],
)
def test_a_script_that_leaves_a_server_running_is_the_servers_line(tmp_path, line, preset):
    """The script as a whole was taken for the server's line, which said no model then."""
    script = tmp_path / "serve.sh"
    script.write_text(f"export A=1\nnohup {line} > server.log 2>&1 &\necho $! > pid\n")
    made = tomllib.loads(job_file([str(script)], tmp_path)[0])
    assert (made["launch"]["script"], made["launch"]["current"]) == (preset, line)
    assert made["launch"]["environment"] == {"A": "1"}


def test_a_number_that_only_a_shell_knows_is_no_value_of_a_knob(tmp_path):
    """'$CONC' was, so that rules and predictions met a text where numbers are. Every verb asks for it."""
    line = "trtllm-serve x/Llama-3.1-8B --max_batch_size $CONC --max_num_tokens $((8 * CONC))"
    text, notes = job_file([line], tmp_path)
    path = tmp_path / "job.toml"
    path.write_text(text.replace('"GPU"', '"h100"'))
    with pytest.raises(AutoscoutError, match=r"has --max_batch_size \$CONC; replace \$CONC with its value"):
        load_job(path)
    assert any("with the value" in note and "$CONC" in note for note in notes)
    path.write_text(path.read_text().replace("$((8 * CONC))", "4096").replace("$CONC", "16"))
    assert JobSpace.of_job(load_job(path)).reference.knobs["tokens"] == 4096
