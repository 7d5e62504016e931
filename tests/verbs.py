"""`autoscout VERB …` in a process of its own, forked from one that has imported everything: a test pays for what the
verb does, not once more for its imports.

What is about starting itself (imports, signals, pipes that break) runs `python -m tui.cli` instead.
"""

import atexit
import gc
import importlib
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from functools import cache
from pathlib import Path

_TIMEOUT_S = 3600  # ends what hangs; at a load of 30 a verb of 20 s takes ten minutes
_TMPDIR = os.environ.get("TMPDIR", "")
_NEVER = {"worker", "microbench"}  # run under other interpreters


def run(*arguments: object, stdin: str = "", person: str = "", **environment: str) -> subprocess.CompletedProcess[str]:
    """Exit code, stdout and stderr of one verb, started by a `person` ("USER:GROUP" in numbers; root can be anybody).
    Errors: subprocess.TimeoutExpired after an hour."""
    server = _server()
    assert server.stdin
    assert server.stdout
    argv = [str(each) for each in arguments]
    with tempfile.TemporaryDirectory() as folder:
        files = {name: str(Path(folder) / name) for name in ("stdin", "stdout", "stderr")}
        for name, path in files.items():
            Path(path).write_text(stdin if name == "stdin" else "")
        own = {"TMPDIR": _own_machine()} if os.environ.get("TMPDIR", "") == _TMPDIR else {}
        request = {"argv": argv, "env": {**os.environ, **own, **environment}, "cwd": os.getcwd(), "files": files}
        request["person"] = person
        server.stdin.write(json.dumps(request) + "\n")
        server.stdin.flush()
        code = int(server.stdout.readline())
        if code == -signal.SIGALRM:
            raise subprocess.TimeoutExpired(argv, _TIMEOUT_S)
        out, err = (Path(files[name]).read_text() for name in ("stdout", "stderr"))
    return subprocess.CompletedProcess(argv, code, out, err)


@cache
def _own_machine() -> str:
    """A temporary folder, and so a lock on the machine, of this process alone: sessions of other tests and of other
    people may hold the machine for longer than a test may wait."""
    folder = tempfile.mkdtemp(prefix="verbs-")
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return folder


@cache
def _server() -> "subprocess.Popen[str]":
    path = os.pathsep.join([str(Path(__file__).parents[1]), *(each for each in sys.path if each)])
    server = subprocess.Popen(
        [sys.executable, __file__],
        env={**os.environ, "PYTHONPATH": path},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )

    def end() -> None:
        server.kill()
        server.wait()  # what it used counts as ours

    atexit.register(end)
    return server


def _ours() -> Iterator[str]:
    """All modules of ours: what a verb imports late it has already."""
    root = Path(__file__).parents[1]
    for path in sorted(path for floor in ("kb", "autoscout", "tui") for path in (root / floor).rglob("*.py")):
        parts = path.relative_to(root).with_suffix("").parts
        if not _NEVER.intersection(parts):
            yield ".".join(parts).removesuffix(".__init__")


def _serve() -> None:
    # The codec is one that a person who may not read where Python lies cannot load later.
    for name in ("duckdb", "sklearn.ensemble", "encodings.utf_8_sig", *_ours()):
        importlib.import_module(name)
    gc.freeze()  # a collection in a child would copy every page that it shares
    for line in sys.stdin:
        child = os.fork()
        if child == 0:
            _verb(json.loads(line))
        _, status = os.waitpid(child, 0)
        print(os.waitstatus_to_exitcode(status), flush=True)


def _verb(request: dict) -> None:
    """As `python -m tui.cli` would: with files, an environment and a folder of its own."""
    from tui.cli import main

    signal.alarm(_TIMEOUT_S)
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        file = os.open(request["files"][name], os.O_RDWR)
        os.dup2(file, number)
        os.close(file)
    if request["person"]:
        user, group = map(int, request["person"].split(":"))
        os.setgroups([])
        os.setresgid(group, group, group)
        os.setresuid(user, user, user)
    sys.argv = ["autoscout", *request["argv"]]
    os.chdir(request["cwd"])
    os.environ.clear()
    os.environ.update(request["env"])
    sys.path[:0] = [each for each in os.environ.get("PYTHONPATH", "").split(os.pathsep) if each not in sys.path]
    tempfile.tempdir = None
    code: object = 1
    try:
        main()
    except SystemExit as ended:
        code = ended.code
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code if isinstance(code, int) else int(bool(code)))


if __name__ == "__main__":
    _serve()
