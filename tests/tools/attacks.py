"""Attacks on a knowledge base through its commands: nothing outside it may be read, written or deleted.

    python tests/tools/attacks.py [--json] [--list]

Each attack is one `autoscout` command (or a few) in a process of its own, on a copy of a small knowledge base. Next to
it are a file with a secret, a folder that looks like a session, and a folder in which an executed command would leave a
mark. An attack succeeds if the secret is printed or stored, anything outside the knowledge base changes, a session
other than the named one is deleted, or the command ends in an internal error."""

import argparse
import hashlib
import itertools
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import duckdb
import fuzz

_SECRET = "hunter2-is-the-secret"
_JOB = str(Path(__file__).parents[2] / "fixtures" / "jobs" / "smallest-cpu-replay.toml")


class Attack(NamedTuple):
    door: str
    what: str
    do: Callable[[Path], list[list[str]]]  # prepares the folder with home/ and outside/; returns the commands


_STATEMENTS = [
    "COPY runs TO 'OUT/new.csv'",
    "COPY (SELECT 1) TO 'OUT/secret.txt'",
    "EXPORT DATABASE 'OUT/all'",
    "COPY runs FROM 'OUT/secret.csv'",
    "IMPORT DATABASE 'OUT'",
    "ATTACH 'OUT/new.duckdb'",
    "ATTACH 'OUT/secret.duckdb' AS s",
    "ATTACH ':memory:' AS m",
    "DETACH kb",
    "USE memory",
    "INSTALL httpfs",
    "LOAD httpfs",
    "LOAD 'OUT/x.duckdb_extension'",
    "SET enable_external_access = true",
    "SET allowed_paths = ['OUT']",
    "SET lock_configuration = false",
    "RESET enable_external_access",
    "SET temp_directory = 'OUT'",
    "SET log_query_path = 'OUT/log'",
    "SET home_directory = 'OUT'",
    "SET extension_directory = 'OUT'",
    "PRAGMA enable_profiling = 'json'",
    "SET profiling_output = 'OUT/profile'",
    "PRAGMA database_list",
    "CREATE SECRET (TYPE s3)",
    "CREATE TABLE t AS SELECT 1",
    "CREATE VIEW v AS SELECT * FROM read_text('OUT/secret.txt')",
    "CREATE MACRO m() AS TABLE FROM read_text('OUT/secret.txt')",
    "CREATE TYPE mood AS ENUM ('a')",
    "DROP TABLE measurement",
    "DELETE FROM measurement",
    "UPDATE session SET host = 'x'",
    "INSERT INTO forgotten VALUES ('good', 0)",
    "ALTER TABLE session ADD COLUMN x INT",
    "TRUNCATE measurement",
    "VACUUM",
    "CHECKPOINT",
    "FORCE CHECKPOINT",
    "CALL enable_logging()",
    "SELECT 1; COPY runs TO 'OUT/new.csv'",
    "SELECT 1 /* */; DROP TABLE session",
    "PREPARE p AS COPY runs TO 'OUT/new.csv'",
    "EXECUTE p",
    "EXPLAIN ANALYZE COPY runs TO 'OUT/new.csv'",
    "EXPLAIN ANALYZE DELETE FROM measurement",
    "SELECT getenv('SECRET')",
    "SELECT write_log('OUT')",
    "SELECT * FROM duckdb_secrets()",
    "SELECT * FROM pragma_database_list()",
    "SELECT current_setting('temp_directory')",
    "SELECT * FROM duckdb_settings()",
    "SELECT * FROM sqlite_scan('OUT/secret.txt', 't')",
    "SELECT * FROM postgres_scan('host=127.0.0.1', 'a', 'b')",
    "SELECT * FROM 'http://127.0.0.1:9/x.csv'",
    "SELECT * FROM 's3://a/b.parquet'",
    "SELECT * FROM which_secret('s3://a', 's3')",
    "SELECT * FROM shell('id')",
    "PIVOT (FROM read_csv('OUT/secret.csv')) ON a USING count(*)",
    "SUMMARIZE FROM 'OUT/secret.csv'",
    "FROM read_text(list_value('OUT/secret.txt')[1])",
    "SELECT * FROM read_text('/' || 'etc/passwd')",
    "SELECT * FROM read_text('/proc/self/environ')",
    "BEGIN; DROP TABLE session; COMMIT",
]


