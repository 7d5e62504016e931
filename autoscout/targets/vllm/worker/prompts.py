"""Generates the requests of an experiment from its plan alone, so that every process generates the same requests.

A plan has the keys "vocab", "shared_prefix", "concurrency", "warmup", "passes", "measure_s", "input_len", "output_len"
and "arrival_s". Lengths are in tokens, one per request; arrivals are in seconds, empty for a closed loop. Optional keys
are "talks" (how requests continue each other: lists "session", "stage", "on", "group", "own" with an entry per request,
as in autoscout/job/sessions.py, and "think_s") and "blocks" (hashes of each prompt's blocks of "block_tokens"
tokens)."""

import random
from typing import Any, NamedTuple

_FIRST = 10  # smaller ids are special tokens
_WARM = -1  # number of the warm-up pass
_GUARDED = 4
_GUARD_TOKENS = 24


class PromptRequest(NamedTuple):
    """A request. `on`: index of the request whose prompt and answer begin this prompt, -1 for none. `prompt`: the
    tokens that follow. `session`: its index, -1 for none. In a session, the requests of a `stage` wait until the
    previous stage has ended, and then for `think_s` seconds."""

    arrival_s: float
    prompt: list[int]
    output_len: int
    session: int = -1
    stage: int = 0
    on: int = -1
    think_s: float = 0.0


def of_pass(plan: dict[str, Any], number: int) -> list[PromptRequest]:
    """Returns the requests of a pass. Each pass has new prompts (with the same shared prefixes), since otherwise the
    prefix cache would serve all passes but the first."""
    if "talks" in plan:
        return _talking(plan, number)
    if "blocks" in plan:
        return _hashed(plan, number)
    ids = range(_FIRST, plan["vocab"])
    shared = random.Random(0).choices(ids, k=plan["shared_prefix"])
    requests = []
    for i, (asked, answered) in enumerate(zip(plan["input_len"], plan["output_len"], strict=True)):
        own = random.Random(f"{number}/{i}").choices(ids, k=asked)
        prompt = shared[:asked] + own[len(shared) :]
        requests.append(PromptRequest(plan["arrival_s"][i] if plan["arrival_s"] else 0.0, prompt, answered))
    return requests


def _talking(plan: dict[str, Any], number: int) -> list[PromptRequest]:
    ids, talks = range(_FIRST, plan["vocab"]), plan["talks"]
    shared = {g: random.Random(f"group/{g}").choices(ids, k=plan["shared_prefix"]) for g in set(talks["group"])}
    requests = []
    for i, on in enumerate(talks["on"]):
        own = random.Random(f"{number}/{i}").choices(ids, k=talks["own"][i])
        stage = talks["stage"][i]
        requests.append(
            PromptRequest(
                plan["arrival_s"][i] if plan["arrival_s"] else 0.0,
                own if on >= 0 else shared[talks["group"][i]] + own,
                plan["output_len"][i],
                talks["session"][i],
                stage,
                on,
                talks["think_s"] if stage and stage % 2 == 0 else 0.0,
            )
        )
    return requests


def _hashed(plan: dict[str, Any], number: int) -> list[PromptRequest]:
    """Returns requests whose prompts have equal tokens for equal block hashes. Tokens without a block hash are
    unique."""
    ids, size = range(_FIRST, plan["vocab"]), plan["block_tokens"]
    requests = []
    for i, (asked, answered) in enumerate(zip(plan["input_len"], plan["output_len"], strict=True)):
        prompt: list[int] = []
        for block in plan["blocks"][i]:
            prompt += random.Random(f"{number}/block/{block}").choices(ids, k=size)
        own = random.Random(f"{number}/{i}").choices(ids, k=max(0, asked - len(prompt)))
        arrival = plan["arrival_s"][i] if plan["arrival_s"] else 0.0
        requests.append(PromptRequest(arrival, (prompt + own)[:asked], answered))
    return requests


def stages(requests: list[PromptRequest]) -> list[list[list[int]]]:
    """Returns, for each session, the indices of its requests by stage. A request without a session forms a session of
    its own."""
    found: dict[tuple[int, int], dict[int, list[int]]] = {}
    for i, request in enumerate(requests):
        key = (request.session, -1 if request.session >= 0 else i)
        found.setdefault(key, {}).setdefault(request.stage, []).append(i)
    return [[of[stage] for stage in sorted(of)] for of in found.values()]


def continued(requests: list[PromptRequest]) -> set[int]:
    """Returns the indices of the requests whose answers later requests continue."""
    return {request.on for request in requests if request.on >= 0}


def warm_up(plan: dict[str, Any], number: int) -> list[PromptRequest]:
    """Returns a warm-up pass like the measured ones (for an open loop, 16 requests at once), because an engine's first
    steps and first pass are far slower than later ones."""
    count = None if plan["concurrency"] else 16
    return [r._replace(arrival_s=0.0) for r in of_pass(plan, _WARM - number)[:count]]


def guarded(plan: dict[str, Any]) -> list[PromptRequest]:
    """Returns the equivalence prompts, whose greedy answers must not depend on the configuration."""
    ids = range(_FIRST, plan["vocab"])
    asked, answered = max(plan["input_len"]), max(plan["output_len"])
    lengths = [max(1, min(asked, 32) - 5 * i) for i in range(_GUARDED)]
    return [
        PromptRequest(0.0, random.Random(f"guard/{i}").choices(ids, k=length), min(answered, _GUARD_TOKENS))
        for i, length in enumerate(lengths)
    ]
