"""Kills each command that writes to a knowledge base with -9 at a random moment, repeats it, and checks for losses.

    python tests/tools/kb_kills.py [--kills 1000] [--seed 0] [--json]

The commands are, in turn, a session's writer, a migration from schema 2, an import, push, pull, forget, undelete,
redact, restore and trust. Each starts from a fresh folder, and is killed at a random moment of its usual duration. The
clock changes between processes: it is right, 10 s or a day behind, or a day ahead. After the kill, all earlier
measurements must exist once; then the repeated command must have the same result as without the kill, with an intact
file. Processes that finished before the kill are counted separately."""

import argparse
import contextlib
import json
import os
import random
import shutil
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import duckdb
from kb_stress import JOB

from kb import care, dates, forget, imports, migrate, redact, seals, store
from kb import journal as journals
from kb.records import Configuration, Measurement
from kb.sharing import author_trust, lake

_IMPORT = "import-" + "1" * 12
_MARK, _SECRET = "plain words", "password: " + "Xk29" + "vbQ7pL"
_STEPS_S = (0.0, -10.0, -86_400.0, 86_400.0)
_OLD = Path(__file__).parents[1] / "kb" / "past" / "schema-2.sql"


class Work(NamedTuple):
    prepare: Callable[[Path], object]  # creates the state before the command in an empty folder
    do: Callable[[Path], object]  # the command, which is idempotent
    # keys (`_key`) of the measurements in the prepared folder that must survive any kill
    stays: Callable[[Path], set[str]]


def _kb(folder: Path) -> Path:
    return folder / "kb.duckdb"


def _key(measured: Measurement) -> str:
    """Identifies a measurement independently of its time."""
    return str(measured.metrics.get("number", measured.id))


def _there(folder: Path) -> list[str]:
    return [_key(m) for _, m in store.measurements(_kb(folder))]


def _measured(number: int, evidence: str = "", at: float = 0.0) -> Measurement:
    return Measurement(
        configuration=Configuration({"tp": number % 8, "mbs": number}),
        name=f"tp{number % 8}_mbs{number}",
        context="here",
        status="ok",
        metrics={"step_time_s": 1.0 + number / 7, "number": float(number)},
        evidence=evidence,
        at=at or dates.now(),
    )


def _session(folder: Path, name: str, numbers: range, said: Path | None = None, evidence: str = "") -> None:
    """Like a session, writes measurements to the journal, then to the knowledge base, and acknowledges them in
    `said`."""
    path = store.sessions_folder(_kb(folder)) / name / "journal.jsonl"
    known = {
        event.number for event, _ in journals.read(path) if isinstance(event, journals.ExperimentEnded)
    } if path.exists() else set()  # fmt: skip
    with contextlib.closing(journals.Journal(path)) as journal:
        if not path.stat().st_size:
            journal.append(
                journals.SessionStarted(
                    session=name, job=JOB, context="here", strategy="random", seed=0, fidelity="profile",
                    warm_start="off", hyper={}, environment={}, kb_mark=0, default=Configuration({"tp": 1}),
                    orderings=[],
                )
            )  # fmt: skip
        for number in numbers:
            if number not in known:
                measured = _measured(number, evidence)
                journal.append(
                    journals.ExperimentEnded(number=number, purpose="search", measurement=measured, at=dates.now())
                )
                if said:
                    store.ingest(_kb(folder), path)
                    with said.open("a") as file:
                        file.write(_key(measured) + "\n")
    store.ingest(_kb(folder), path)


def _sessions(folder: Path) -> None:
    for i in range(5):
        _session(folder, f"s{i}", range(40 * i, 40 * i + 40))


def _bring_in(folder: Path) -> None:
    rows = (_measured(10_000 + i, at=1.0) for i in range(500))  # imported times do not depend on the clock
    imports.store_import(_kb(folder), _IMPORT, JOB, {"path": "t.csv"}, 1.0, rows)


def _schema_2(folder: Path) -> None:
    with duckdb.connect(str(_kb(folder)), config={"storage_compatibility_version": migrate.STORAGE}) as con:
        migrate.apply(con, _kb(folder), migrate.known()[:2])
        con.execute(_OLD.read_text())


