"""Fuzzes all commands with broken inputs: each must end with a message and a documented exit code.

    python tests/tools/fuzz.py [--inputs 5000] [--seed 0] [--kinds job,line] [--only N] [--json]

Journals, lake files, tables, logs, job files, launch commands, model files, SQL and arguments are mutated from valid
ones: flipped and deleted bytes, huge numbers, wrong types, deep nesting, control characters, lone surrogates. Each
input runs in its own process. A fault is a traceback or internal error, an undocumented exit code, or a duration above
ten seconds."""

import argparse
import contextlib
import hashlib
import json
import os
import random
import shutil
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

sys.path[:0] = [str(Path(__file__).parent), str(Path(__file__).parents[2])]
import fuzzed_jobs  # noqa: E402

_ROOT = Path(__file__).parents[2]
_JOB = _ROOT / "fixtures" / "jobs" / "smallest-cpu-replay.toml"
_JOURNAL = _ROOT / "fixtures" / "recorded" / "tiny-gpt-session.jsonl"
_LINES = 40  # of the journal that are used
_LIMIT_S = 10.0
_CODES = {0, 1, 2, 3, 130}
_ODD: list[Any] = [
    *(None, True, -1, 0, 1e308, -1e-323, 10**23, "", "\x1b]52;c;x\x07", "../../etc", "\ud800", "nan", [], {}, [[]]),
    {"a": {"b": [1]}}, "x" * 5000, "ok", 2**63, "a\nb", "$(touch /tmp/fuzzed)",
]  # fmt: skip
_TOKENS = (
    "SELECT FROM runs best results WHERE ( ) * , 'x' \"y\" 1 1e999 -- /* */ ; UNION ALL WITH t AS GROUP BY ORDER LIMIT",
    "PIVOT ON USING count sum( list( range(9) unnest( json_extract( repeat('x', 99) :: INTEGER JSON read_csv('/etc/x')",
    "COPY ATTACH PRAGMA EXPLAIN DESCRIBE SUMMARIZE NULL [1,2] {'a':1} x -> ->> IN EXISTS OVER() lambda \x01 \udcff é",
)
_WORDS = " ".join(_TOKENS).split(" ")
_CSV = "tp,pp,dp,mbs,step_time_s,status,gpu\n" + "".join(f"{2**i},1,1,{i},{0.5 / (i + 1)},ok,A100\n" for i in range(4))
_LOG = (
    "------------ arguments ------------\n  micro_batch_size ............ 4\n  hidden_size ............. 64\n"
    + "".join(
        f" iteration {i:8}/ 10 | elapsed time per iteration (ms): 10{i}.0 | lm loss: 1.0E+01 |\n" for i in range(1, 5)
    )
)
_OPTUNA = "".join(
    json.dumps(line) + "\n"
    for line in (
        {"op_code": 0, "study_name": "mine", "directions": [1], "worker_id": "w"},
        {"op_code": 4, "study_id": 0, "worker_id": "w"},
        {"op_code": 5, "trial_id": 0, "param_name": "mbs", "param_value_internal": 2.0, "worker_id": "w",
         "distribution": '{"name": "IntDistribution", "attributes": {"low": 1, "high": 8}}'},
        {"op_code": 6, "trial_id": 0, "state": 1, "values": [0.5], "worker_id": "w"},
    )
)  # fmt: skip
_BENCH = json.dumps({"request_throughput": 3.0, "output_throughput": 90.0, "median_ttft_ms": 5.0, "completed": 8})
_SHAPE = json.dumps({"model_type": "llama", "hidden_size": 64, "num_hidden_layers": 4, "num_attention_heads": 4,
                     "vocab_size": 512, "intermediate_size": 128})  # fmt: skip

Case = list[str]  # the arguments of `autoscout`


def mutated(text: bytes, chance: random.Random) -> bytes:
    """The text with a few bytes flipped, deleted or doubled, or without its end."""
    data = bytearray(text)
    for _ in range(chance.randint(1, 4)):
        at = chance.randrange(len(data) + 1)
        match chance.randrange(5):
            case 0:
                data[at : at + 1] = bytes([chance.randrange(256)])
            case 1:
                del data[at : at + chance.randint(1, 40)]
            case 2:
                data[at:at] = data[at : at + chance.randint(1, 200)]
            case 3:
                del data[at:]
            case _:
                data[at:at] = chance.choice(
                    [b"\xff", b"\x00", b"9" * 30, b"-", b'"', b"{", b"\x1b[2J", b"\n", b"[" * 3000]
                )
    return bytes(data)


