#!/usr/bin/env bash
# AIPerf 0.13.0 with --warmup-request-count: the warm-up has a profile_export_aiperf.json of its own, phases/warmup/ below
# the run's, of the same name and keys. All that it states of itself is the run's: the load, the number of requests, the
# id, "is_complete". Only the folder's name, and a request_count that is not the number of requests stated, tell it from a
# measurement; who gathers */profile_export_aiperf.json averages cold requests in. The warm-up ran at another concurrency.
#
# Guessed before: one file, of the measured phase. Seen (2026-12-01, Python 3.11):
#   3 files; of phases/warmup: the last phase stated is profiling, 8 requests, concurrency 4; request_count 3
set -euo pipefail
folder=$(mktemp -d)
trap 'kill "${server:-}" 2> /dev/null || true; rm -rf "$folder"' EXIT
python3 -m venv "$folder/env"
"$folder/env/bin/pip" install --quiet aiperf==0.13.0
cd "$folder"
cat > server.py <<'P'
"""Answers every prompt with four tokens, as a stream."""
import json
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


class Handler(BaseHTTPRequestHandler):
    def log_message(self, *given): ...

    def do_GET(self):
        self._send(json.dumps({"data": [{"id": "tiny"}]}), "application/json")

    def do_POST(self):
        self.rfile.read(int(self.headers["Content-Length"]))
        parts = [{"object": "text_completion", "choices": [{"index": 0, "text": " a", "finish_reason": None}]}] * 4
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
cat > tokenizer.py <<'P'
import json
import os

from tokenizers import Tokenizer, decoders, models, pre_tokenizers

os.makedirs("model")
letters = {letter: i for i, letter in enumerate(["<s>", "</s>", *pre_tokenizers.ByteLevel.alphabet()])}
made = Tokenizer(models.BPE(letters, []))
made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
made.decoder = decoders.ByteLevel()
made.save("model/tokenizer.json")
said = {"tokenizer_class": "PreTrainedTokenizerFast", "bos_token": "<s>", "eos_token": "</s>"}
json.dump(said, open("model/tokenizer_config.json", "w"))
json.dump({"model_type": "gpt2"}, open("model/config.json", "w"))
P
"$folder/env/bin/python" tokenizer.py
"$folder/env/bin/python" server.py & server=$!
for _ in $(seq 50); do [ -s port ] && break; sleep 0.1; done
timeout 300 "$folder/env/bin/aiperf" profile --model tiny --url "http://127.0.0.1:$(cat port)" --endpoint-type completions \
    --streaming --tokenizer "$folder/model" --isl 8 --osl 4 --concurrency 4 --request-count 8 --warmup-request-count 3 \
    --warmup-concurrency 1 --ui none --artifact-dir out > log 2>&1 || { tail -5 log; exit 1; }
"$folder/env/bin/python" - <<'P'
import json
import pathlib
import sys

files = {str(f.parent.relative_to("out")): json.load(open(f)) for f in pathlib.Path("out").rglob("profile_export_aiperf.json")}
run, warm = files["."], files["phases/warmup"]
last = warm["input_config"]["phases"][-1]
print(f"{len(files)} files; of phases/warmup: the last phase stated is {last['name']}, {last['requests']} requests,", end=" ")
print(f"concurrency {last['concurrency']}; request_count {warm['request_count']['avg']:g}, is_complete {warm['is_complete']}")
same = warm["input_config"] == run["input_config"] and warm["benchmark_id"] == run["benchmark_id"] and warm["is_complete"]
stated = last["name"], last["requests"], last["concurrency"]
sys.exit(0 if same and stated == ("profiling", 8, 4) and warm["request_count"]["avg"] == 3 else 1)
P
