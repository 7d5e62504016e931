"""Computes, from the messages of a run that ran out of memory, the least additional memory that it would have needed.

    short = in use + tried to allocate − the device's memory       (GiB)

"In use" is the memory of the process itself, so memory of other processes does not count; if a message lacks this
number, `short` is the size of the allocation that failed minus the free memory. Covers messages of PyTorch (CUDA, HIP
and XPU; before 2.1 and since), XLA and vLLM.
"""

import re
from collections.abc import Callable
from pathlib import Path

from autoscout.running import results

SHORT = "memory_short_gib"  # metric: the least memory in GiB that a run lacked when it ran out of memory

_GIB = {"": 2.0**-30, "K": 2.0**-20, "M": 2.0**-10, "G": 1.0, "T": 2.0**10}
_SIZE = r"([\d.]+) ?([KMGT]?)i?(?:B|bytes)?"


def _form(pattern: str, short: Callable[..., float]) -> tuple[re.Pattern[str], Callable[..., float]]:
    """One form of an out-of-memory message. `short`: computes the missing GiB from the sizes that `pattern` matches."""
    return re.compile(pattern.replace("SIZE", _SIZE), re.DOTALL), short


_SOME = r"(?:(?!Tried to allocate).){0,600}?"  # any text that does not reach into the next message
_FORMS = [
    # PyTorch since 2.1
    _form(
        rf"Tried to allocate SIZE\.{_SOME}total capac\w+ of SIZE of which SIZE is free"
        rf"(?:{_SOME}this process has SIZE memory in use)?",
        lambda tried, total, free, own: tried - free if own is None else own + tried - total,
    ),
    # PyTorch before 2.1
    _form(
        rf"Tried to allocate SIZE \({_SOME}SIZE total capacity;{_SOME}SIZE free; SIZE reserved in total",
        lambda tried, total, free, own: own + tried - total,
    ),
    # XLA
    _form(
        r"Attempting to allocate SIZE\. That was not possible\. There are SIZE free", lambda tried, free: tried - free
    ),
    # vLLM
    _form(
        r"SIZE KV cache is needed, which is larger than the available KV cache memory \(SIZE\)",
        lambda needed, had: needed - had,
    ),
]


def short_gib(text: str) -> float:
    """The largest shortage that any message in a text reports, in GiB; 0 if none does."""
    found = [0.0]
    for pattern, short in _FORMS:
        for match in pattern.finditer(text):
            parts = match.groups()
            sizes = (None if n is None else float(n) * _GIB[u] for n, u in zip(parts[::2], parts[1::2], strict=True))
            found.append(short(*sizes))
    return max(found)


def of_run(folder: Path) -> dict[str, float]:
    """SHORT as a metric of the run in this folder, from its ranks' errors and logs; {} if no message reports it."""
    texts = [*(error.message for error in results.errors(folder)), *results.logs(folder).values()]
    short = max(map(short_gib, texts), default=0.0)
    return {SHORT: short} if short > 0 else {}
