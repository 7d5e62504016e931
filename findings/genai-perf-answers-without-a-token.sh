#!/usr/bin/env bash
# GenAI-Perf 0.0.16: an answer without a token is left out of every latency, of the tokens and of request_count, but counts
# in request_throughput. A server that refuses every second prompt by an empty answer, and so has time for twice as many,
# has twice the requests a second, with perfect latencies; nothing is printed, and request_count × latency fits no rate.
#
# Guessed before: left out of all, or an error. Seen (2026-12-01, Python 3.11):
#   8 requests, 4 of them empty: request_count 4, 8.0 requests/s in one second; 64 tokens
# perf_analyzer, which sends the requests, is no package: the file that it leaves is written here by hand.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/env"
"$folder/env/bin/pip" install --quiet genai-perf==0.0.16
cd "$folder"
cat > measure.py <<'P'
import json
import os
import sys
from pathlib import Path

from genai_perf.profile_data_parser import LLMProfileDataParser
from genai_perf.tokenizer import Tokenizer as Own
from tokenizers import Tokenizer, models, pre_tokenizers

os.makedirs("tokenizer")
words = Tokenizer(models.WordLevel({"[UNK]": 0, "a": 1}, unk_token="[UNK]"))
words.pre_tokenizer = pre_tokenizers.Whitespace()
words.save("tokenizer/tokenizer.json")
json.dump({"tokenizer_class": "PreTrainedTokenizerFast", "unk_token": "[UNK]"}, open("tokenizer/tokenizer_config.json", "w"))


def piece(text):
    choice = {"index": 0, "text": text, "finish_reason": None}
    return {"response": "data: " + json.dumps({"object": "text_completion", "choices": [choice]}) + "\n\n"}


requests = []
for i in range(8):
    texts = [" a"] * 16 if i % 2 == 0 else [""]
    began = i * 10_000_000
    ends = [began + 900_000_000 + j * 2_000_000 for j in range(len(texts))]
    if i == 6:
        ends[-1] = 1_000_000_000
    inputs = {"payload": json.dumps({"prompt": "a a a a", "model": "tiny"})}
    requests.append(
        {"timestamp": began, "request_inputs": inputs, "response_timestamps": ends, "response_outputs": [piece(t) for t in texts]}
    )
experiment = {"experiment": {"mode": "concurrency", "value": 8}, "requests": requests, "window_boundaries": []}
json.dump(
    {"experiments": [experiment], "version": "2.59.0", "service_kind": "openai", "endpoint": "v1/completions"},
    open("profile_export.json", "w"),
)

own = Own()
own.set_tokenizer("tokenizer", False, "main")
found = LLMProfileDataParser(Path("profile_export.json"), own).get_statistics("concurrency", "8")
found.scale_data()
stats = found.stats_dict
count, rate = stats["request_count"]["avg"], stats["request_throughput"]["avg"]
tokens = stats["output_sequence_length"]["avg"] * count
print(f"8 requests, 4 of them empty: request_count {count:g}, {rate:.1f} requests/s in one second; {tokens:g} tokens")
sys.exit(0 if (count, round(rate, 1), tokens) == (4, 8.0, 64) else 1)
P
"$folder/env/bin/python" measure.py 2> log || { tail -5 log; exit 1; }
