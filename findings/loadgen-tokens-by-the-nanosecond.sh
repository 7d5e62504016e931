#!/usr/bin/env bash
# MLPerf Inference's loadgen 6.0.17, Server with use_token_latencies: of the two rates of tokens in the detail's log that
# are named alike, result_token_throughput_with_loadgen_overhead is per second and result_token_throughput per nanosecond;
# neither name says so. And the summary's tokens per second are not its samples per second times the tokens of each: the
# first divides all answers by the time of the last, the second one answer less.
#
# Guessed before: both by the second, a little apart; 16 tokens a sample. Seen (2026-12-01, Python 3.11):
#   with overhead by the second, without about a billionth of it; tokens a sample 16 × n / (n − 1)
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/env"
"$folder/env/bin/pip" install --quiet mlcommons-loadgen==6.0.17 numpy==2.4.6
cd "$folder"
cat > run.py <<'P'
import threading
import time

import mlperf_loadgen as loadgen
import numpy

tokens = numpy.zeros(16, numpy.int64)


def answer(sample):
    time.sleep(0.01)
    loadgen.FirstTokenComplete([loadgen.QuerySampleResponse(sample.id, tokens.ctypes.data, 8)])
    time.sleep(0.03)
    loadgen.QuerySamplesComplete([loadgen.QuerySampleResponse(sample.id, tokens.ctypes.data, tokens.nbytes, 16)])


def issue(samples):
    for sample in samples:
        threading.Thread(target=answer, args=(sample,)).start()


settings = loadgen.TestSettings()
settings.scenario, settings.mode = loadgen.TestScenario.Server, loadgen.TestMode.PerformanceOnly
settings.server_target_qps, settings.min_duration_ms, settings.min_query_count = 5, 2000, 8
settings.use_token_latencies = True
settings.ttft_latency, settings.tpot_latency = 500_000_000, 50_000_000
output = loadgen.LogOutputSettings()
output.outdir = "."
logs = loadgen.LogSettings()
logs.log_output = output
system = loadgen.ConstructSUT(issue, lambda: None)
samples = loadgen.ConstructQSL(64, 64, lambda indices: None, lambda indices: None)
loadgen.StartTestWithLogSettings(system, samples, settings, logs)
P
"$folder/env/bin/python" run.py > log 2>&1 || { tail -5 log; exit 1; }
"$folder/env/bin/python" - <<'P'
import json
import sys

found = {}
for line in open("mlperf_log_detail.txt"):
    event = json.loads(line.removeprefix(":::MLLOG "))
    found[event["key"]] = event["value"]
loaded, bare = found["result_token_throughput_with_loadgen_overhead"], found["result_token_throughput"]
n = found["result_query_count"]
a_sample = found["result_completed_tokens_per_second"] / found["result_completed_samples_per_sec"]
print(f"with overhead {loaded}, without {bare}; {n} queries, tokens a sample {a_sample:.2f}, {16 * n / (n - 1):.2f} foretold")
sys.exit(0 if 0.5 < bare * 1e9 / loaded < 20 and abs(a_sample / (16 * n / (n - 1)) - 1) < 0.005 else 1)
P
