"""Runs verbs as subprocesses of a pane, so that they do not block the screen; they end with the pane."""

import asyncio
import contextlib
import functools
import re
import sys
from asyncio.subprocess import DEVNULL, PIPE, Process
from collections.abc import Callable, Coroutine
from typing import ParamSpec

from textual.css.query import NoMatches

from kb.door import plain_json
from tui.hygiene import plain

P = ParamSpec("P")
_USAGE = re.compile(r"\AUsage: .*?\n\nError: ", re.DOTALL)  # click's usage before an error


def until_closed(ask: Callable[P, Coroutine[None, None, None]]) -> Callable[P, Coroutine[None, None, None]]:
    """A decorator for workers. When a screen closes, its widgets are removed before its workers are cancelled; errors
    of a worker that runs in between are ignored, since its result cannot be shown."""

    @functools.wraps(ask)
    async def asked(*args: P.args, **kwargs: P.kwargs) -> None:
        with contextlib.suppress(NoMatches):
            await ask(*args, **kwargs)

    return asked


class AskedVerbs:
    """The subprocesses of one pane."""

    def __init__(self) -> None:
        self._running: set[Process] = set()

    async def start(self, *arguments: str) -> Process:
        command = [sys.executable, "-m", "tui.cli", *arguments]
        process = await asyncio.create_subprocess_exec(*command, stdin=DEVNULL, stdout=PIPE, stderr=PIPE)
        self._running.add(process)
        return process

    async def outcome(self, process: Process) -> tuple[int, str, str]:
        """Waits for a process; returns its exit code (< 0: ended by a signal), stdout and stderr."""
        out, said = await process.communicate()
        self._running.discard(process)
        message = _USAGE.sub("", plain(said.decode(errors="replace"))).removeprefix("autoscout: ")
        return process.returncode or 0, plain_json(out).decode(errors="replace"), message

    async def verb(self, *arguments: str) -> tuple[int, str, str]:
        return await self.outcome(await self.start(*arguments))

    def end(self) -> None:
        for process in self._running:
            with contextlib.suppress(ProcessLookupError):
                process.kill()
