#!/usr/bin/env bash
# DuckDB 2.0.1 takes INTERVAL 1.5 HOUR without parentheses, which 1.5.6 refused as a syntax error, and makes one hour of
# it; half a day is nothing. Seconds keep their fraction, and so does the text '1.5 hours'. Nothing is said.
#
# Guessed before: 90 minutes. Seen (2026-11-29, Python 3.11):
#   2.0.1: 1.5 HOUR is 1:00:00, 0.5 DAY 0:00:00, 2.9 SECOND 0:00:02.900000, '1.5 hours' 1:30:00; 1.5.6: a syntax error
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cat > "$folder/run.py" <<'P'
import sys
from datetime import timedelta

import duckdb

found = {}
for text in ("1.5 HOUR", "0.5 DAY", "2.9 SECOND", "'1.5 hours'"):
    try:
        ((found[text],),) = duckdb.sql(f"SELECT INTERVAL {text}").fetchall()
    except duckdb.ParserException as error:
        found[text] = str(error).partition("\n")[0]
    print(f"DuckDB {duckdb.__version__}: INTERVAL {text} → {found[text]}")
half = found["'1.5 hours'"] == timedelta(minutes=90)
if duckdb.__version__ >= "2":
    cut = (found["1.5 HOUR"], found["0.5 DAY"], found["2.9 SECOND"])
    sys.exit(not (half and cut == (timedelta(hours=1), timedelta(0), timedelta(seconds=2.9))))
sys.exit(not (half and "syntax error" in str(found["1.5 HOUR"])))
P
for version in 1.5.6 2.0.1; do
  "${PYTHON:-python3.11}" -m venv "$folder/$version"
  "$folder/$version/bin/pip" install --quiet "duckdb==$version"
  "$folder/$version/bin/python" "$folder/run.py"
done
