"""The parts of a step on this rank: marks between them, read when the step is over. On a GPU a mark is an event of the
stream, so nothing waits for it.
"""

import time
from collections.abc import Callable
from typing import Any

# A part ends where the next begins. In "gradients" a step waits for the exchange between replicas that nothing hides.
PARTS = ("forward_backward_s", "gradients_s", "optimizer_s")
_marks: list[Any] = []


def begin(device: Any) -> None:
    _marks.clear()
    _mark(device.type == "cuda")


def _mark(cuda: bool) -> None:
    if cuda:
        import torch

        _marks.append(torch.cuda.Event(enable_timing=True))
        _marks[-1].record()
    else:
        _marks.append(time.perf_counter())


def mark() -> None:
    """One part is over. Outside a step, which `begin` begins, nothing is marked."""
    if _marks:
        _mark(not isinstance(_marks[0], float))


def around(finalize: Callable[..., Any]) -> Callable[..., Any]:
    """Megatron's end of a schedule, which waits for the gradients: the optimizer's turn is next."""

    def timed(*given: Any, **named: Any) -> Any:
        mark()
        found = finalize(*given, **named)
        mark()
        return found

    return timed


def seconds() -> dict[str, float]:
    """Of the parts, once the device has finished; {} where the schedule does not end as Megatron's does."""
    marks = _marks.copy()
    _marks.clear()
    if len(marks) != len(PARTS) + 1:
        return {}
    between = zip(PARTS, marks[:-1], marks[1:], strict=True)
    return {part: b - a if isinstance(a, float) else a.elapsed_time(b) / 1000 for part, a, b in between}
