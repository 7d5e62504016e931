"""What is done to an engine, whatever it is reached by: guard, warm-up, measured passes; and what is left of it."""

import contextlib
import json
import os
import time
import traceback
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import prompts

Record = dict[str, Any]
Answer = Callable[[list[prompts.Request], int, bool], Awaitable[list[Record]]]


class State:
    """How far the experiment has come, for the sentence about its failure."""

    phase = "import"
    passes = 0


async def drive(plan: dict[str, Any], answer: Answer, alone: bool = False) -> dict[str, Any]:
    """Guard, warm-up, then as many passes as are asked for within `measure_s` seconds (at least one).

    `answer(requests, concurrency, ids)` returns a record a request, in order: {"sent", "chunks": times of its tokens,
    "tokens": ids if wanted, "count", "asked", "error"}, times in seconds of the same clock(). `alone`: as there.
    """
    now = clock(plan, alone)
    State.phase = "load"
    checked = await answer(prompts.guarded(plan), 1, True)
    for number in range(plan["warmup"]):
        await answer(prompts.warm_up(plan, number), plan["concurrency"], False)
    passes: list[dict[str, Any]] = []
    begun = time.perf_counter()
    while not passes or (len(passes) < plan["passes"] and time.perf_counter() - begun < plan["measure_s"]):
        requests = prompts.of_pass(plan, len(passes))
        cpu, start = time.process_time(), now()
        records = await answer(requests, plan["concurrency"], False)
        duration, cpu = now() - start, time.process_time() - cpu
        passes.append({"duration_s": duration, "cpu_s": cpu if alone else 0.0, "requests": records})
        State.passes = len(passes)
    guard = [record["tokens"] for record in checked]
    return {"guard": guard, "guard_error": checked[0]["error"], "passes": passes, "time": time.time()}


def clock(plan: dict[str, Any], alone: bool) -> Callable[[], float]:
    """What time is measured by: processor time where the engine is `alone` in this process and computes all the time,
    as it does in a closed loop. On a free processor that is the time of the wall; on a shared one it is what the wall
    would have shown without the others."""
    return time.process_time if alone and plan["concurrency"] else time.perf_counter


def record(sent: float, request: prompts.Request) -> Record:
    return {"sent": sent, "chunks": [], "tokens": [], "count": 0, "asked": len(request.prompt), "error": ""}


def write(path: Path, content: dict[str, Any]) -> None:
    """All of it or nothing."""
    part = path.with_suffix(".part")
    part.write_text(json.dumps(content))
    os.replace(part, path)


def leave_error(folder: Path, error: BaseException) -> None:
    traceback.print_exc()
    said = {
        "type": type(error).__name__,
        "message": str(error)[:4000],
        "traceback": traceback.format_exc()[-4000:],
        "in_megatron": False,
        "phase": State.phase,
        "steps": State.passes,
        "time": time.time(),
    }
    with contextlib.suppress(OSError):
        write(folder / "rank-0.error.json", said)