def _sql() -> Iterator[Attack]:
    files = ["OUT/secret.txt", "OUT/secret.csv", "OUT/secret.json", "OUT/*"]
    reads = [
        f"{name}('OUT/secret{end}')"
        for name, end in [
            ("read_text", ".txt"), ("read_blob", ".txt"), ("read_csv", ".csv"), ("read_csv_auto", ".csv"),
            ("read_json", ".json"), ("read_json_auto", ".json"), ("read_json_objects", ".json"),
            ("read_json_objects_auto", ".json"), ("read_ndjson", ".json"), ("read_ndjson_auto", ".json"),
            ("read_ndjson_objects", ".json"), ("read_parquet", ".parquet"), ("parquet_scan", ".parquet"),
            ("parquet_metadata", ".parquet"), ("parquet_schema", ".parquet"), ("parquet_file_metadata", ".parquet"),
            ("parquet_kv_metadata", ".parquet"), ("sniff_csv", ".csv"), ("glob", "*"), ("read_duckdb", ".duckdb"),
        ]
    ]  # fmt: skip
    wraps = [
        "SELECT * FROM {}", "WITH t AS (FROM {}) SELECT * FROM t", "SELECT (SELECT count(*) FROM {})",
        "SELECT * FROM runs, LATERAL (SELECT * FROM {}) x", "DESCRIBE SELECT * FROM {}",
        "EXPLAIN ANALYZE SELECT * FROM {}",
    ]  # fmt: skip
    for read, wrap in itertools.product(reads, wraps):
        yield _asked(wrap.format(read))
    for file in files:
        yield _asked(f"SELECT * FROM '{file}'")
        yield _asked(f'SELECT * FROM "{file}"')
        yield _asked(f"SELECT * FROM query('SELECT * FROM ''{file}''')")
        yield _asked(f"SELECT * FROM query_table('{file}')")
    for statement in _STATEMENTS:
        yield _asked(statement)


def _asked(sql: str) -> Attack:
    return Attack("sql", sql, lambda place: [["sql", sql.replace("OUT", str(place / "outside"))]])


_NAMES = [
    "", ".", "..", "../..", "../../outside", "OUT", "OUT/", "./good/../../../outside", "good/../../../outside", "good/",
    "good/.", "~", "*", "go*", "good\n", "good\x00", " good", "good;", "linked", "$(touch OUT/mark)",
    "`touch OUT/mark`",
    "%2e%2e", "..\\..", "．．", "sessions", "-", "\x1b[2J",
]  # fmt: skip
_VERBS: list[Callable[[str], list[str]]] = [
    lambda name: ["kb", "forget", name, "--yes"],
    lambda name: ["kb", "undelete", name],
    lambda name: ["stop", name],
    lambda name: ["tune", _JOB, "--resume", name, "--no-tui"],
]


def _names() -> Iterator[Attack]:
    def attack(verb: Callable[[str], list[str]], name: str) -> Attack:
        return Attack(
            "names", " ".join(verb(repr(name))[:3]), lambda place: [verb(name.replace("OUT", str(place / "outside")))]
        )

    for verb, name in itertools.product(_VERBS, _NAMES):
        yield attack(verb, name)


_HOSTILE = [
    "../../outside", "OUT", "..", ".", "", "a/b", "x\n>OUT/mark", "$(>OUT/mark)", "`>OUT/mark`", "'; >OUT/mark; '",
    '"; >OUT/mark; "', "x\r>OUT/mark", "x\u2028>OUT/mark", "\x1b]52;c;eA==\x07", "x' OR 1=1 --", "good", "[" * 5000,
]  # fmt: skip
_COLUMNS = [
    "session",
    "host",
    "job_name",
    "job_target",
    "job",
    "family",
    "context",
    "name",
    "evidence",
    "knobs",
    "body",
]


def _lakes() -> Iterator[Attack]:
    """A colleague's file with a hostile value in one column, which is pulled and then used."""

    def attack(column: str, word: str) -> Attack:
        return Attack("lake", f"{column} = {word!r}", lambda place: _pulled(place, column, word))

    for column, word in itertools.product(_COLUMNS, _HOSTILE):
        yield attack(column, word)


