#!/usr/bin/env bash
# MLPerf Inference's loadgen 6.0.17, Server with use_token_latencies: errors do not make a test INVALID. A system that
# reports no first token gets an error a query, and "Result is : VALID, Performance constraints satisfied : Yes" with a
# time to first token of 0 and a time per output token of 0, which meet any limit. Only the last line counts the errors.
#
# Guessed before: INVALID, or no first-token latency. Seen (2026-12-01, Python 3.11):
#   VALID, constraints met Yes, mean first token 0 ns, mean per output token 0 ns, as many errors as queries
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
    time.sleep(0.02)
    whole = loadgen.QuerySampleResponse(sample.id, tokens.ctypes.data, tokens.nbytes, 16)
    loadgen.QuerySamplesComplete([whole])  # without FirstTokenComplete before it


def issue(samples):
    for sample in samples:
        threading.Thread(target=answer, args=(sample,)).start()


settings = loadgen.TestSettings()
settings.scenario, settings.mode = loadgen.TestScenario.Server, loadgen.TestMode.PerformanceOnly
settings.server_target_qps, settings.min_duration_ms, settings.min_query_count = 200, 3000, 800
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
import re
import sys

text = open("mlperf_log_summary.txt").read()
detail = [json.loads(line.removeprefix(":::MLLOG ")) for line in open("mlperf_log_detail.txt")]
found = {event["key"]: event["value"] for event in detail}
first, each = (re.search(rf"^Mean {name} \(ns\)\s*: (\d+)", text, re.M)[1] for name in ("First Token latency", "Time per Output Token"))
valid, met = re.search(r"Result is : (\w+)", text)[1], re.search(r"constraints satisfied : (\w+)", text)[1]
print(f"{valid}, constraints met {met}, mean first token {first} ns, mean per output token {each} ns")
print(f"{found['num_errors']} errors for {found['result_query_count']} queries")
same = (valid, met, first, each) == ("VALID", "Yes", "0", "0") and found["num_errors"] == found["result_query_count"] > 0
sys.exit(0 if same else 1)
P
