"""The layout of measurements in the tables, and the only code that adds them. No measurement is stored twice, and
values that many rows have in common are stored once.

To store measurements, callers create a temporary table or view `incoming` with the columns of INCOMING and a row number
`place`, and call `store_incoming`. To read complete measurements, they select EXACT.
"""

from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from kb import claims, older
from kb.records import Measurement, Model

if TYPE_CHECKING:
    from duckdb import DuckDBPyConnection

# Metrics with their own columns in `measurement`, since queries often use them; all others are in `other_metrics`.
METRICS = (
    *("step_time_s", "step_time_min_s", "tokens_per_s", "peak_memory_gib", "cpu_s"),
    *("ttft_mean_ms", "ttft_p50_ms", "ttft_p99_ms", "tpot_mean_ms", "tpot_p50_ms", "tpot_p99_ms", "itl_p99_ms"),
    *("e2el_mean_ms", "e2el_p99_ms", "requests_per_s", "output_tokens_per_s", "total_tokens_per_s", "goodput_rps"),
)
# Knobs with their own columns in `configuration`, since queries often use them; `knobs` has all knobs.
KNOBS = {
    **dict.fromkeys(("pp", "tp", "dp", "cp", "ep", "etp", "vpp"), "INTEGER"),
    **dict.fromkeys(("ar_layers", "mbs", "tp_comm", "a100", "a40"), "INTEGER"),
    **dict.fromkeys(("sp", "distopt", "overlap_grad", "overlap_param"), "BOOLEAN"),
    **dict.fromkeys(("ar", "ar_method", "kv_cache_dtype", "quantization", "spec"), "VARCHAR"),
    **dict.fromkeys(("ddp_bucket", "reduce_bucket"), "BIGINT"),
    **dict.fromkeys(("max_num_seqs", "max_num_batched_tokens", "block_size", "stage"), "INTEGER"),
    "gpu_memory_utilization": "DOUBLE",
    **dict.fromkeys(("prefix_caching", "chunked_prefill", "eager"), "BOOLEAN"),
}
# fields of a measurement that are lists; either all of them are stored or none
SERIES = ("iterations_s", "losses", "grad_norms", "rank_memory_gib")
PER_RANK = ("per_rank", "rank_devices")  # stored in the same table as the series; NULL if there is no value
_PLAIN = ("status", "fidelity", "evidence", "cost_s", "device_s", "period")
INCOMING = {
    "id": "UBIGINT",
    **dict.fromkeys(("session", "job_id", "context", "environment"), "VARCHAR"),
    **dict.fromkeys(("configuration_id", "name", "knobs"), "VARCHAR"),
    "number": "INTEGER",
    **dict.fromkeys(("purpose", "status", "fidelity", "evidence", "period"), "VARCHAR"),
    **dict.fromkeys(("cost_s", "device_s", "unix_s", *METRICS), "DOUBLE"),
    **dict.fromkeys(("other_metrics", "conditions", *SERIES, *PER_RANK), "VARCHAR"),
}
LATER = ("period", "conditions", *PER_RANK)  # columns that older lakes do not have
# columns of `incoming` that are copied into the table `measurement` unchanged
COPIED = ("number", "purpose", *_PLAIN, "unix_s", *METRICS, "other_metrics", "conditions")

EXACT = (
    "o.session, o.job_id, o.context, o.environment, c.id AS configuration_id, c.name, c.knobs, m.id, "
    + ", ".join(f"m.{name}" for name in COPIED)
    + ", "
    + ", ".join(f"x.{name}" for name in (*SERIES, *PER_RANK))
)
EXACT_FROM = (
    "measurement AS m INNER JOIN origin AS o ON o.key = m.origin "
    "INNER JOIN configuration AS c ON c.key = m.configuration"
)


def family(task: str, target: str, model: Model) -> str:
    """A kind of job, such as pretrain-megatron-dense, by which files in a lake are sorted into folders."""
    return f"{task}-{target}-{'moe' if model.experts else 'dense'}"


def json(value: Any) -> str:
    return msgspec.json.encode(value).decode()


