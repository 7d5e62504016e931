#!/usr/bin/env bash
# MLflow 3.17.2, its default store (mlflow.db): a metric that is NaN is a row whose value is 0.0, beside is_nan = 1, also
# in latest_metrics; an infinite one is the largest double. Who reads `value` alone finds a loss of nothing for a run that
# diverged. A run that an exception ended is FAILED, and no table keeps the exception.
#
# Guessed before: NULL, or the text "nan". Seen (2026-11-28, Python 3.11):
#   metrics: loss|0.0|1, speed|1.7976931348623157e+308|0
#   the word of the exception occurs 0 times in the database
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/env"
"$folder/env/bin/pip" install --quiet mlflow==3.17.2
mkdir "$folder/work" && cd "$folder/work"
cat > run.py <<'P'
import math
import mlflow

mlflow.set_experiment("e")
try:
    with mlflow.start_run():
        mlflow.log_metric("loss", math.nan)
        mlflow.log_metric("speed", math.inf)
        raise RuntimeError("marmalade")
except RuntimeError:
    pass
P
"$folder/env/bin/python" run.py > log 2>&1 || { cat log; exit 1; }
"$folder/env/bin/python" - <<'P'
import sqlite3
import sys

base = sqlite3.connect("mlflow.db")
found = sorted(base.execute("SELECT key, value, is_nan FROM metrics"))
latest = sorted(base.execute("SELECT key, value, is_nan FROM latest_metrics"))
status = base.execute("SELECT status FROM runs").fetchall()
words = sum("marmalade" in line for line in base.iterdump())
print("metrics:", found, "status:", status, "the exception's word:", words)
expected = [("loss", 0.0, 1), ("speed", sys.float_info.max, 0)]
same = [(k, v, int(n)) for k, v, n in found] == expected == [(k, v, int(n)) for k, v, n in latest]
sys.exit(0 if same and status == [("FAILED",)] and words == 0 else 1)
P