def _upgraded(folder: Path) -> set[str]:
    with tempfile.TemporaryDirectory() as name:
        copy = Path(name) / "kb.duckdb"
        shutil.copy(_kb(folder), copy)
        return {_key(m) for _, m in store.measurements(copy)}


def _with_import(folder: Path) -> None:
    _sessions(folder)
    _bring_in(folder)


def _forget(folder: Path) -> None:
    forget.forget(_kb(folder), ["s1", _IMPORT])


def _forgotten(folder: Path) -> None:
    _with_import(folder)
    _forget(folder)


def _undelete(folder: Path) -> None:
    gone = [name for name in ("s1", _IMPORT) if name in forget.deleted(_kb(folder))]
    if gone:
        forget.undelete(_kb(folder), gone)


def _lake(folder: Path) -> None:
    other = folder / "other"
    other.mkdir()
    _with_import(other)
    lake.push(_kb(other), folder / "lake")
    shutil.rmtree(other)
    _session(folder, "mine", range(5000, 5020))


def _push(folder: Path) -> None:
    """Pushes, and lets a colleague pull everything."""
    lake.push(_kb(folder), folder / "lake")


def _with_secret(folder: Path) -> None:
    """Writes a secret to the journal and rows of one session and to a log, as an older AutoScout did."""
    _session(folder, "leaky", range(300, 340), evidence=_MARK)
    path = store.sessions_folder(_kb(folder)) / "leaky" / "journal.jsonl"
    path.write_bytes(seals.anew(path.read_bytes().replace(_MARK.encode(), _SECRET.encode()).splitlines()))
    path.with_name("output.log").write_text(_SECRET + "\n")
    _kb(folder).unlink()
    _sessions(folder)
    store.ingest_all(_kb(folder))


def _with_copy(folder: Path) -> None:
    _with_import(folder)
    care.back_up(_kb(folder), folder / "copy.duckdb")


def _trust(folder: Path) -> None:
    author_trust.decide(_kb(folder), "ann", "answer", "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAI" + "A" * 43)


def _left_wrong(name: str, folder: Path, leads_to: list[str]) -> list[str]:
    """Remaining errors after the repeated command."""
    if name == "push":
        colleague = folder / "colleague"
        lake.pull(_kb(colleague), folder / "lake")
        return [] if set(_there(colleague)) == set(leads_to) else ["a colleague does not get what was pushed"]
    if name == "forget" and list(store.imports_folder(_kb(folder)).glob("*.parquet")):
        return ["the forgotten import's file is still there"]
    if name == "redact":
        return [f"{found.subject}: {found.found}" for found in care.check_secrets(_kb(folder)) if not found.ok]
    if name == "trust" and [each.level for each in author_trust.authors(_kb(folder)) if each.name == "ann"] != [
        "answer"
    ]:
        return ["ann's word does not answer"]
    return []


def _numbered(*numbers: range) -> Callable[[Path], set[str]]:
    kept = {str(float(i)) for some in numbers for i in some}
    return lambda folder: kept & set(_there(folder))


_WORKS: dict[str, Work] = {
    "writer": Work(
        lambda folder: _session(folder, "mine", range(5)),
        lambda folder: _session(folder, "mine", range(25), folder / "said"),
        _numbered(range(5)),
    ),
    "migration": Work(_schema_2, lambda folder: store.mark(_kb(folder)), _upgraded),
    "import": Work(_sessions, _bring_in, _numbered(range(200))),
    "push": Work(_with_import, _push, _numbered(range(200), range(10_000, 10_500))),
    "pull": Work(_lake, lambda folder: lake.pull(_kb(folder), folder / "lake"), _numbered(range(5000, 5020))),
    "forget": Work(_with_import, _forget, _numbered(range(40), range(80, 200))),
    "undelete": Work(_forgotten, _undelete, _numbered(range(40), range(80, 200))),
    "redact": Work(_with_secret, lambda folder: redact.remove(_kb(folder)), _numbered(range(200))),
    "restore": Work(
        _with_copy, lambda folder: care.restore(_kb(folder), folder / "copy.duckdb"), _numbered(range(200))
    ),
    "trust": Work(_with_import, _trust, _numbered(range(200), range(10_000, 10_500))),
}


class Prepared(NamedTuple):
    folder: Path
    seconds: float
    stays: set[str]
    leads_to: list[str]


