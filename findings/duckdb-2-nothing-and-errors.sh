#!/usr/bin/env bash
# DuckDB 2.0.1 against 1.5.6, two changes in opposite directions: what was NULL is an error (1 // 0, 1 % 0: a query over a
# million rows ends at the one with a zero), while 1 / 0 stays infinite; and what was an error is a number (ln(0) is -inf,
# sqrt(-1) and stddev over an infinite value are nan), which then goes through sums and averages.
#
# Guessed before: the same answers in both. Seen (2026-11-29, Python 3.11):
#   1.5.6: 1 // 0 NULL, 1 % 0 NULL, 1 / 0 inf, ln(0) error, sqrt(-1) error, stddev error
#   2.0.1: 1 // 0 error, 1 % 0 error, 1 / 0 inf, ln(0) -inf, sqrt(-1) nan, stddev nan
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cat > "$folder/run.py" <<'P'
import sys

import duckdb

found = []
for text in ("1 // 0", "1 % 0", "1 / 0", "ln(0)", "sqrt(-1)", "(SELECT stddev(x) FROM (VALUES ('inf'::DOUBLE), (1.0)) t(x))"):
    try:
        ((value,),) = duckdb.sql(f"SELECT {text}").fetchall()
        found.append("NULL" if value is None else str(value))
    except (duckdb.InvalidInputException, duckdb.OutOfRangeException):
        found.append("error")
    print(f"DuckDB {duckdb.__version__}: {text} → {found[-1]}")
old, new = ["NULL", "NULL", "inf", "error", "error", "error"], ["error", "error", "inf", "-inf", "nan", "nan"]
sys.exit(found != (new if duckdb.__version__ >= "2" else old))
P
for version in 1.5.6 2.0.1; do
  "${PYTHON:-python3.11}" -m venv "$folder/$version"
  "$folder/$version/bin/pip" install --quiet "duckdb==$version"
  "$folder/$version/bin/python" "$folder/run.py"
done
