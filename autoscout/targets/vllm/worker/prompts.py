"""The requests of an experiment, made from its plan alone: the same in every process that drives it.

A plan: {"vocab", "shared_prefix", "concurrency", "warmup", "passes", "measure_s", "input_len", "output_len",
"arrival_s"}; lengths in tokens, one a request; arrivals in seconds, empty for a closed loop. "talks": how requests go
on from each other ("session", "stage", "on", "group", "own", one a request, as autoscout/job/sessions.py has them, and
"think_s"). "blocks": hashes of each prompt's blocks of "block_tokens" tokens.
"""

import random
from typing import Any, NamedTuple

_FIRST = 10  # smaller ids are the tokenizer's own
_WARM = -1  # the pass of the warm-up
_GUARDED = 4
_GUARD_TOKENS = 24


class Request(NamedTuple):
    """`prompt`: what it adds to the prompt and the answer of the request `on` (-1: the whole prompt). Requests of one
    `session` (-1: of none) and a later `stage` wait for those of the stage before, and then for `think_s`."""

    arrival_s: float
    prompt: list[int]
    output_len: int
    session: int = -1
    stage: int = 0
    on: int = -1
    think_s: float = 0.0


def of_pass(plan: dict[str, Any], number: int) -> list[Request]:
    """Every pass asks something new, or the prefix cache would answer all but the first; shared beginnings stay."""
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
        requests.append(Request(plan["arrival_s"][i] if plan["arrival_s"] else 0.0, prompt, answered))
    return requests


def _talking(plan: dict[str, Any], number: int) -> list[Request]:
    ids, talks = range(_FIRST, plan["vocab"]), plan["talks"]
    shared = {g: random.Random(f"group/{g}").choices(ids, k=plan["shared_prefix"]) for g in set(talks["group"])}
    requests = []
    for i, on in enumerate(talks["on"]):
        own = random.Random(f"{number}/{i}").choices(ids, k=talks["own"][i])
        stage = talks["stage"][i]
        requests.append(
            Request(
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


def _hashed(plan: dict[str, Any], number: int) -> list[Request]:
    """Tokens that are the same where hashes are; what a prompt has beyond its blocks is its own."""
    ids, size = range(_FIRST, plan["vocab"]), plan["block_tokens"]
    requests = []
    for i, (asked, answered) in enumerate(zip(plan["input_len"], plan["output_len"], strict=True)):
        prompt: list[int] = []
        for block in plan["blocks"][i]:
            prompt += random.Random(f"{number}/block/{block}").choices(ids, k=size)
        own = random.Random(f"{number}/{i}").choices(ids, k=max(0, asked - len(prompt)))
        arrival = plan["arrival_s"][i] if plan["arrival_s"] else 0.0
        requests.append(Request(arrival, (prompt + own)[:asked], answered))
    return requests


def stages(requests: list[Request]) -> list[list[list[int]]]:
    """For each session, in order, the numbers of its requests by stage; a request of no session is one by itself."""
    found: dict[tuple[int, int], dict[int, list[int]]] = {}
    for i, request in enumerate(requests):
        key = (request.session, -1 if request.session >= 0 else i)
        found.setdefault(key, {}).setdefault(request.stage, []).append(i)
    return [[of[stage] for stage in sorted(of)] for of in found.values()]


def continued(requests: list[Request]) -> set[int]:
    """The requests whose answers others go on from."""
    return {request.on for request in requests if request.on >= 0}


def warm_up(plan: dict[str, Any], number: int) -> list[Request]:
    """A pass like those that count (of an open loop 16 requests at once): the first steps of an engine are far slower
    than those after, and the first pass is too."""
    count = None if plan["concurrency"] else 16
    return [r._replace(arrival_s=0.0) for r in of_pass(plan, _WARM - number)[:count]]


def guarded(plan: dict[str, Any]) -> list[Request]:
    """The prompts whose greedy answers must not depend on the configuration; they fit where the load's requests do."""
    ids = range(_FIRST, plan["vocab"])
    asked, answered = max(plan["input_len"]), max(plan["output_len"])
    lengths = [max(1, min(asked, 32) - 5 * i) for i in range(_GUARDED)]
    return [
        Request(0.0, random.Random(f"guard/{i}").choices(ids, k=length), min(answered, _GUARD_TOKENS))
        for i, length in enumerate(lengths)
    ]
