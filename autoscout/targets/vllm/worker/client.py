"""Sends the load of an experiment to a server over HTTP, as streamed completions like `vllm bench serve`.

client.py EXPERIMENT.json URL writes rank-0.json or rank-0.error.json next to EXPERIMENT.json."""

import asyncio
import contextlib
import json
import sys
import time
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

# Adds the folder shared by all targets' workers: the target's interpreter does not have our packages.
sys.path.insert(0, str(Path(__file__).parents[3] / "running" / "worker"))

import aiohttp
import driving
import effective
import energy
import prompts
from load_watch import LoadWatch, SentRequest

_CHECK_INTERVAL_S = 0.25  # seconds between checks of a load that may end early
_LONGEST_S = 6 * 3600.0
Received = list[tuple[float, bytes]]


def main() -> int:
    """Runs the load; returns the exit code. Command-line arguments: the experiment, the URL, the seconds that the start
    took, and with a router the first server's URL."""
    experiment, url, took_s = Path(sys.argv[1]), sys.argv[2], float(sys.argv[3])
    server = sys.argv[4] if len(sys.argv) > 4 else url
    try:
        measured = _loop()(_drive(experiment, url, server, time.monotonic() - took_s))
    except Exception as error:
        driving.leave_error(experiment.parent, error)
        return 1
    driving.write(experiment.with_name("rank-0.json"), measured)
    return 0


def _loop() -> Callable[[Coroutine[Any, Any, dict[str, Any]]], dict[str, Any]]:
    try:
        import uvloop  # vLLM's own servers use it
    except ImportError:
        return asyncio.run
    return uvloop.run


async def _drive(experiment: Path, url: str, server: str, began: float) -> dict[str, Any]:
    """Sends the load and returns the results. `began`: monotonic time of the experiment's start."""
    connector = aiohttp.TCPConnector(limit=0, keepalive_timeout=60)
    timeout = aiohttp.ClientTimeout(total=_LONGEST_S)
    given = json.loads(experiment.read_bytes())
    async with aiohttp.ClientSession(connector=connector, timeout=timeout) as session:

        async def answer(
            requests: list[prompts.PromptRequest], concurrency: int, ids: bool, watch: LoadWatch | None = None
        ) -> tuple[float, list[driving.Record]]:
            body = {"model": given["served_name"], "return_token_ids": ids}
            return await _answer(session, url, body, requests, concurrency, watch)

        def left() -> float:
            return given["limit_s"] - (time.monotonic() - began)

        if same := await _same_as(session, server, experiment, given):
            found = {"same_as": same, "time": time.time()}  # noqa: TID251 - a timestamp
        else:
            found = await driving.drive(
                given["plan"], answer, joules=lambda: energy.joules(given.get("gpus", [])), left=left
            )
        return found | {"took_s": time.monotonic() - began}


async def _same_as(session: aiohttp.ClientSession, url: str, experiment: Path, given: dict[str, Any]) -> str:
    """Writes the server's effective configuration, if reported. Returns the name of an earlier experiment with the same
    engine; "" if there is none."""
    async with session.get(f"{url}/server_info", params={"config_format": "json"}) as response:
        if response.status != 200:
            return ""
        config = (await response.json())["vllm_config"]
    parts = {name.removesuffix("_config"): part for name, part in config.items() if isinstance(part, dict)}
    found = effective.of_described({part: parts.get(part, {}) for part in effective.PARTS})
    if given.get("router"):  # with a router, the first server's configuration alone does not identify the engine
        found["identity"] = json.dumps([found["identity"], given["servers"], given["router"]])
    cache = parts.get("cache", {})
    tokens = int(cache.get("num_gpu_blocks") or 0) * int(cache.get("block_size") or 0)
    driving.write(experiment.with_name("effective.json"), found | ({"kv_cache_tokens": tokens} if tokens else {}))
    return given["known"].get(found["identity"], "")


