"""The warm interpreter: does the imports of a user's Python script once, then runs the script repeatedly, each time in
a process forked from itself.

    warm_script.py COMMAND…      the first run's: python [-u] SCRIPT … | python -m MODULE … | torchrun … SCRIPT …

stdin is a socket, to which this process writes {"ready": true} after the imports. Each request is a JSON line {"words",
"environment", "cwd", "status", "grace_s"} with a file descriptor of the output pipe; the answer is {"pid": …} of the
run's supervisor (supervise.py). When stdin closes, this process and its runs end.

Imported beforehand: the script's top-level imports of installed packages, and other modules of these packages that
earlier runs imported. Modules next to the script are the user's code, which may do anything on import, so each run
imports them itself. Needs only the standard library.
"""

import ast
import atexit
import contextlib
import gc
import importlib.util
import json
import os
import runpy
import signal
import socket
import sys
import sysconfig
import threading
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn

_TORCHRUN = "torch.distributed.run"
_MOST = 2**20  # largest size of a request in bytes


def main() -> None:
    import supervise

    del sys.modules["supervise"], sys.path[0]  # the user's script may have the same name as one of our files
    argv = sys.argv[1:]
    connection = socket.socket(fileno=os.dup(0))
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    if torchrun(argv) and _workers(argv) != "1":
        os.environ.setdefault("OMP_NUM_THREADS", "1")  # as torchrun does, before OpenMP reads it
    preload(argv)
    if threading.active_count() > 1:
        sys.exit("its imports start threads, which do not survive a fork")
    later = LaterImports()
    connection.sendall(b'{"ready": true}\n')
    while request := _next(connection):
        asked, pipe = request
        while _reaped():
            pass
        later.load()
        gc.freeze()  # keeps memory pages shared with the forked runs (copy on write)
        zygote = os.getpid()
        pid = os.fork()
        if pid == 0:
            sys.meta_path.insert(0, later)
            _watch(supervise.main, connection, asked, pipe, zygote)
        os.close(pipe)
        connection.sendall(json.dumps({"pid": pid}).encode() + b"\n")


def torchrun(argv: list[str]) -> bool:
    """Whether the command line starts its script with torchrun."""
    return os.path.basename(argv[0]) == "torchrun" or argv[1:3] == ["-m", _TORCHRUN]


def preload(argv: list[str]) -> None:
    """Does the imports of a command line's script. Ignores errors, since the script itself will raise them again."""
    if torchrun(argv):
        with contextlib.suppress(Exception):
            importlib.import_module(_TORCHRUN)
    script = _script(argv)
    if script is None:
        return
    for node in ast.parse(script.read_bytes()).body:
        with contextlib.suppress(Exception):
            if all(_installed(name) for name in _names(node)):
                exec(compile(ast.Module([node], []), str(script), "exec"), {"__name__": "autoscout"})


class LaterImports:
    """Collects the modules that runs import from packages that are already loaded, so that this process can import
    them, too, before the next run. In a run, it acts as an import finder that finds nothing, but reports each name."""

    def __init__(self) -> None:
        self._packages = {name.partition(".")[0] for name in sys.modules}
        self._packages = {name for name in self._packages if name != "__main__" and _installed(name)}
        self._read, self._write = os.pipe2(os.O_NONBLOCK)

    def find_spec(self, name: str, path: object = None, target: object = None) -> None:
        if name.partition(".")[0] in self._packages:
            with contextlib.suppress(BlockingIOError):  # if the pipe is full, a later run sends the rest
                os.write(self._write, name.encode() + b"\n")

    def load(self) -> None:
        data = b""
        with contextlib.suppress(BlockingIOError):
            while part := os.read(self._read, 2**20):
                data += part
        for name in dict.fromkeys(data.decode().split()):
            with contextlib.suppress(Exception, SystemExit):
                importlib.import_module(name)


def run_python(argv: list[str]) -> None:
    """Runs a script in this process, in the same way as the command line `argv` would."""
    rest = [word for i, word in enumerate(argv[1:]) if word != "-u" or i]
    numpy = sys.modules.get("numpy")
    if numpy is not None:
        numpy.random.seed()  # otherwise every run, and every rank, would draw the same numbers
    if rest[0] == "-m":
        sys.argv, sys.path[:0] = rest[1:], [os.getcwd()]
        runpy.run_module(rest[1], run_name="__main__", alter_sys=True)
    else:
        sys.argv, sys.path[:0] = rest, [str(Path(rest[0]).resolve().parent)]
        theirs = types.ModuleType("__main__")
        theirs.__file__ = os.path.abspath(rest[0])
        sys.modules["__main__"] = theirs  # pickling needs this; runpy would also do it, but would change argv
        exec(compile(Path(rest[0]).read_bytes(), theirs.__file__, "exec"), theirs.__dict__)