def incoming(session: str, job_id: str, number: int | None, purpose: str, measurement: Measurement) -> dict[str, Any]:
    """A measurement as a row of `incoming`."""
    metrics = dict(measurement.metrics)
    columns = {name: metrics.pop(name, None) for name in METRICS}
    others = {name: getattr(measurement, name) for name in (*SERIES, *PER_RANK)}
    return {
        "id": int(measurement.id, 16),
        "session": session,
        "job_id": job_id,
        "context": measurement.context,
        "environment": json(measurement.environment),
        "configuration_id": measurement.configuration.id,
        "name": measurement.name,
        "knobs": json(measurement.configuration.knobs),
        "number": number,
        "purpose": purpose,
        **{name: getattr(measurement, name) for name in _PLAIN},
        "unix_s": measurement.at,
        **columns,
        "other_metrics": json(metrics) if metrics else None,
        "conditions": json(measurement.conditions) if measurement.conditions else None,
        **{name: json(others[name]) if any(others.values()) else None for name in SERIES},
        **{name: json(others[name]) if others[name] else None for name in PER_RANK},
    }


def stage(con: "DuckDBPyConnection", rows: list[dict[str, Any]]) -> None:
    """Creates `incoming` from rows, which are passed as one JSON text: for each value passed to it, the duckdb package
    tries to import pandas, and if pandas is not installed, searches sys.path every time."""
    con.execute(
        "CREATE OR REPLACE TEMP TABLE incoming AS SELECT row_number() OVER () AS place, * "
        f"FROM (SELECT unnest(from_json(?, '{json([INCOMING])}'), max_depth := 2))",
        [json(rows)],
    )


def write_lines(path: Path, found: Iterable[dict[str, Any]]) -> int:
    """Writes rows of `incoming` as lines of JSON, for `of_lines`; returns their number."""
    encode = msgspec.json.Encoder().encode
    count = 0
    with open(path, "wb") as file:
        for row in found:
            file.write(encode({name: value for name, value in row.items() if value is not None}) + b"\n")
            count += 1
    return count


def of_lines(path: Path) -> str:
    """SQL that reads a file of `write_lines` as rows of a lake's file (kb/sharing/lake.py)."""
    shape = ", ".join(f"{name}: '{kind}'" for name, kind in INCOMING.items())
    text = str(path).replace("'", "''")
    return (
        "SELECT 'measurement' AS kind, row_number() OVER () AS place, * "
        f"FROM read_json('{text}', format = 'newline_delimited', columns = {{{shape}}})"
    )


def insert(con: "DuckDBPyConnection", table: str, values: list[dict[str, Any]], conflict: str = "DO NOTHING") -> None:
    """Inserts rows into a table with a primary key, as one JSON text (see `stage`). `conflict`: the action after ON
    CONFLICT."""
    if not values:
        return
    shape = {name: ["VARCHAR"] if isinstance(value, list) else "VARCHAR" for name, value in values[0].items()}
    con.execute(
        f"INSERT INTO {table} BY NAME "
        f"SELECT unnest(from_json(?, '{json([shape])}'), max_depth := 2) ON CONFLICT {conflict}",
        [json(values)],
    )


