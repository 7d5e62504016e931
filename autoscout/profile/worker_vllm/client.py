"""Drives a server over HTTP with the load of an experiment, as `vllm bench serve` does: completions, streamed.

client.py EXPERIMENT.json URL      writes rank-0.json beside it, or rank-0.error.json
"""

import asyncio
import json
import sys
import time
from pathlib import Path
from typing import Any

import aiohttp
import driving
import effective
import prompts

_LONGEST_S = 6 * 3600.0


def main() -> int:
    experiment, url = Path(sys.argv[1]), sys.argv[2]
    try:
        measured = asyncio.run(_drive(experiment, url))
    except Exception as error:
        driving.leave_error(experiment.parent, error)
        return 1
    driving.write(experiment.with_name("rank-0.json"), measured)
    return 0


async def _drive(experiment: Path, url: str) -> dict[str, Any]:
    connector = aiohttp.TCPConnector(limit=0, keepalive_timeout=60)
    timeout = aiohttp.ClientTimeout(total=_LONGEST_S)
    given = json.loads(experiment.read_bytes())
    async with aiohttp.ClientSession(connector=connector, timeout=timeout) as session:

        async def answer(requests: list[prompts.Request], concurrency: int, ids: bool) -> list[driving.Record]:
            body = {"model": given["served_name"], "return_token_ids": ids}
            return await _answer(session, url, body, requests, concurrency)

        if same := await _same_as(session, url, experiment, given["known"]):
            return {"same_as": same, "time": time.time()}
        return await driving.drive(given["plan"], answer)


async def _same_as(session: aiohttp.ClientSession, url: str, experiment: Path, known: dict[str, str]) -> str:
    """Keeps what the server made of its arguments, if it says it; "" or the experiment that had the same engine."""
    async with session.get(f"{url}/server_info", params={"config_format": "json"}) as response:
        if response.status != 200:
            return ""
        config = (await response.json())["vllm_config"]
    parts = {name.removesuffix("_config"): part for name, part in config.items() if isinstance(part, dict)}
    found = effective.of_described({part: parts.get(part, {}) for part in effective.PARTS})
    driving.write(experiment.with_name("effective.json"), found)
    return known.get(found["identity"], "")


async def _answer(
    session: aiohttp.ClientSession, url: str, body: dict[str, Any], requests: list[prompts.Request], concurrency: int
) -> list[driving.Record]:
    start = time.perf_counter()
    turns = asyncio.Semaphore(concurrency or len(requests))

    async def one(request: prompts.Request) -> driving.Record:
        if not concurrency:
            await asyncio.sleep(max(0.0, start + request.arrival_s - time.perf_counter()))
        async with turns:
            return await _ask(session, url, body, request, start)

    return list(await asyncio.gather(*(one(request) for request in requests)))


async def _ask(
    session: aiohttp.ClientSession, url: str, body: dict[str, Any], request: prompts.Request, start: float
) -> driving.Record:
    record = driving.record(time.perf_counter() - start, request)
    body = body | {
        "prompt": request.prompt,
        "max_tokens": request.output_len,
        "temperature": 0.0,
        "ignore_eos": True,
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    try:
        async with session.post(f"{url}/v1/completions", json=body) as response:
            if response.status != 200:
                said = (await response.text())[:300]
                return record | {"error": f"HTTP {response.status}: {said}"}
            async for line in response.content:  # server-sent events are lines
                text = line.strip()
                if text.startswith(b"data:") and text != b"data: [DONE]":
                    _take(record, json.loads(text[5:]), time.perf_counter() - start)
    except (aiohttp.ClientError, ValueError, KeyError, TypeError, OSError) as error:
        return record | {"error": f"{type(error).__name__}: {error}"[:300]}
    if not record["chunks"]:
        record["error"] = "the answer has no token"
    return record


def _take(record: driving.Record, data: dict[str, Any], now: float) -> None:
    if "error" in data:
        raise ValueError(f"the server said: {data['error']}")
    if choices := data.get("choices"):
        record["chunks"].append(now)
        record["tokens"] += choices[0].get("token_ids") or []
    elif usage := data.get("usage"):
        record["count"] = usage["completion_tokens"]


if __name__ == "__main__":
    sys.exit(main())
