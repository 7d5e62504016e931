#!/usr/bin/env bash
# MLPerf Inference's loadgen 6.0.17: test_datetime in the detail's log ends with a Z, the sign of UTC, and is local time;
# power_begin and power_end, which name no zone, are UTC. Who joins a run with the log of a power meter or of a server by
# test_datetime is hours off wherever the clock is not set to UTC.
#
# Guessed before: test_datetime is UTC. Seen (2026-12-01, Python 3.11), with TZ=Asia/Tokyo:
#   test_datetime 9.0 hours after UTC, power_begin 0.0 hours after it
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/env"
"$folder/env/bin/pip" install --quiet mlcommons-loadgen==6.0.17
cd "$folder"
cat > run.py <<'P'
import mlperf_loadgen as loadgen


def issue(samples):
    loadgen.QuerySamplesComplete([loadgen.QuerySampleResponse(sample.id, 0, 0) for sample in samples])


settings = loadgen.TestSettings()
settings.scenario, settings.mode = loadgen.TestScenario.SingleStream, loadgen.TestMode.PerformanceOnly
settings.min_duration_ms, settings.min_query_count = 500, 10
output = loadgen.LogOutputSettings()
output.outdir = "."
logs = loadgen.LogSettings()
logs.log_output = output
system = loadgen.ConstructSUT(issue, lambda: None)
samples = loadgen.ConstructQSL(8, 8, lambda indices: None, lambda indices: None)
loadgen.StartTestWithLogSettings(system, samples, settings, logs)
P
TZ=Asia/Tokyo "$folder/env/bin/python" run.py > log 2>&1 || { tail -5 log; exit 1; }
"$folder/env/bin/python" - <<'P'
import json
import sys
from datetime import UTC, datetime

now = datetime.now(UTC)
events = {}
for line in open("mlperf_log_detail.txt"):
    event = json.loads(line.removeprefix(":::MLLOG "))
    events[event["key"]] = event["value"]
stated = datetime.fromisoformat(events["test_datetime"])
power = datetime.strptime(events["power_begin"], "%m-%d-%Y %H:%M:%S.%f").replace(tzinfo=UTC)
ahead = [round((moment - now).total_seconds() / 3600, 1) + 0.0 for moment in (stated, power)]
print(events["test_datetime"], f"is {ahead[0]} hours after UTC;", events["power_begin"], f"{ahead[1]} hours after it")
sys.exit(0 if events["test_datetime"].endswith("Z") and ahead == [9.0, 0.0] else 1)
P
