"""The requests of an experiment, made from its plan alone: the same in every process that drives it.

A plan: {"vocab", "shared_prefix", "concurrency", "warmup", "passes", "measure_s", "input_len", "output_len",
"arrival_s"}; lengths in tokens, one a request; arrivals in seconds, empty for a closed loop.
"""

import random
from typing import Any, NamedTuple

_FIRST = 10  # smaller ids are the tokenizer's own
_WARM = -1  # the pass of the warm-up
_GUARDED = 4
_GUARD_TOKENS = 24


class Request(NamedTuple):
    arrival_s: float
    prompt: list[int]
    output_len: int


def of_pass(plan: dict[str, Any], number: int) -> list[Request]:
    """Every pass asks something new, or the prefix cache would answer all but the first; shared beginnings stay."""
    ids = range(_FIRST, plan["vocab"])
    shared = random.Random(0).choices(ids, k=plan["shared_prefix"])
    requests = []
    for i, (asked, answered) in enumerate(zip(plan["input_len"], plan["output_len"], strict=True)):
        own = random.Random(f"{number}/{i}").choices(ids, k=asked)
        prompt = shared[:asked] + own[len(shared) :]
        requests.append(Request(plan["arrival_s"][i] if plan["arrival_s"] else 0.0, prompt, answered))
    return requests


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
