"""The keys of a person's command are in the running process, and in nothing that is written, shown or shared."""

import json
import random
import string
import tempfile
from pathlib import Path

import duckdb
import later_secrets
import msgspec
import pytest
import verbs
from click.testing import CliRunner

from kb import journal, seals, store, stored_secrets
from kb.records import AutoscoutError
from kb.sharing import lake
from tui.cli import cli

CHANCE = random.Random(56)
HERE = Path(__file__).parent
KEY, PASSWORD, SAID = ("".join(CHANCE.choices(string.ascii_letters + string.digits, k=20)) for _ in range(3))
TRAINER = "--mbs 2"
LATER = later_secrets.secrets(1)
ALL = (KEY, PASSWORD, SAID, *(value for _, _, value in LATER))


def call(*words: object):
    return CliRunner().invoke(cli, [str(word) for word in words])


def holding(folder: Path) -> list[str]:
    """The files below a folder in which one of the secrets is."""
    files = [path for path in folder.rglob("*") if path.is_file() and path.name != "job.toml"]
    return [path.name for path in files if any(s.encode() in path.read_bytes() for s in ALL)]


@pytest.fixture
def tuned(write, tmp_path, monkeypatch):
    """(job file, knowledge base, session) of one whose script has to be given a key, and says another."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    script = tmp_path / "with_key.py"
    script.write_text(
        "import os, sys\n"
        f"assert sys.argv[sys.argv.index('--api-key') + 1] == '{KEY[::-1]}'[::-1], 'wrong key'\n"
        f"assert ':' + '{PASSWORD[::-1]}'[::-1] + '@' in os.environ['MY_DB_URL']\n"
        f"print('my_token: ' + '{SAID[::-1]}'[::-1], flush=True)\n"
        f"print(open('{tmp_path}/said.txt').read(), flush=True)\n"
        f"exec(open('{HERE}/trainer.py').read())\n"
    )  # fmt: skip
    (tmp_path / "said.txt").write_text("\n".join(text for _, text, _ in LATER))
    variables = ", ".join(f"V{i} = {json.dumps(text)}" for i, (_, text, _) in enumerate(LATER))
    job = write(
        (f"-S trainer.py {TRAINER}", f"-S {script} {TRAINER} --api-key {KEY}"),
        ("measure_s", f'environment = {{ MY_DB_URL = "postgres://me:{PASSWORD}@db/x", {variables} }}\nmeasure_s'),
        ("profiles = 6", "profiles = 1"),
        ("repeats = 2", "repeats = 1"),
    )
    kb = tmp_path / "kb" / "kb.duckdb"
    done = call("tune", job, "--kb", kb, "--no-tui")
    assert done.exit_code == 0, done.output
    [name] = [folder.name for folder in store.sessions_folder(kb).iterdir()]
    assert KEY not in done.output
    return job, kb, name


def test_no_secret_is_written_shared_or_exported(tuned, tmp_path):
    _, kb, name = tuned
    assert holding(kb.parent) == []
    assert holding(store.sessions_folder(kb)) == []
    first = journal.events(store.session_folder(kb, name) / "journal.jsonl")[0]
    assert isinstance(first, journal.SessionStarted)
    assert first.job.launch.command.endswith("--mbs 2 --api-key ‹secret›"), "its structure stays"
    assert first.job.launch.environment["MY_DB_URL"] == "postgres://me:‹secret›@db/x"
    lake.push(kb, tmp_path / "lake")
    with duckdb.connect() as con:
        shared = str(con.execute(f"FROM read_parquet('{tmp_path}/lake/*/*.parquet')").fetchall())
    for form in ("command", "slurm", "json"):
        shared += call("export", name, "--format", form, "--kb", kb).output
    shared += call("export", name, "--kb", kb).output + call("why", name, "--kb", kb).output
    assert not any(secret in shared for secret in ALL)
    assert "--api-key" in shared
    checked = call("export", name, "--kb", kb, "--check")
    assert isinstance(checked.exception, AutoscoutError)
    assert "because secrets are not stored" in str(checked.exception)


def test_a_session_goes_on_with_the_job_file_that_has_its_secrets(tuned):
    job, kb, name = tuned
    alone = call("tune", "--resume", name, "--kb", kb, "--no-tui")
    assert isinstance(alone.exception, AutoscoutError)
    assert alone.exception.exit_code == 2
    assert "tune JOB.toml --resume" in str(alone.exception)
    assert call("tune", job, "--resume", name, "--kb", kb, "--no-tui").exit_code == 0


def test_what_was_stored_before_is_found_and_removed(tuned, tmp_path):
    """As an AutoScout wrote it that knew less of secrets."""
    _, kb, name = tuned
    folder = store.session_folder(kb, name)
    path = folder / "journal.jsonl"
    log = next(folder.rglob("output.log"))
    log.write_text(f"start\nAuthorization: Bearer {SAID}\nend\n")
    text = path.read_text()
    assert "‹secret›" in text
    path.write_bytes(seals.anew(text.replace("--api-key ‹secret›", f"--api-key {KEY}").encode().splitlines()))
    with store.writer(kb) as con:
        con.execute(
            "UPDATE session SET job = replace(job::VARCHAR, '--api-key ‹secret›', '--api-key ' || $k)", {"k": KEY}
        )
        con.execute("UPDATE measurement SET evidence = 'login: password=' || $k", {"k": PASSWORD})
    before = len(store.measurements(kb))
    found = call("kb", "check", "--secrets", "--kb", kb)
    assert found.exit_code == 1
    assert "journal.jsonl" in found.output
    assert "output.log" in found.output
    assert not any(secret in found.output for secret in (KEY, PASSWORD, SAID))
    with pytest.raises(AutoscoutError, match="kb redact"):
        lake.push(kb, tmp_path / "lake")
    assert call("kb", "redact", "--kb", kb).exit_code == 0
    assert holding(kb.parent) == []
    assert log.read_text() == "start\nAuthorization: Bearer ‹secret›\nend\n"
    assert len(store.measurements(kb)) == before
    assert call("kb", "check", "--secrets", "--kb", kb).exit_code == 0
    assert call("kb", "check", "--kb", kb).exit_code == 0
    assert lake.push(kb, tmp_path / "lake").sessions == 1


def test_a_large_file_is_cleaned_line_by_line(tmp_path):
    path = tmp_path / "output.log"
    lines = [f"step {i} loss 1.0 " + "x" * 90 for i in range(2_000)]
    path.write_text("\n".join([*lines, f"--password {PASSWORD}", *lines]))
    path.chmod(0o640)
    assert stored_secrets.clean(tmp_path) == [path]
    assert path.read_text() == "\n".join([*lines, "--password ‹secret›", *lines])
    assert path.stat().st_mode & 0o777 == 0o640
    assert stored_secrets.clean(tmp_path) == []


def test_an_event_keeps_its_kind_and_its_numbers(tmp_path):
    end = journal.SessionEnded(
        reason="failed", experiments=3, engine_ms_mean=0.5, engine_ms_max=1.0, problem=f"401: Bearer {KEY}"
    )
    log = journal.Journal(tmp_path / "journal.jsonl")
    log.append(end)
    log.close()
    [kept] = journal.events(log.path)
    assert kept == msgspec.structs.replace(end, problem="401: Bearer ‹secret›")


@pytest.mark.parametrize("form", ["in front", "detached"])
def test_a_piped_job_is_kept_without_its_secrets(write, tmp_path, form):
    """It was kept as it came; only the running process has the key, also one that was started in the background."""
    job = write(
        (f"-S trainer.py {TRAINER}", f"-S {HERE}/trainer.py {TRAINER} --api-key {KEY}"),
        ("profiles = 6", "profiles = 1"),
        ("repeats = 2", "repeats = 1"),
    )
    kb = tmp_path / "kb" / "kb.duckdb"
    script = tmp_path / "with_key.py"
    script.write_text(
        f"import sys\nassert sys.argv[sys.argv.index('--api-key') + 1] == '{KEY[::-1]}'[::-1], 'wrong key'\n"
        f"exec(open('{HERE}/trainer.py').read())\n"
    )
    text = job.read_text().replace(f"{HERE}/trainer.py", str(script))
    words = ["tune", "-", "--kb", kb, "--no-tui", *["--detach"] * (form == "detached")]
    done = verbs.run(*words, stdin=text)
    assert done.returncode == 0, done.stderr
    assert "has ‹secret› in place of each secret, so also pass the original job file to --resume" in done.stderr
    [name] = [folder.name for folder in store.sessions_folder(kb).iterdir()]
    if form == "detached":
        watched = call("watch", name, "--kb", kb, "--plain")
        assert watched.exit_code == 0, watched.output
    assert [m.status for _, m in store.measurements(kb)][:1] == ["ok"]
    assert holding(kb.parent) == []
    [kept] = (kb.parent / "jobs").iterdir()
    assert "--api-key ‹secret›" in kept.read_text()
    alone = call("tune", kept, "--kb", kb, "--no-tui")
    assert isinstance(alone.exception, AutoscoutError)
    assert "contain a secret, which no session stores" in str(alone.exception)
