"""Handles a tool call of an agent: checks the arguments, runs the tool, shortens its answer, and logs the call."""

import time
from typing import Any

import msgspec

from kb.records import AutoscoutError
from tui.agents.allowance import shortened
from tui.agents.bounded import bounded
from tui.agents.tools import TOOLS, Call

_LARGEST = 100_000  # largest number of characters of a call's arguments


class ToolAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """`answer`: the command's JSON document; `left_out`: parts that were cut; `refused`: why there is no answer."""

    answer: Any = None
    left_out: list[str] = []
    refused: str = ""


ANSWER_SCHEMA = {
    "type": "object",
    "properties": {
        "answer": {
            "anyOf": [{"type": "object"}, {"type": "array"}],
            "description": "what the verb of this name prints with --json",
        },
        "left_out": {
            "type": "array",
            "items": {"type": "string"},
            "description": "which parts were cut to shorten the answer",
        },
    },
    "required": ["answer", "left_out"],
}


def answered(call: Call, name: str, arguments: dict[str, Any] | None) -> ToolAnswer:
    """The answer to a call. Expected errors are returned as `refused`; other exceptions are raised."""
    began = time.perf_counter()
    found = _answer(call, name, arguments or {})
    ms = round(1000 * (time.perf_counter() - began), 1)
    line = {"client": call.client, "tool": name[:100], "arguments": shortened(arguments or {}), "ms": ms}
    call.limits.write(line | ({"refused": found.refused} if found.refused else {}))
    return found


def _answer(call: Call, name: str, arguments: dict[str, Any]) -> ToolAnswer:
    row = TOOLS.get(name)
    if row is None:
        return ToolAnswer(refused=f"there is no tool {name[:60]!r}; the tools are {', '.join(TOOLS)}")
    try:
        if (size := len(msgspec.json.encode(arguments))) > _LARGEST:
            return ToolAnswer(refused=f"the arguments have {size:,} characters; at most {_LARGEST:,} are allowed")
        found, cut = bounded(msgspec.to_builtins(row.run(call, msgspec.convert(arguments, row.asked)), str_keys=True))
        return ToolAnswer(answer=found, left_out=cut)
    except msgspec.ValidationError as error:
        return ToolAnswer(refused=f"{name}: {error}")
    except AutoscoutError as error:
        return ToolAnswer(refused=str(error))
    except (OSError, RecursionError, ValueError, TypeError, UnicodeError) as error:
        return ToolAnswer(refused=f"{name}: {type(error).__name__}: {error}")