class Worker:
    """A rank that is forked from this process, with those parts of Popen's interface that torchrun uses."""

    def __init__(self, args: list[str], env: dict[str, str], stdout: Any, stderr: Any, **session: bool) -> None:
        self.args, self.returncode = args, None
        self.pid = os.fork()
        if self.pid == 0:
            os.setsid()
            for number, file in ((1, stdout), (2, stderr)):
                if file is not None:
                    os.dup2(file.fileno(), number)
            _as_started(env)
            to_its_end(lambda: run_python(list(args)))

    def poll(self) -> int | None:
        return self._waited(os.WNOHANG)

    def wait(self, timeout: float | None = None) -> int | None:
        if timeout is None:
            return self._waited(0)
        import subprocess
        import time

        until = time.monotonic() + timeout
        while self.poll() is None:
            if time.monotonic() > until:
                raise subprocess.TimeoutExpired(self.args, timeout)
            time.sleep(0.01)
        return self.returncode

    def _waited(self, how: int) -> int | None:
        if self.returncode is None:
            pid, status = os.waitpid(self.pid, how)
            if pid:
                self.returncode = os.waitstatus_to_exitcode(status)
        return self.returncode


def run_torchrun(argv: list[str]) -> None:
    """Runs torchrun's own code, but forks the ranks that use this interpreter from this process."""
    from subprocess import Popen

    from torch.distributed import run
    from torch.distributed.elastic.multiprocessing.subprocess_handler import subprocess_handler

    def popen(args: Any, env: dict[str, str], stdout: Any, stderr: Any, **how: Any) -> Any:
        ours = args[0] == sys.executable and args[1] == "-u"
        return (Worker if ours else Popen)(args, env=env, stdout=stdout, stderr=stderr, **how)

    subprocess_handler.Popen = popen  # type: ignore[attr-defined]
    sys.argv = [argv[0], *argv[3 if argv[1] == "-m" else 1 :]]
    run.main(sys.argv[1:])


def to_its_end(body: Callable[[], None]) -> NoReturn:
    """Runs `body` and ends this process as an interpreter would, without returning to the caller."""
    code = 1
    try:
        try:
            body()
            code = 0
        except SystemExit as asked:
            code = asked.code if isinstance(asked.code, int) else 0 if asked.code is None else 1
            if isinstance(asked.code, str):
                print(asked.code, file=sys.stderr)
        except BaseException as error:
            sys.excepthook(type(error), error, error.__traceback__)
        threading._shutdown()  # type: ignore[attr-defined]
        atexit._run_exitfuncs()
        sys.stdout.flush()
        sys.stderr.flush()
    finally:
        os._exit(code & 0xFF)


def _watch(watch: Callable[..., int], connection: socket.socket, asked: dict[str, Any], pipe: int, zygote: int) -> None:
    """Runs the supervisor of a run, in its own process."""
    code = 1
    try:
        os.setsid()
        connection.close()
        os.dup2(pipe, 1)
        os.dup2(pipe, 2)
        os.close(pipe)
        os.chdir(asked["cwd"])
        argv = asked["words"]

        def become(began: int) -> None:
            os.close(began)
            _as_started(asked["environment"])
            to_its_end(lambda: run_torchrun(argv) if torchrun(argv) else run_python(argv))

        code = watch(asked["status"], zygote, asked["grace_s"], become, argv[0])
    finally:
        os._exit(code)


def _as_started(environment: dict[str, str]) -> None:
    """Sets the environment and signals as in a new interpreter."""
    os.environ.clear()
    os.environ.update(environment)
    for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT, signal.SIGCHLD, signal.SIGUSR1, signal.SIGUSR2):
        signal.signal(number, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGPIPE, signal.SIG_IGN)


def _script(argv: list[str]) -> Path | None:
    """The first Python file of a command line, or the file of the module that it runs with -m."""
    for i, word in enumerate(argv[1:], 1):
        if word.endswith(".py") and os.path.isfile(word):
            return Path(word)
        if argv[i - 1] in ("-m", "--module") and word != _TORCHRUN:
            with contextlib.suppress(Exception):
                found = importlib.util.find_spec(word)
                if found and found.origin:
                    return Path(found.origin)
    return None


def _names(node: ast.stmt) -> list[str]:
    if isinstance(node, ast.Import):
        return [alias.name.partition(".")[0] for alias in node.names]
    if isinstance(node, ast.ImportFrom) and node.module and not node.level:
        return [node.module.partition(".")[0]]
    return [""]


def _installed(package: str) -> bool:
    try:
        found = importlib.util.find_spec(package)
    except (ImportError, ValueError):
        return False
    if found is None or not found.origin:
        return False
    return bool({Path(sysconfig.get_path(kind)) for kind in ("purelib", "platlib")} & {*Path(found.origin).parents})


def _workers(argv: list[str]) -> str:
    for i, word in enumerate(argv):
        name, _, value = word.partition("=")
        if name.replace("_", "-") == "--nproc-per-node":
            return value or argv[i + 1]
    return "1"


def _next(connection: socket.socket) -> tuple[dict[str, Any], int] | None:
    """The next request and its pipe; None when the connection is closed."""
    data: bytes = b""
    files: list[int] = []
    while not data.endswith(b"\n"):
        part, given, _, _ = socket.recv_fds(connection, _MOST, 1)
        if not part:
            return None
        data += part
        files += given
    return json.loads(data), files[0]


def _reaped() -> bool:
    try:
        return os.waitpid(-1, os.WNOHANG)[0] != 0
    except ChildProcessError:
        return False


if __name__ == "__main__":
    main()
