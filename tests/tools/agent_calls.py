"""Measures the overhead of a call to `autoscout mcp` over its command, with the protocol's own client over stdio.

    PYTHONPATH=. python tests/tools/agent_calls.py [--count 30]

It first creates a session from recorded measurements. Each call is preceded by a warm-up call, which imports modules.
`call`: median time from a client's request to its answer; `verb`: of the function that command and tool share, run
alternately in another process; `beyond`: their difference. `CPU beyond`: the same of CPU times, client and server
together, which other load hardly affects."""

import argparse
import asyncio
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
from mcp import Client, StdioServerParameters
from mcp.client.stdio import stdio_client

from autoscout.targets.jobs import load_job
from autoscout.tuning import session
from autoscout.tuning.loop import Stop
from tui.agents.allowance import AgentLimits
from tui.agents.tools import TOOLS, Call

CALLS: dict[str, dict[str, Any]] = {
    "space": {"job": "replay.toml"},
    "explain": {"job": "replay.toml", "knobs": {"dp": 2}},
    "predict": {"job": "replay.toml", "knobs": {"dp": 2}},
    "similar": {"job": "replay.toml"},
    "sql": {"query": "FROM runs"},
    "sessions": {},
    "watch": {"session": "past"},
    "best": {"what": "past"},
    "export": {"session": "past"},
}


def made(folder: Path) -> AgentLimits:
    text = Path("fixtures/jobs/smallest-cpu-replay.toml").read_text()
    (folder / "jobs").mkdir()
    (folder / "jobs" / "replay.toml").write_text(
        text.replace("../recorded", str(Path("fixtures/recorded").resolve())).replace("-replay", "", 1)
    )
    limits = AgentLimits(folder=folder / "jobs", kb=folder / "kb.duckdb")
    job = load_job(limits.folder / "replay.toml")
    session.tune(job, limits.kb, session.SessionOptions(), lambda e: None, lambda t: None, Stop(), "past")
    return limits


def cpu_s(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def servers() -> list[int]:
    return [int(pid) for pid in Path(f"/proc/self/task/{os.getpid()}/children").read_text().split()]


async def measured(limits: AgentLimits, count: int) -> None:
    words = ["-m", "tui.cli", "mcp", "--jobs", str(limits.folder), "--kb", str(limits.kb)]
    server = StdioServerParameters(command=sys.executable, args=words, env=dict(os.environ))
    async with Client(stdio_client(server)) as agent:
        for tool, arguments in CALLS.items():
            row, call = TOOLS[tool], Call(limits=limits, client="x")
            run: Callable[[Any, Any], Any] = row.run
            (pid,), calls, verbs, ours, verb, theirs = servers(), list[float](), list[float](), 0.0, 0.0, 0.0
            for turn in range(count + 1):
                if turn == 1:
                    ours, verb, theirs = 0.0, 0.0, cpu_s(pid)
                begun, used = time.perf_counter(), time.process_time()
                answer = await agent.call_tool(tool, arguments)
                calls.append(1000 * (time.perf_counter() - begun))
                ours += time.process_time() - used
                begun, used = time.perf_counter(), time.process_time()
                run(call, msgspec.convert(arguments, row.asked))
                verbs.append(1000 * (time.perf_counter() - begun))
                verb += time.process_time() - used
                assert not answer.is_error, answer.content
            times = statistics.median(calls[1:]), statistics.median(verbs[1:])
            beyond = 1000 * (ours + cpu_s(pid) - theirs - verb) / count
            print(f"{tool:10} {times[0]:8.1f} {times[1]:8.1f} {times[0] - times[1]:8.1f} {beyond:10.1f}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=30)
    count = parser.parse_args().count
    with tempfile.TemporaryDirectory() as folder:
        print(f"{'tool':10} {'call ms':>8} {'verb ms':>8} {'beyond':>8} {'CPU beyond':>10}")
        asyncio.run(measured(made(Path(folder)), count))


if __name__ == "__main__":
    main()