def _pulled(place: Path, column: str, word: str) -> list[list[str]]:
    from kb.sharing import lake

    home, word = place / "home", word.replace("OUT", str(place / "outside"))
    lake.push(home / "kb.duckdb", place / "lake")
    [file, *_] = sorted((place / "lake").rglob("*.parquet"))
    with duckdb.connect() as con:
        con.execute(f"CREATE TABLE t AS FROM '{file}'")
        con.execute(f"UPDATE t SET {column} = $w", {"w": word})
        con.execute(f"COPY t TO '{place}/x.parquet'")
    content = (place / "x.parquet").read_bytes()
    file.unlink()
    file.with_name(hashlib.sha256(content).hexdigest()[:32] + ".parquet").write_bytes(content)
    pull = ["kb", "pull", str(place / "lake"), "--kb", str(home / "other" / "kb.duckdb")]
    kb = ["--kb", str(home / "other" / "kb.duckdb")]
    export = ["export", _JOB, *kb, "-o", str(home / "run.sh")]
    return [pull, ["sessions", *kb], export, ["kb", "forget", "--host", word, "--yes", *kb]]


def _files() -> Iterator[Attack]:
    """Files by others that refer to paths elsewhere."""

    def linked(make: Callable[[Path, Path], list[list[str]]], what: str) -> Attack:
        return Attack("files", what, lambda place: make(place / "home", place / "outside"))

    def lake_link(home: Path, outside: Path) -> list[list[str]]:
        (home / "lake" / "sessions").mkdir(parents=True)
        (home / "lake" / "sessions" / ("a" * 32 + ".parquet")).symlink_to(outside / "secret.parquet")
        return [["kb", "pull", str(home / "lake")], ["sql", "SELECT * FROM runs"]]

    def forgotten_link(home: Path, outside: Path) -> list[list[str]]:
        (home / "lake").mkdir()
        (home / "lake" / "forgotten").symlink_to(outside / "secret.txt")
        return [["kb", "pull", str(home / "lake")], ["kb", "push", str(home / "lake")]]

    def with_view(name: str) -> Callable[[Path, Path], list[list[str]]]:
        def make(home: Path, outside: Path) -> list[list[str]]:
            evil = home / "evil.duckdb"
            shutil.copy(home / "kb.duckdb", evil)
            with duckdb.connect(str(evil)) as con:
                con.execute(f"CREATE OR REPLACE VIEW {name} AS SELECT * FROM read_text('{outside}/secret.txt')")
            return [["sql", f"SELECT * FROM {name}", "--kb", str(evil)], ["kb", "restore", str(evil)],
                    ["sql", f"SELECT * FROM {name}"]]  # fmt: skip

        return make

    def recording(home: Path, outside: Path) -> list[list[str]]:
        text = Path(_JOB).read_text() + f'\n[launch]\nrecording = "{outside}/secret.json"\n'
        (home / "job.toml").write_text(text)
        return [["explain", str(home / "job.toml")], ["kb", "push", str(home / "lake")]]

    def imported_link(home: Path, outside: Path) -> list[list[str]]:
        (home / "in").mkdir()
        for end in ("csv", "json"):
            (home / "in" / f"t.{end}").symlink_to(outside / f"secret.{end}")
        return [["import", str(home / "in"), "--job", _JOB], ["sql", "SELECT * FROM runs"]]

    def trash_link(home: Path, outside: Path) -> list[list[str]]:
        (home / "trash").mkdir()
        (home / "trash" / "x").symlink_to(outside)
        return [["kb", "undelete", "x"], ["kb", "forget", "x", "--yes"]]

    yield linked(lake_link, "a lake's file is a link to another file")
    yield linked(forgotten_link, "a lake's list of forgotten sessions is a link to another file")
    for view in ("runs", "best", "results", "sessions", "v"):
        yield linked(with_view(view), f"a knowledge base of others whose view {view} reads a file")
    yield linked(recording, "a job that names another's file as its recording")
    yield linked(imported_link, "a folder to import that links to other files")
    yield linked(trash_link, "the trash holds a link to another folder")