def store_incoming(con: "DuckDBPyConnection") -> int:
    """Adds the new measurements in `incoming`, in order, within the caller's transaction, and returns their number.
    Measurements that are already stored get a further source (kb/claims.py). Large tables are only scanned for the ids
    in `incoming`.
    """
    [(arriving,)] = con.execute(
        """
        CREATE OR REPLACE TEMP TABLE arriving AS
        SELECT place, id, session, purpose FROM incoming
        WHERE session NOT IN (SELECT session FROM forgotten)
        """
    ).fetchall()
    claims.look_up(con)
    con.execute(
        """
        CREATE OR REPLACE TEMP TABLE first AS
        SELECT min(place) AS place FROM arriving WHERE id NOT IN (SELECT id FROM known) GROUP BY id
        """
    )
    con.execute("CREATE OR REPLACE TEMP VIEW fresh AS FROM incoming WHERE place IN (FROM first)")
    con.execute(
        f"""
        INSERT INTO configuration BY NAME
        SELECT
            coalesce((SELECT max(key) FROM configuration), 0) + row_number() OVER (ORDER BY place) AS key,
            configuration_id AS id, name, knobs,
            {", ".join(f"try_cast(knobs ->> '{name}' AS {kind}) AS {name}" for name, kind in KNOBS.items())}
        FROM (
            SELECT configuration_id, name, arg_min(knobs, place)::JSON AS knobs, min(place) AS place
            FROM fresh GROUP BY configuration_id, name
        ) AS f
        WHERE (configuration_id, name) NOT IN (
            SELECT (id, name) FROM configuration WHERE id IN (SELECT configuration_id FROM fresh))
        """
    )
    _add_origins(con, "fresh")
    [(inserted,)] = con.execute(
        f"""
        INSERT INTO measurement BY NAME
        SELECT
            f.id, coalesce((SELECT max(added) FROM measurement), 0) + row_number() OVER (ORDER BY f.place) AS added,
            o.key AS origin, c.key AS configuration, {", ".join(f"f.{name}" for name in COPIED)}
        FROM fresh AS f
        INNER JOIN (SELECT * FROM origin WHERE session IN (SELECT session FROM fresh)) AS o
            ON o.session = f.session AND o.job_id = f.job_id AND o.context = f.context
            AND o.environment::VARCHAR = f.environment
        INNER JOIN (SELECT key, id, name FROM configuration WHERE id IN (SELECT configuration_id FROM fresh)) AS c
            ON c.id = f.configuration_id AND c.name = f.name
        ORDER BY f.place
        """
    ).fetchall()
    others = ", ".join((*SERIES, *PER_RANK))
    con.execute(
        f"INSERT INTO series (id, {others}) SELECT id, {others} FROM fresh WHERE iterations_s IS NOT NULL "
        f"ORDER BY place"
    )
    if inserted != arriving and claims.further(con):
        _add_origins(con, "further")
        claims.add(con)
    return inserted


def _add_origins(con: "DuckDBPyConnection", table: str) -> None:
    """Adds those origins of a temporary table's rows that are not stored yet."""
    con.execute(
        f"""
        INSERT INTO origin BY NAME
        SELECT
            coalesce((SELECT max(key) FROM origin), 0) + row_number() OVER (ORDER BY place) AS key,
            session, job_id, context, environment
        FROM (
            SELECT session, job_id, context, environment, min(place) AS place
            FROM {table} GROUP BY session, job_id, context, environment
        ) AS f
        WHERE (session, job_id, context, environment) NOT IN (
            SELECT (session, job_id, context, environment::VARCHAR) FROM origin
            WHERE session IN (SELECT session FROM {table}))
        """
    )


def exact(con: "DuckDBPyConnection", where: str, parameters: dict[str, Any]) -> list[dict[str, Any]]:
    """Rows with the columns of `incoming`, in the order in which they were added. `where`: SQL condition, in which m, o
    and c are `measurement`, `origin` and `configuration`."""
    cursor = con.execute(
        f"""
        WITH chosen AS MATERIALIZED (SELECT m.* FROM {EXACT_FROM} WHERE {where})
        SELECT {EXACT} FROM chosen AS m
        INNER JOIN origin AS o ON o.key = m.origin INNER JOIN configuration AS c ON c.key = m.configuration
        LEFT JOIN (SELECT * FROM series WHERE id IN (SELECT id FROM chosen)) AS x ON x.id = m.id
        ORDER BY m.added
        """,
        parameters,
    )
    names = [column[0] for column in cursor.description]
    return [dict(zip(names, row, strict=True)) for row in cursor.fetchall()]


def measurement(row: dict[str, Any]) -> Measurement:
    """The inverse of `incoming`."""
    metrics = {name: row[name] for name in METRICS if row[name] is not None}
    if row["other_metrics"]:
        metrics |= msgspec.json.decode(row["other_metrics"])
    fields = {
        "configuration": {"knobs": msgspec.json.decode(row["knobs"])},
        "name": row["name"],
        "context": row["context"],
        "environment": msgspec.json.decode(row["environment"]),
        **{name: row[name] for name in _PLAIN},
        "at": row["unix_s"],
        "metrics": metrics,
        **{name: msgspec.json.decode(row[name]) for name in (*SERIES, *PER_RANK, "conditions") if row[name]},
    }
    return msgspec.convert(older.measurement(fields), Measurement)
