#!/usr/bin/env bash
# DuckDB's medians and quantiles of decimals keep the digits of their input: the median of 1.0 and 2.5 is 1.7, while their
# mean is 1.75 and the median of the integers 1 and 2 is 1.5. Numbers that a query writes out are decimals, and so are
# columns of money or of seconds with three digits in Parquet. What is cut off changed: below zero 1.5.6 goes away from
# zero, 2.0.1 towards it.
#
# Guessed before: a DOUBLE, 1.75, as the mean. Seen (2026-11-29, Python 3.11):
#   1.5.6: median 1.7 (DECIMAL(2,1)), of the negatives -1.8, mean 1.75, of doubles 1.75
#   2.0.1: median 1.7 (DECIMAL(2,1)), of the negatives -1.7, mean 1.75, of doubles 1.75
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cat > "$folder/run.py" <<'P'
import sys

import duckdb

found = {}
for text in ("median(x)", "typeof(median(x))", "median(-x)", "quantile_cont(x, 0.5)", "avg(x)", "median(x::DOUBLE)"):
    ((value,),) = duckdb.sql(f"SELECT {text} FROM (VALUES (1.0), (2.5)) t(x)").fetchall()
    found[text] = str(value)
    print(f"DuckDB {duckdb.__version__}: {text} → {value}")
below = "-1.7" if duckdb.__version__ >= "2" else "-1.8"
sys.exit(list(found.values()) != ["1.7", "DECIMAL(2,1)", below, "1.7", "1.75", "1.75"])
P
for version in 1.5.6 2.0.1; do
  "${PYTHON:-python3.11}" -m venv "$folder/$version"
  "$folder/$version/bin/pip" install --quiet "duckdb==$version"
  "$folder/$version/bin/python" "$folder/run.py"
done
