"""Runs the load on an engine, over any transport: equivalence prompts, warm-up, measured passes; writes the results."""

import contextlib
import heapq
import json
import math
import os
import time
import traceback
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import ending
import prompts
import rates
from load_watch import LoadWatch

Record = dict[str, Any]
Answer = Callable[..., Awaitable[tuple[float, list[Record]]]]  # type of drive()'s parameter `answer`


class DriveState:
    """The current phase and the number of finished passes, which the message of a failure states."""

    phase = "import"
    passes = 0


async def drive(
    plan: dict[str, Any],
    answer: Answer,
    alone: bool = False,
    joules: Callable[[], float | None] = lambda: None,
    left: Callable[[], float] = lambda: math.inf,
) -> dict[str, Any]:
    """Runs the equivalence prompts and the warm-up, then either the search for the highest rate, or up to `passes`
    passes (at least one; no further one after `measure_s` seconds). A pass also counts as warm-up if the next one is
    much faster (ending.py).

    `answer(requests, concurrency, ids[, watch])` returns the duration and one record per request, in order: {"sent",
    "chunks": times of its tokens, "tokens": their ids if `ids`, "count": number of tokens, "asked": number of prompt
    tokens, "error"}. Times are in seconds of one clock. Requests that were unfinished when the `watch` (a LoadWatch)
    ended the load early have {"dropped": True}. `alone`: whether the engine runs in this process; its CPU time is then
    known, and its clock can skip idle time. `joules`: reads the energy counter of the engine's GPUs. `left`: returns
    the seconds left for a search."""
    DriveState.phase, DriveState.passes = "load", 0
    checked = (await answer(prompts.guarded(plan), 1, True))[1]
    for number in range(plan["warmup"]):
        await answer(prompts.warm_up(plan, number), plan["concurrency"], False)

    async def measure(requests: list[prompts.PromptRequest], watch: LoadWatch | None = None) -> dict[str, Any]:
        before, cpu, wall = joules(), time.process_time(), time.perf_counter()
        duration, records = await answer(requests, plan["concurrency"], False, *([] if watch is None else [watch]))
        records = [record for record in records if not record.get("dropped")]
        wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
        after = joules()
        DriveState.passes += 1
        taken = None if before is None or after is None else after - before
        return {
            **{"duration_s": duration, "wall_s": wall, "cpu_s": cpu if alone else 0.0, "requests": records},
            "energy_j": taken,
            "skips": alone,
        }

    found: dict[str, Any] = {}
    if "search" in plan:
        found = await rates.highest(plan, measure, left)
    else:
        passes: list[dict[str, Any]] = []
        warm = plan["warmup"]
        while not passes or (len(passes) < plan["passes"] and sum(p["wall_s"] for p in passes) < plan["measure_s"]):
            passes.append(await measure(prompts.of_pass(plan, DriveState.passes)))
            if ending.still_warm([_total_wait_s(p["requests"]) for p in passes], warm, plan["warmup"]):
                del passes[0]
                warm += 1
        found |= {"passes": passes, "warmup": warm}
    guard = [record["tokens"] for record in checked]
    return {"guard": guard, "guard_error": checked[0]["error"], **found, "time": time.time()}  # noqa: TID251 - a timestamp


def _total_wait_s(requests: list[Record]) -> float:
    """Returns the total seconds that the users of a pass waited for answers."""
    return sum(r["chunks"][-1] - r["sent"] for r in requests if r["chunks"])


class DriveOrder:
    """Decides when requests are sent. A session begins when it arrives, or in a closed loop when one of `concurrency`
    users becomes free. Its next stage begins when the previous one has ended."""

    def __init__(self, requests: list[prompts.PromptRequest], concurrency: int) -> None:
        self._requests, self._free = requests, concurrency
        self._closed = concurrency > 0
        self._waiting = prompts.stages(requests)[::-1]  # sessions that have not begun
        self._sessions: dict[int, list[list[int]]] = {}  # unfinished request → remaining stages of its session
        self._open: dict[int, int] = {}  # session → number of unfinished requests in its current stage
        self._ready: list[tuple[float, int]] = []
        self.left = len(requests)  # number of requests not sent yet

    def due(self, now: float) -> tuple[int, float] | None:
        """Returns (index of the next request that is due, time since which it is due); None if no request is due."""
        while self._waiting and (self._free > 0 if self._closed else self._arrival() <= now):
            stages = self._waiting.pop()
            self._free -= 1
            self._begin(stages, now if self._closed else self._requests[stages[0][0]].arrival_s)
        if not self._ready or self._ready[0][0] > now:
            return None
        came, i = heapq.heappop(self._ready)
        self.left -= 1
        return i, came

    def ended(self, i: int, now: float) -> None:
        stages = self._sessions.pop(i)
        self._open[id(stages)] -= 1
        if self._open[id(stages)]:
            return
        del stages[0]
        if stages:
            self._begin(stages, now + self._requests[stages[0][0]].think_s)
        else:
            self._free += 1

    def next_at(self) -> float:
        """Returns the time at which the next request is due regardless of answers; infinity if all remaining requests
        wait for answers."""
        times = [self._ready[0][0]] if self._ready else []
        return min([*times, self._arrival()] if self._waiting and not self._closed else times, default=math.inf)

    def _arrival(self) -> float:
        return self._requests[self._waiting[-1][0][0]].arrival_s

    def _begin(self, stages: list[list[int]], at: float) -> None:
        self._open[id(stages)] = len(stages[0])
        for i in stages[0]:
            self._sessions[i] = stages
            heapq.heappush(self._ready, (at, i))


class Busy:
    """The clock of an engine that computes alone in this process on one thread: CPU time plus skipped waits for
    requests. On an idle CPU, this clock equals wall-clock time; on a shared CPU, it excludes the time of other
    processes."""

    def __init__(self) -> None:
        self._skipped = -time.process_time()

    def now(self) -> float:
        return time.process_time() + self._skipped

    def skip(self, seconds: float) -> None:
        self._skipped += max(0.0, seconds)


def record(sent: float, request: prompts.PromptRequest) -> Record:
    return {"sent": sent, "chunks": [], "tokens": [], "count": 0, "asked": len(request.prompt), "error": ""}


def write(path: Path, content: dict[str, Any]) -> None:
    """Writes atomically."""
    part = path.with_suffix(".part")
    part.write_text(json.dumps(content))
    os.replace(part, path)


def leave_error(folder: Path, error: BaseException) -> None:
    traceback.print_exc()
    content = {
        "type": type(error).__name__,
        "message": str(error)[:4000],
        "traceback": traceback.format_exc()[-4000:],
        "in_megatron": False,
        "phase": DriveState.phase,
        "steps": DriveState.passes,
        "time": time.time(),  # noqa: TID251 - a timestamp
    }
    with contextlib.suppress(OSError):
        write(folder / "rank-0.error.json", content)
