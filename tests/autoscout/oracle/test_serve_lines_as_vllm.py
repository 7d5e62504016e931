"""A serve line and what is exported of it mean the same to vLLM's own parser."""

import json
import shlex
import subprocess
import tomllib
from pathlib import Path

import msgspec
import pytest
import vllm_oracle

from autoscout.machine.starting import job_file
from autoscout.targets.jobs import JobSpace, load_job
from autoscout.targets.launch import words
from autoscout.targets.target import target_of
from kb.records import Cluster, Job, Node

pytestmark = [
    pytest.mark.engine,
    pytest.mark.skipif(not vllm_oracle.PYTHON.exists(), reason="needs vLLM: make .venv-vllm/ready"),
]

LINES = """
Qwen/Qwen3-32B -tp=4 -dp=2 --port 8000 --host 0.0.0.0 --trust-remote-code
Qwen/Qwen3-32B --tensor_parallel_size 2 --max_model_len 40k --max-num-batched-tokens 16k
Qwen/Qwen3-235B-A22B -tp 8 -ep --enable-eplb --eplb-config '{"window_size":1000,"num_redundant_experts":32}'
Qwen/Qwen3-235B-A22B -tp 8 -dcp 2 --kv-cache-dtype fp8
Qwen/Qwen3-30B-A3B -dp 8 -ep --enable-dbo --all2all-backend deepep_low_latency
meta-llama/Llama-3.1-8B-Instruct -sc '{"method":"eagle3","model":"E","num_speculative_tokens":3}'
meta-llama/Llama-3.1-8B-Instruct -sc '{"method":"ngram","num_speculative_tokens":5,"prompt_lookup_min":2}'
meta-llama/Llama-3.3-70B-Instruct -tp 4 --speculative-config.model E -sc.method eagle3 -sc.num_speculative_tokens 3
Qwen/Qwen3-32B -tp 2 -O3 -q fp8
Qwen/Qwen3-32B -tp 2 -cc.cudagraph_mode=FULL --compilation-config.custom_ops+ +rms_norm
openai/gpt-oss-120b -tp 2 --no-enable-prefix-caching --max-cudagraph-capture-size 2048 --stream-interval 20
openai/gpt-oss-120b -tp 2 --compilation-config '{"pass_config":{"eliminate_noops":true}}'
Qwen/Qwen3-32B --hf-overrides '{"rope_parameters": {"rope_type":"yarn","factor":4.0}}' --max-model-len 131072 -tp 4
Qwen/Qwen3-32B --dtype float16 -tp 2 --seed 42 --disable-log-stats --tokenizer T --revision main
meta-llama/Llama-3.1-8B-Instruct --enable-lora --lora-modules '{"name":"a","path":"/a"}' '{"name":"b","path":"/b"}'
meta-llama/Llama-3.1-8B-Instruct --served-model-name a b --api-key k --allowed-origins '["*"]' --no-enable-log-requests
meta-llama/Llama-3.1-8B-Instruct --kv-transfer-config '{"kv_connector":"LMCacheConnectorV1","kv_role":"kv_both"}'
meta-llama/Llama-3.1-8B-Instruct --kv-offloading-size 64 --cudagraph-capture-sizes 1 2 4 8
meta-llama/Llama-3.1-8B-Instruct --kv-cache-memory-bytes 20G --override-generation-config '{"temperature": 0.6}'
Qwen/Qwen3-32B -tp 2 --max-num-seqs 48 --max-num-batched-tokens 3000 --gpu-memory-utilization .93 --block-size 64
"""
# What no line says is said by an export, so that later versions of vLLM do the same.
DEFAULTS = {"async_scheduling", "block_size", "enable_chunked_prefill", "max_cudagraph_capture_size", "max_model_len"}
DEFAULTS |= {"max_num_batched_tokens", "max_num_seqs", "cudagraph_mode"}


def exported(line: str, folder: Path) -> list[str]:
    text, _ = job_file(["vllm", "serve", *shlex.split(line)], folder)
    (folder / "job.toml").write_text(text.replace('device = "GPU"', 'device = "h200"'))
    assert "current" in tomllib.loads(text)["launch"]
    read = load_job(folder / "job.toml")
    nodes = [Node(device="h200", count=read.devices)]
    own = msgspec.structs.replace(read.launch, python=str(vllm_oracle.PYTHON.absolute()))
    job: Job = msgspec.structs.replace(read, cluster=Cluster(nodes=nodes), launch=own)
    launch = target_of(job).launch(job, JobSpace.of_job(job).reference)
    return [*launch.program[2:], *(word for pair in words(launch) for word in pair)]


def differing(said: dict, then: dict, of: str = "") -> list[str]:
    found = []
    for name, value in said.items():
        if isinstance(value, dict) and isinstance(then.get(name), dict):
            found += differing(value, then[name], f"{of}{name}.")
        elif value != then.get(name) and not (value == "None" and name in DEFAULTS):
            found.append(f"{of}{name}: {value} → {then.get(name)}")
    return found


def test_a_line_and_its_export_mean_the_same(tmp_path: Path) -> None:
    lines = LINES.strip().splitlines()
    asked = [each for line in lines for each in (shlex.split(line), exported(line, tmp_path))]
    script = Path(__file__).with_name("parsed_lines.py")
    done = subprocess.run(
        [str(vllm_oracle.PYTHON), str(script)], input=json.dumps(asked), capture_output=True, text=True, check=True
    )
    meant = json.loads(done.stdout)
    for line, said, then in zip(lines, meant[::2], meant[1::2], strict=True):
        assert "refused" not in said, (line, said)
        assert "refused" not in then, (line, then)
        beside = {name: value for name, value in said.items() if name not in ("model", "model_tag", "dtype")}
        assert differing(beside, then) == [], line
        assert said["dtype"] in ("auto", then["dtype"]), line
