#!/usr/bin/env bash
# inference-perf 0.7.0 (Python 3.12 or later): the report of a concurrent load (a closed loop: so many requests at a time)
# has a requested_rate as an open loop's has, and it is the number of requests, as if all were asked for within a second.
# And answers are tokenized again: output_len and output_tokens_per_sec count those tokens, output_tokens what the server
# counted. With a tokenizer of single letters, answers of 4 tokens a server have 20.
#
# Guessed before: no requested_rate, and the server's tokens in the throughput. Seen (2026-11-28):
#   requested_rate 8.0, concurrency 2; output_tokens 4.0 a request, output_len 20.0, the throughput that of output_len
set -euo pipefail
python=${PYTHON:-python3.12}
folder=$(mktemp -d)
trap 'kill "${server:-}" 2> /dev/null || true; rm -rf "$folder"' EXIT
"$python" -m venv "$folder/env"
"$folder/env/bin/pip" install --quiet inference-perf==0.7.0
cd "$folder"
cat > prepare.py <<'P'
import json
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

letters = {letter: i for i, letter in enumerate(["<s>", "</s>", *pre_tokenizers.ByteLevel.alphabet()])}
made = Tokenizer(models.BPE(letters, []))
made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
made.decoder = decoders.ByteLevel()
made.save("tokenizer/tokenizer.json")
said = {"tokenizer_class": "PreTrainedTokenizerFast", "bos_token": "<s>", "eos_token": "</s>"}
json.dump(said, open("tokenizer/tokenizer_config.json", "w"))
P
cat > server.py <<'P'
"""Answers every prompt with four tokens of five letters, as a stream, and with the usage that it counted."""
import json
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


class Handler(BaseHTTPRequestHandler):
    def log_message(self, *given): ...

    def do_GET(self):
        self._send(json.dumps({"data": [{"id": "tiny"}]}), "application/json")

    def do_POST(self):
        self.rfile.read(int(self.headers["Content-Length"]))
        parts = [{"choices": [{"index": 0, "text": "abcde", "finish_reason": None}]} for _ in range(4)]
        usage = {"prompt_tokens": 8, "completion_tokens": 4, "total_tokens": 12}
        parts.append({"choices": [], "usage": usage})
        self._send("".join(f"data: {json.dumps(p)}\n\n" for p in parts) + "data: [DONE]\n\n", "text/event-stream")

    def _send(self, text, kind):
        self.send_response(200)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text.encode())


made = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
open("port", "w").write(str(made.server_port))
made.serve_forever()
P
mkdir tokenizer
"$folder/env/bin/python" prepare.py
"$folder/env/bin/python" server.py & server=$!
for _ in $(seq 50); do [ -s port ] && break; sleep 0.1; done
cat > config.yml <<Y
load: {type: concurrent, stages: [{num_requests: 8, concurrency_level: 2}], num_workers: 1}
api: {type: completion, streaming: true}
server: {type: vllm, model_name: tiny, base_url: "http://127.0.0.1:$(cat port)", ignore_eos: true}
tokenizer: {pretrained_model_name_or_path: $folder/tokenizer}
data: {type: random, input_distribution: {min: 8, max: 8, mean: 8, std_dev: 0, total_count: 8}, output_distribution: {min: 4, max: 4, mean: 4, std_dev: 0, total_count: 8}}
storage: {local_storage: {path: $folder/report}}
Y
HF_HUB_OFFLINE=1 timeout 120 "$folder/env/bin/inference-perf" -c config.yml > log 2>&1 || { tail -5 log; exit 1; }
"$folder/env/bin/python" - <<'P'
import json
import sys

told = json.load(open("report/stage_0_lifecycle_metrics.json"))
load, good, seconds = told["load_summary"], told["successes"], told["benchmark_time_seconds"]
of_length = good["output_len"]["mean"] * good["count"] / seconds
print("requested_rate", load["requested_rate"], "concurrency", load["concurrency"])
print("output_tokens", good["output_tokens"]["mean"], "output_len", good["output_len"]["mean"])
print("output_tokens_per_sec", good["throughput"]["output_tokens_per_sec"], "of output_len", of_length)
same = load["requested_rate"] == 8.0 and load["concurrency"] == 2 and good["output_tokens"]["mean"] == 4
same = same and good["output_len"]["mean"] == 20 and abs(good["throughput"]["output_tokens_per_sec"] / of_length - 1) < 1e-6
sys.exit(0 if same else 1)
P