def _prepared(work: Work, folder: Path) -> Prepared:
    folder.mkdir()
    work.prepare(folder)
    times, after = [], []
    for i in range(3):
        copy = folder.with_name(f"{folder.name}-{i}")
        shutil.copytree(folder, copy)
        began = time.monotonic()
        os.waitpid(_begun(work, copy), 0)
        times.append(time.monotonic() - began)
        after = sorted(_there(copy))
        shutil.rmtree(copy)
    return Prepared(folder, sorted(times)[1], work.stays(folder), after)


def _begun(work: Work, folder: Path, step_s: float = 0.0) -> int:
    pid = os.fork()
    if pid:
        return pid
    code = 1
    try:
        os.setsid()
        dates._BEGAN += step_s
        work.do(folder)
        code = 0
    except BaseException as error:
        (folder / "refused").write_text(f"{type(error).__name__}: {error}")
    finally:
        os._exit(code)


def one(
    name: str, made: Prepared, folder: Path, after_s: float, steps_s: tuple[float, float]
) -> tuple[bool, list[str]]:
    """(whether the process was killed before its end, errors). `steps_s`: clock errors of the two processes."""
    work, wrong = _WORKS[name], []
    shutil.copytree(made.folder, folder)
    pid = _begun(work, folder, steps_s[0])
    time.sleep(after_s)
    os.kill(pid, signal.SIGKILL)
    _, status = os.waitpid(pid, 0)
    said = folder / "said"
    acknowledged = set(said.read_text().split("\n")[:-1]) if said.exists() else set()
    there = _there(folder)
    if lost := (made.stays | acknowledged) - set(there):
        wrong.append(f"{len(lost)} rows lost at the kill")
    if len(there) > len(set(there)):
        wrong.append("rows doubled at the kill")
    (folder / "refused").unlink(missing_ok=True)
    os.waitpid(_begun(work, folder, steps_s[1]), 0)
    if (folder / "refused").exists():
        wrong.append("begun again: " + (folder / "refused").read_text())
    if sorted(_there(folder)) != made.leads_to:
        wrong.append(f"begun again it leads to {len(_there(folder))} rows, not {len(made.leads_to)}")
    wrong += _left_wrong(name, folder, made.leads_to)
    store.ingest_all(_kb(folder))
    if sorted(_there(folder)) != made.leads_to:
        wrong.append("the journals and imports beside it say something else")
    wrong += [f"{found.subject}: {found.found}" for found in care.check(_kb(folder)) if not found.ok]
    shutil.rmtree(folder)
    return os.WIFSIGNALED(status), wrong


def kills(folder: Path, number: int, seed: int) -> dict[str, Any]:
    """Runs all kills in the empty `folder` and returns the figures."""
    chance, killed, late = random.Random(seed), Counter[str](), 0
    stepped = 0
    faults: list[str] = []
    made = {name: _prepared(work, folder / name) for name, work in _WORKS.items()}
    while killed.total() < number:
        name = list(_WORKS)[(killed.total() + late) % len(_WORKS)]
        after_s = chance.uniform(0, made[name].seconds)
        steps_s = chance.choice(_STEPS_S), chance.choice(_STEPS_S)
        in_the_middle, wrong = one(name, made[name], folder / "now", after_s, steps_s)
        killed[name] += in_the_middle
        stepped += in_the_middle and any(steps_s)
        late += not in_the_middle
        faults += [
            f"{name}, killed after {after_s:.3f} s of {made[name].seconds:.3f}, clock {steps_s}: {each}"
            for each in wrong
        ]
        for each in wrong:
            print(f"{name} at {after_s:.3f} s: {each}", file=sys.stderr, flush=True)
        if (killed.total() + late) % 50 == 0:
            print(f"{killed.total()} of {number}, {len(faults)} faults", file=sys.stderr, flush=True)
    return {
        "killed": killed.total(),
        **killed,
        "with a step of the clock": stepped,
        "through before": late,
        "faults": faults,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        figures = kills(Path(folder), options.kills, options.seed)
    print(json.dumps(figures) if options.json else "\n".join(f"{name}: {value}" for name, value in figures.items()))
    if figures["faults"]:
        raise SystemExit(1)


if __name__ == "__main__":
    main()