def odd(value: Any, chance: random.Random) -> Any:
    """The document with one value replaced."""
    if isinstance(value, dict) and value and chance.random() < 0.85:
        key = chance.choice(list(value))
        if chance.random() < 0.1:
            return {k: v for k, v in value.items() if k != key} | ({"unknown": 1} if chance.random() < 0.5 else {})
        return {**value, key: odd(value[key], chance)}
    if isinstance(value, list) and value and chance.random() < 0.85:
        at = chance.randrange(len(value))
        return [*value[:at], odd(value[at], chance), *value[at + 1 :]]
    return chance.choice(_ODD)


def _broken(text: str, chance: random.Random) -> bytes:
    """A broken file of JSON lines."""
    if chance.random() < 0.4:
        return mutated(text.encode(), chance)
    lines = text.splitlines()
    at = chance.randrange(len(lines))
    lines[at] = json.dumps(odd(json.loads(lines[at]), chance))
    return "\n".join([*lines, ""]).encode("utf-8", "replace")


def _file(folder: Path, name: str, content: bytes) -> str:
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)
    return str(path)


def _journal(folder: Path, chance: random.Random) -> Case:
    text = "\n".join(_JOURNAL.read_text().splitlines()[:_LINES]) + "\n"
    path = _file(folder, "sessions/broken/journal.jsonl", _broken(text, chance))
    return chance.choice([["watch", path, "--json"], ["why", path], ["best", "broken"], ["kb", "ingest", path],
                          ["sessions"], ["export", "broken"], ["watch", path]])  # fmt: skip


def _lake(folder: Path, chance: random.Random) -> Case:
    from kb.sharing import lake

    lake.push(folder / "kb.duckdb", folder / "lake")
    [file, *_] = sorted((folder / "lake").rglob("*.parquet"))
    content = file.read_bytes()
    if chance.random() < 0.7:
        import duckdb

        with duckdb.connect() as con:
            con.execute(f"CREATE TABLE t AS FROM '{file}'")
            column, kind = chance.choice(con.execute("SELECT column_name, column_type FROM (DESCRIBE t)").fetchall())
            value = chance.choice(_ODD)
            text = value if isinstance(value, str) else json.dumps(value)
            shown = text.encode("utf-8", "replace").decode().replace("'", "''").replace("\x00", "")
            con.execute(f"UPDATE t SET \"{column}\" = try_cast('{shown}' AS {kind}) WHERE random() < 0.5")
            con.execute(f"COPY t TO '{folder}/x.parquet'")
        content = (folder / "x.parquet").read_bytes()
    else:
        content = mutated(content, chance)
    file.unlink()
    _file(file.parent, hashlib.sha256(content).hexdigest()[:32] + ".parquet", content)
    (folder / "other").mkdir()
    return ["kb", "pull", str(folder / "lake"), "--kb", str(folder / "other" / "kb.duckdb")]


def _import(folder: Path, chance: random.Random) -> Case:
    name, text = chance.choice(
        [
            ("t.csv", _CSV),
            ("train.log", _LOG),
            ("study.log", _OPTUNA),
            ("result.json", _BENCH),
            ("x/ds_config.json", _BENCH),
        ]
    )
    content = _broken(text, chance) if name.endswith("json") or "study" in name else mutated(text.encode(), chance)
    path = _file(folder / "in", name, content)
    dry = ["--dry-run"] if chance.random() < 0.5 else []
    return ["import", str(folder / "in") if "/" in name else path, "--job", str(_JOB), *dry]


def _sql(folder: Path, chance: random.Random) -> Case:
    query = " ".join(chance.choices(_WORDS, k=chance.randint(1, 14)))
    more = chance.choice([[], ["--json"], ["--offset", str(10 ** chance.randint(1, 25))], ["--limit", "1"]])
    return ["sql", query.replace("\x00", "\x01"), *more, "--seconds", "2"]


def _job(folder: Path, chance: random.Random) -> Case:
    path = _file(folder, "job.toml", mutated(_JOB.read_bytes(), chance))
    return chance.choice([["explain", path], ["space", path], ["predict", path, "--top", "3"], ["best", path],
                          ["similar", path], ["tune", path, "--dry-run"]])  # fmt: skip


def _model(folder: Path, chance: random.Random) -> Case:
    return ["init", _file(folder, "config.json", _broken(_SHAPE, chance)), "--json"]


def _arguments(folder: Path, chance: random.Random) -> Case:
    def word() -> str:
        value = chance.choice(_ODD)
        text = value if isinstance(value, str) else json.dumps(value)
        return text.replace("\ud800", "\udcff")[:300]  # as Python decodes a shell's invalid bytes

    return chance.choice([["kb", "forget", word(), "--yes"], ["kb", "undelete", word()],
                          ["kb", "trust", word(), "answer"], ["kb", "pull", word()], ["why", word()],
                          ["explain", str(_JOB), f"{word()}={word()}"],
                          ["watch", word()], ["best", word()], ["import", word(), "--job", word()],
                          ["kb", "restore", word()], ["export", word()], ["steer", word(), word()], ["stop", word()],
                          ["tune", str(_JOB), "--resume", word()], ["similar", word()], [word(), word()],
                          ["import", str(_JOB), "--job", str(_JOB), "--map", word()]])  # fmt: skip


