"""Aggregates a table with DuckDB and prints a line per query: query.py --threads 1 --keys 100000 --way window."""

import argparse
import time

import duckdb

parser = argparse.ArgumentParser()
parser.add_argument("--threads", type=int, default=1)
parser.add_argument("--way", default="window")
parser.add_argument("--sorted", action="store_true")
given = parser.parse_args()
connection = duckdb.connect(config={"threads": given.threads})
order = "ORDER BY k" if given.sorted else ""
connection.execute(f"CREATE TABLE t AS SELECT i * 7919 % 50000 AS k, i AS v FROM range(400000) r(i) {order}")
ways = {
    "window": "SELECT sum(m) FROM (SELECT max(v) OVER (PARTITION BY k) AS m FROM t)",
    "join": "SELECT sum(m) FROM t JOIN (SELECT k, max(v) AS m FROM t GROUP BY k) USING (k)",
    "group": "SELECT sum(m * n) FROM (SELECT max(v) AS m, count(*) AS n FROM t GROUP BY k)",
}
for query in range(100_000):
    began = time.perf_counter()
    found = connection.execute(ways[given.way]).fetchone()
    print(f"query {query} gives {found} took {1000 * (time.perf_counter() - began):.3f} ms", flush=True)
