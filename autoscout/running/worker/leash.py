"""Ties a process to its parent, so that nothing outlives AutoScout, not even after kill -9.

As a script, `leash.py PARENT COMMAND…` ties itself to process PARENT and becomes COMMAND.
"""

import ctypes
import os
import signal
import sys
import threading

_PR_SET_PDEATHSIG = 1


def die_with(parent: int) -> None:
    """Makes the kernel kill this process when the thread that started it (a thread of process `parent`) ends."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, int(signal.SIGKILL), 0, 0, 0)
    if os.getppid() != parent:  # the parent ended before prctl was called
        os._exit(1)


def outlive() -> None:
    """Reverts `die_with`."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, 0, 0, 0, 0)


def die_with_stdin() -> None:
    """Ends this process when its stdin closes: for containers, where the kernel's signal does not arrive."""

    def watch() -> None:
        while os.read(0, 4096):
            pass
        os.kill(os.getpid(), signal.SIGKILL)

    threading.Thread(target=watch, daemon=True).start()


if __name__ == "__main__":
    die_with(int(sys.argv[1]))
    os.execvp(sys.argv[2], sys.argv[2:])
