"""A supervisor process that starts a server, and finally removes what the server leaves behind: worker processes (in
sessions of their own), sockets, and shared memory.

    keeper.py COMMAND… exits with the command's exit code; ends the command when its own stdin closes"""

import contextlib
import ctypes
import os
import select
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

if __name__ == "__main__":  # as a script, this starts in milliseconds without importing the package
    sys.path.insert(0, str(Path(__file__).parents[3]))

from autoscout.running import processes

_PR_SET_CHILD_SUBREAPER = 36
_TICK_S = 0.2


def main(command: list[str]) -> int:
    # orphaned processes of the server become children of this process
    ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))
    with tempfile.TemporaryDirectory(prefix="autoscout-") as sockets:
        process = subprocess.Popen(
            processes.leashed(command),
            stdin=subprocess.DEVNULL,
            start_new_session=True,
            env={**os.environ, "VLLM_RPC_BASE_PATH": sockets},
        )
        try:
            while process.poll() is None:
                if select.select([0], [], [], _TICK_S)[0] and not os.read(0, 4096):
                    break
        finally:
            _end(process)
    code = process.returncode
    return 128 - code if code < 0 else code


def _end(process: subprocess.Popen[bytes]) -> None:
    members = processes.family(os.getpid())
    members.pop(os.getpid(), None)
    left = processes.shared_memory(members)
    processes.end(process, 0.0, members)
    for path in left:
        with contextlib.suppress(OSError):
            path.unlink()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
