#!/usr/bin/env bash
# Ray Tune 2.60.0: the last line of a finished function trial's result.json says "done": false, as every line before it
# does; only experiment_state-*.json knows that the trial has ended (TERMINATED). A trial that raised has an empty
# result.json. A reader that waits for "done": true finds no finished trial.
#
# Guessed before: the last line says true. Seen (2026-11-28, Python 3.11): two lines, false and false; TERMINATED.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/env"
"$folder/env/bin/pip" install --quiet "ray[tune]==2.60.0"
mkdir "$folder/work" && cd "$folder/work"
cat > run.py <<'P'
import ray
from ray import tune

ray.init(num_cpus=1, include_dashboard=False, log_to_driver=False)


def trial(settings):
    if settings["fails"]:
        raise RuntimeError("on purpose")
    for step in range(2):
        tune.report({"seconds": 0.1 * step})


tune.Tuner(
    trial,
    param_space={"fails": tune.grid_search([False, True])},
    run_config=tune.RunConfig(name="e", storage_path=f"{__import__('os').getcwd()}/results", verbose=0),
).fit()
P
"$folder/env/bin/python" run.py > log 2>&1 || { tail -5 log; exit 1; }
"$folder/env/bin/python" - <<'P'
import json
import pathlib
import sys

files = sorted(pathlib.Path("results/e").glob("*/result.json"), key=lambda file: file.stat().st_size)
said = [[json.loads(line)["done"] for line in file.read_text().splitlines()] for file in files]
state = next(pathlib.Path("results/e").glob("experiment_state-*.json")).read_text()
print("done:", said, "| TERMINATED:", "TERMINATED" in state)
sys.exit(0 if said == [[], [False, False]] and "TERMINATED" in state else 1)
P