_KINDS: dict[str, Callable[[Path, random.Random], Case]] = {
    "journal": _journal, "lake": _lake, "import": _import, "sql": _sql, "bytes": _job, "model": _model,
    "arguments": _arguments, "job": fuzzed_jobs.job, "line": fuzzed_jobs.line,
}  # fmt: skip


def prepared(folder: Path) -> None:
    """Creates a small knowledge base, of which each input gets a copy."""
    from kb import store

    path = folder / "sessions" / "good" / "journal.jsonl"
    path.parent.mkdir(parents=True)
    text = "\n".join(_JOURNAL.read_text().splitlines()[:_LINES]) + "\n"
    name = json.loads(text.splitlines()[0])["session"]
    path.write_text(text.replace(f'"session":"{name}"', '"session":"good"'))
    store.ingest(folder / "kb.duckdb", path)


def one(good: Path, kind: str, number: int, seed: int) -> tuple[list[str], str]:
    """(arguments, fault or "")."""
    chance = random.Random(f"{seed} {number}")
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as name:
        folder, out = Path(name) / "home", Path(name) / "out"
        shutil.copytree(good, folder)
        arguments = _KINDS[kind](folder, chance)
        pid = os.fork()
        if pid == 0:
            _child(folder, out, arguments)
        return arguments, _fault(pid, out)


def _child(folder: Path, out: Path, arguments: list[str]) -> None:
    os.setsid()
    os.environ["AUTOSCOUT_KB"] = str(folder / "kb.duckdb")
    os.environ["XDG_STATE_HOME"] = os.environ["XDG_CONFIG_HOME"] = str(folder / "state")
    os.chdir(folder)
    with open(out, "wb") as file, open(os.devnull, "rb") as nothing:
        os.dup2(nothing.fileno(), 0)
        os.dup2(file.fileno(), 1)
        os.dup2(file.fileno(), 2)
    sys.argv = ["autoscout", *arguments]
    code = 99
    try:
        from tui.cli import main

        main()
    except SystemExit as error:
        code = error.code if isinstance(error.code, int) else 1
    except BaseException:
        import traceback

        traceback.print_exc()
    finally:
        with contextlib.suppress(Exception):
            sys.stdout.flush()
        os._exit(code)


def _fault(pid: int, out: Path) -> str:
    until = time.monotonic() + _LIMIT_S * float(os.environ.get("FUZZ_PATIENCE", "1"))
    while True:
        done, status = os.waitpid(pid, os.WNOHANG)
        if done:
            break
        if time.monotonic() > until:
            os.killpg(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
            return "hangs"
        time.sleep(0.01)
    said = out.read_text(errors="replace") if out.exists() else ""
    code = os.waitstatus_to_exitcode(status)
    for words in ("internal error", "Traceback (most recent"):
        if words in said:
            return said[said.index(words) :][-400:]
    return "" if code in _CODES else f"exit code {code}"


def fuzz(
    inputs: int, seed: int, on_fault: Callable[[int, str, list[str], str], None], kinds: Sequence[str] = tuple(_KINDS)
) -> dict[str, Any]:
    import duckdb  # noqa: F401 - imported once for all forked processes
    import numpy  # noqa: F401

    counts: Counter[str] = Counter()
    faults = 0
    with tempfile.TemporaryDirectory() as folder:
        good = Path(folder) / "good"
        prepared(good)
        for number in range(inputs):
            kind = kinds[number % len(kinds)]
            arguments, fault = one(good, kind, number, seed)
            counts[kind] += 1
            if number % 50 == 49:
                print(f"{number + 1} of {inputs}, {faults} faults", file=sys.stderr, flush=True)
            if fault:
                faults += 1
                on_fault(number, kind, arguments, fault)
    return {"inputs": inputs, "faults": faults, **counts}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--inputs", type=int, default=5000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--kinds", default=",".join(_KINDS), help="Only these, such as: job,line.")
    parser.add_argument("--only", type=int, help="One input by its number, as a fault names it.")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()

    def told(number: int, kind: str, arguments: list[str], fault: str) -> None:
        print(f"input {number} ({kind}) {arguments}: {fault}", file=sys.stderr, flush=True)

    kinds = options.kinds.split(",")
    if options.only is not None:
        with tempfile.TemporaryDirectory() as folder:
            prepared(Path(folder) / "good")
            print(one(Path(folder) / "good", kinds[options.only % len(kinds)], options.only, options.seed))
        return
    figures = fuzz(options.inputs, options.seed, told, kinds)
    print(json.dumps(figures) if options.json else "\n".join(f"{name}: {value}" for name, value in figures.items()))
    if figures["faults"]:
        raise SystemExit(1)


if __name__ == "__main__":
    main()
