"""A team's catalog in a real Postgres, started by the test. Skipped where Postgres or the extensions are missing."""

import importlib.util
import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest
from kb_samples import PAST, ended, measured, write

from kb import forget, query, store
from kb.records import AutoscoutError
from kb.sharing import ducklake, places

BINARIES = next(iter(sorted(Path("/usr/lib/postgresql").glob("*/bin"), reverse=True)), Path("/nowhere"))
EXTENSIONS = ("duckdb_extensions", "duckdb_extension_ducklake", "duckdb_extension_postgres_scanner")
MISSING = [name.replace("_", "-") for name in EXTENSIONS if importlib.util.find_spec(name) is None]
USER = "postgres"


def as_user(*command: str) -> list[str]:
    """Postgres refuses to run as root."""
    return ["runuser", "-u", USER, "--", *command] if os.geteuid() == 0 else list(command)


@pytest.fixture
def catalog() -> Iterator[str]:
    if not (BINARIES / "initdb").exists():
        pytest.skip("there is no Postgres here (Debian: apt-get install postgresql)")
    if MISSING:
        pytest.skip(f"DuckDB's extensions are not installed: pip install {' '.join(MISSING)} (of DuckDB's version)")
    folder = Path(tempfile.mkdtemp(dir="/tmp"))
    if os.geteuid() == 0:
        shutil.chown(folder, USER)
    subprocess.run(
        as_user(str(BINARIES / "initdb"), "-D", f"{folder}/db", "-A", "trust", "--no-sync"),
        check=True,
        capture_output=True,
    )
    server = subprocess.Popen(
        as_user(str(BINARIES / "postgres"), "-D", f"{folder}/db", "-k", str(folder), "-c", "listen_addresses="),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        ready = as_user(str(BINARIES / "pg_isready"), "-q", "-h", str(folder))
        for _ in range(200):
            if subprocess.run(ready, check=False).returncode == 0:
                break
            time.sleep(0.05)
        user = USER if os.geteuid() == 0 else os.environ.get("USER", USER)
        yield f"ducklake:postgres:dbname=postgres host={folder} user={user}"
    finally:
        server.terminate()
        server.wait(20)
        shutil.rmtree(folder, ignore_errors=True)


def test_two_knowledge_bases_meet_in_a_catalog(catalog: str, tmp_path: Path):
    ann, bob, data = tmp_path / "ann" / "kb.duckdb", tmp_path / "bob" / "kb.duckdb", tmp_path / "data"
    store.ingest(ann, write(ann, "a", *(ended(measured(1.0 + i, tp=i), i) for i in range(5))))
    store.ingest(bob, write(bob, "b", ended(measured(None, tp=9)), ended(measured(1.0, tp=0))))
    assert places.push(ann, catalog, data)[:2] == (1, 5)
    assert places.push(ann, catalog)[:2] == (0, 0)
    assert places.push(bob, catalog)[:2] == (1, 2)
    assert places.pull(bob, catalog)[:2] == (1, 4)
    assert places.pull(ann, catalog)[:2] == (1, 1)
    assert places.pull(ann, catalog)[:2] == (0, 0)
    assert {m.id for _, m in store.measurements(ann)} == {m.id for _, m in store.measurements(bob)}
    forget.forget(ann, ["a"])
    places.push(ann, catalog)
    carol = tmp_path / "carol" / "kb.duckdb"
    places.pull(carol, catalog)
    assert {session for session, _ in store.measurements(carol)} == {"b"}


def test_a_catalog_that_an_older_autoscout_made(catalog: str, tmp_path: Path):
    """It lacks the columns that came later, and has older words."""
    files = sorted((PAST / "lake-1").rglob("*.parquet"))
    with ducklake._attached(catalog.removeprefix("ducklake:postgres:"), tmp_path / "data", write=True) as team:
        names = ", ".join(f"'{path}'" for path in files)
        team.execute(
            "CREATE TABLE team.part AS SELECT parse_filename(filename, true) AS hash, * EXCLUDE (filename) "
            f"FROM read_parquet([{names}], union_by_name = true, filename = true)"
        )
        team.execute("CREATE TABLE team.forgotten (session VARCHAR)")
    ann, bob = tmp_path / "ann" / "kb.duckdb", tmp_path / "bob" / "kb.duckdb"
    today = msgspec.structs.replace(measured(2.0, tp=2), period="p", per_rank={"power_w": [1.0]})
    store.ingest(ann, write(ann, "a", ended(today)))
    assert places.push(ann, catalog)[:2] == (1, 1)
    assert places.pull(ann, catalog).measurements == 7
    assert places.pull(bob, catalog).measurements == 8
    for kb in (ann, bob):
        assert today.id in {m.id for _, m in store.measurements(kb)}
        assert query.run(kb, "SELECT fidelity, count(*) FROM runs GROUP BY 1 ORDER BY 1").rows == [
            ("measured", 7),
            ("predicted", 1),
        ]
        assert places.push(kb, catalog)[:2] == (0, 0)


def test_a_catalog_that_is_not_there(tmp_path: Path):
    kb = tmp_path / "kb.duckdb"
    store.mark(kb)
    with pytest.raises(AutoscoutError) as refused:
        places.push(kb, "postgres://ann:secret@127.0.0.1:1/none")
    assert "secret" not in str(refused.value)
    assert "\n" not in str(refused.value)