_CODE = [
    "__import__('os').system('touch OUT/mark')", "open('OUT/mark','w')", "{0.__class__}", "$(touch OUT/mark)", "a=b=c",
    "mbs=../../x", "mbs=\n", "tp=${SECRET}", "=", "step_time_s=exec('x')",
]  # fmt: skip


def _words() -> Iterator[Attack]:
    """Options that take an expression."""

    def attack(option: str, word: str) -> Attack:
        def do(place: Path) -> list[list[str]]:
            table = place / "home" / "t.csv"
            table.write_text("tp,mbs,step_time_s\n1,1,0.5\n")
            said = word.replace("OUT", str(place / "outside"))
            return [["import", str(table), "--job", _JOB, option, said], ["explain", _JOB, said]]

        return Attack("words", f"{option} {word}", do)

    for option, word in itertools.product(("--map", "--set", "--unit"), _CODE):
        yield attack(option, word)


def attacks() -> list[Attack]:
    return [*_sql(), *_names(), *_lakes(), *_files(), *_words()]


def _outside(folder: Path) -> None:
    folder.mkdir()
    for end in ("txt", "csv"):
        (folder / f"secret.{end}").write_text(f"a,b\n1,{_SECRET}\n")
    (folder / "secret.json").write_text(json.dumps({"a": _SECRET}))
    with duckdb.connect(str(folder / "secret.duckdb")) as con:
        con.execute(f"CREATE TABLE t AS SELECT '{_SECRET}' AS a")
        con.execute(f"COPY t TO '{folder}/secret.parquet'")
    (folder / "journal.jsonl").write_text("{}\n")


def _seen(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


def through(attack: Attack, good: Path) -> list[str]:
    """Runs the attack and describes each damage."""
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as name:
        place = Path(name)
        home, outside = place / "home", place / "outside"
        shutil.copytree(good, home)
        _outside(outside)
        (home / "sessions" / "linked").symlink_to(outside)
        before, wrong, said = _seen(outside), list[str](), ""
        for command in attack.do(place):
            os.environ["SECRET"] = _SECRET
            pid = os.fork()
            if pid == 0:
                fuzz._child(home, place / "out", command)
            if fault := fuzz._fault(pid, place / "out"):
                wrong.append(f"{' '.join(command)[:80]!r}: {fault}")
            said += (place / "out").read_text(errors="replace")
        if (home / "run.sh").exists():  # without programs: only the shell's own effects
            subprocess.run(
                ["/bin/bash", str(home / "run.sh")], env={"PATH": "/nowhere"}, capture_output=True, timeout=10
            )
        if _SECRET in said:
            wrong.append("the secret was said")
        if _seen(outside) != before:
            wrong.append("something outside was changed")
        if attack.door != "names" and not (home / "sessions" / "good" / "journal.jsonl").exists():
            wrong.append("a session is gone")
        (home / "sessions" / "linked").unlink(missing_ok=True)
        for path in home.rglob("*"):
            ours = path.suffix not in (".toml", ".csv", ".json") and path.name != "evil.duckdb"
            if ours and path.is_file() and not path.is_symlink() and _SECRET.encode() in path.read_bytes():
                wrong.append(f"the secret is in {path.relative_to(home)}")
        return wrong


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--list", action="store_true", help="What they are, without doing them.")
    options = parser.parse_args()
    doors: dict[str, int] = {}
    got_through: list[str] = []
    with tempfile.TemporaryDirectory() as folder:
        good = Path(folder) / "good"
        fuzz.prepared(good)
        for attack in attacks():
            doors[attack.door] = doors.get(attack.door, 0) + 1
            if options.list:
                print(attack.door, attack.what)
                continue
            for wrong in through(attack, good):
                got_through.append(f"{attack.door}: {attack.what}: {wrong}")
                print(got_through[-1], file=sys.stderr, flush=True)
    if options.list:
        return
    figures = {"attacks": sum(doors.values()), **doors, "got through": len(got_through)}
    print(json.dumps(figures) if options.json else "\n".join(f"{name}: {value}" for name, value in figures.items()))
    if got_through:
        raise SystemExit(1)


if __name__ == "__main__":
    main()
