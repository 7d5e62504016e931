"""Times the parts of a step on this rank by time marks, which are read after the step. On a GPU, a mark is a CUDA event
on the stream, so that timing does not block."""

import time
from collections.abc import Callable
from typing import Any

# A part ends where the next one begins. "gradients" is the time in which a step waits for the gradient exchange between
# replicas. It does not include the part of the exchange that overlaps with computation.
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
    """Marks the end of a part. Has no effect outside of a step (which starts with `begin`)."""
    if _marks:
        _mark(not isinstance(_marks[0], float))


def around(finalize: Callable[..., Any]) -> Callable[..., Any]:
    """Returns `finalize` (by which Megatron's schedule waits for gradients) with marks before and after it."""

    def timed(*given: Any, **named: Any) -> Any:
        mark()
        found = finalize(*given, **named)
        mark()
        return found

    return timed


def seconds() -> dict[str, float]:
    """Returns part of the step → seconds, after the device has finished; {} if the schedule does not end like
    Megatron's."""
    marks = _marks.copy()
    _marks.clear()
    if len(marks) != len(PARTS) + 1:
        return {}
    between = zip(PARTS, marks[:-1], marks[1:], strict=True)
    return {part: b - a if isinstance(a, float) else a.elapsed_time(b) / 1000 for part, a, b in between}
