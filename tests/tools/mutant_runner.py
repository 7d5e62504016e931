"""Runs tests of the tree in the working directory on request, each time in a child forked from a process that has
already imported all libraries, because these imports take longer than most tests.

Standard input: a JSON list of pytest's names per line. Standard output: "noticed" or "survived" per line."""

import contextlib
import json
import os
import signal
import sys
import time

import duckdb  # noqa: F401  (imported for the children)
import hypothesis  # noqa: F401
import msgspec  # noqa: F401
import networkx  # noqa: F401
import numpy  # noqa: F401
import pytest
import scipy.optimize
import scipy.stats  # noqa: F401
import sklearn.ensemble
import sklearn.gaussian_process  # noqa: F401

PLAIN = "not engine and not thorough and not hosts"
TIMEOUT_S = 180.0
NOTHING_FAILED = (int(pytest.ExitCode.OK), int(pytest.ExitCode.NO_TESTS_COLLECTED))


def passes(tests: list[str]) -> bool:
    """Whether all tests pass; a run of TIMEOUT_S counts as failed."""
    child = os.fork()
    if not child:
        os.setsid()
        quiet = os.open(os.devnull, os.O_RDWR)
        for stream in (0, 1, 2):
            os.dup2(quiet, stream)
        # The mutated file must not leave bytecode, which would be used after the mutation is undone.
        sys.dont_write_bytecode = True
        os._exit(pytest.main(["-x", "-q", "--assert=plain", "-p", "no:cacheprovider", "-m", PLAIN, *tests]))
    ends = time.monotonic() + TIMEOUT_S
    while True:
        ended, status = os.waitpid(child, os.WNOHANG)
        if ended:
            code = os.waitstatus_to_exitcode(status)
            break
        if time.monotonic() > ends:
            os.killpg(child, signal.SIGKILL)
            os.waitpid(child, 0)
            code = -signal.SIGKILL
            break
        time.sleep(0.02)
    with contextlib.suppress(ProcessLookupError):
        os.killpg(child, signal.SIGKILL)  # with all processes that the tests started
    return code in NOTHING_FAILED


if __name__ == "__main__":
    for line in sys.stdin:
        print("survived" if passes(json.loads(line)) else "noticed", flush=True)