async def _answer(
    session: aiohttp.ClientSession,
    url: str,
    body: dict[str, Any],
    requests: list[prompts.PromptRequest],
    concurrency: int,
    watch: LoadWatch | None = None,
) -> tuple[float, list[driving.Record]]:
    """Sends requests and receives their answers. Returns (duration in seconds, a record per request). Bodies are
    encoded before the first request, and answers parsed after the last one, because client and server share the
    machine's CPUs. A request that continues an earlier answer is encoded only when this answer has arrived."""
    quoted = prompts.continued(requests)
    bodies = [_body(body, request.prompt, request.output_len, i in quoted) for i, request in enumerate(requests)]
    texts: dict[int, list[int]] = {}
    records: list[driving.Record] = [driving.record(0.0, request) for request in requests]
    received: list[Received] = [[] for _ in requests]
    order: list[int] = []  # indices of requests in the order of sending
    ended: dict[int, float] = {}
    sessions = prompts.stages(requests)
    turns = asyncio.Semaphore(concurrency or len(sessions))
    start = time.perf_counter()

    async def talk(stages: list[list[int]]) -> None:
        if not concurrency:
            await asyncio.sleep(max(0.0, start + requests[stages[0][0]].arrival_s - time.perf_counter()))
        async with turns:
            for stage in stages:
                await asyncio.gather(*(one(i) for i in stage))

    async def one(i: int) -> None:
        request, prompt, content = requests[i], requests[i].prompt, bodies[i]
        if request.on >= 0:
            prompt = texts[request.on] + prompt
            content = _body(body, prompt, request.output_len, i in quoted)
        if request.think_s:
            await asyncio.sleep(request.think_s)
        records[i] |= {"sent": time.perf_counter() - start, "asked": len(prompt)}
        order.append(i)
        talk_id = str(i if request.session < 0 else request.session)
        await _ask(session, url, content, talk_id, records[i], received[i])
        ended[i] = time.perf_counter() - start
        if i in quoted:
            _read(records[i], received[i], start)
            texts[i] = prompt + records[i]["tokens"]

    def seen() -> list[SentRequest]:
        firsts = ((i, received[i][0][0] - start if received[i] else None) for i in order)
        return [SentRequest(records[i]["sent"], first, ended.get(i), requests[i].output_len) for i, first in firsts]

    load = asyncio.gather(*(talk(stages) for stages in sessions))
    while watch is not None and not (await asyncio.wait([load], timeout=_CHECK_INTERVAL_S))[0]:
        if watch.ends(time.perf_counter() - start, seen()):
            load.cancel()  # a server cancels requests whose connection is closed
            break
    with contextlib.suppress(asyncio.CancelledError):
        await load
    duration = time.perf_counter() - start
    for i, record in enumerate(records):
        if i not in ended:
            record["dropped"] = True
            continue
        if i not in quoted:
            _read(record, received[i], start)
        elif not body["return_token_ids"]:
            record["tokens"] = []
        if record["count"] != (wanted := requests[i].output_len):
            record["error"] = record["error"] or f"the answer has {record['count']} tokens, but {wanted} were requested"
    return duration, records


def _body(body: dict[str, Any], prompt: list[int], output_len: int, quoted: bool) -> bytes:
    """Encodes a request. `quoted`: whether the answer's tokens are needed, because a later request continues them."""
    asked = {
        **({"return_token_ids": True} if quoted else {}),
        "prompt": prompt,
        "max_tokens": output_len,
        "temperature": 0.0,
        "ignore_eos": True,
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    return json.dumps(body | asked).encode()


async def _ask(
    session: aiohttp.ClientSession, url: str, content: bytes, talk_id: str, record: driving.Record, received: Received
) -> None:
    """Sends one request and records the received parts with their arrival times. `talk_id`: conversation id, by which
    routers keep a conversation on one server."""
    headers = {"Content-Type": "application/json", "x-session-id": talk_id}
    try:
        async with session.post(f"{url}/v1/completions", data=content, headers=headers) as response:
            if response.status != 200:
                record["error"] = f"HTTP {response.status}: {(await response.text())[:300]}"
                return
            async for part in response.content.iter_any():
                received.append((time.perf_counter(), part))
    except (aiohttp.ClientError, ValueError, OSError) as error:
        record["error"] = f"{type(error).__name__}: {error}"[:300]


def _read(record: driving.Record, received: Received, start: float) -> None:
    """Parses server-sent events, one per line. An event's time is the arrival of the last part of its line."""
    left = b""
    try:
        for at, part in received:
            *lines, left = (left + part).split(b"\n")
            for line in lines:
                text = line.strip()
                if text.startswith(b"data:") and text != b"data: [DONE]":
                    _take(record, json.loads(text[5:]), at - start)
    except (ValueError, KeyError, TypeError) as error:
        record["error"] = record["error"] or f"{type(error).__name__}: {error}"[:300]
    if not record["chunks"]:
        record["error"] = record["error"] or "the answer contains no token"


def _take(record: driving.Record, data: dict[str, Any], now: float) -> None:
    if "error" in data:
        raise ValueError(f"the server answered: {data['error']}")
    if choices := data.get("choices"):
        record["chunks"].append(now)
        record["tokens"] += choices[0].get("token_ids") or []
    elif usage := data.get("usage"):
        record["count"] = usage["completion_tokens"]


if __name__ == "__main__":
    sys.exit(main())
