"""How fast this rank's device is by itself: a fixed piece of arithmetic, the same on all, without any communication.

Ranks wait for each other in every iteration, so that their step times are those of the slowest. What tells a device
that is throttled, or whose processor others use, from its peers is what it does without them."""

import time
from typing import Any

_SIDE = {"cpu": 192, "cuda": 2048}  # of square matrices: 24 MiB on a GPU
_TIMES = {"cpu": 8, "cuda": 32}  # some milliseconds


class Alone:
    def __init__(self, device: Any) -> None:
        import torch

        kind = "cuda" if device.type == "cuda" else "cpu"
        self._times, self._device = _TIMES[kind], device
        dtype = torch.bfloat16 if kind == "cuda" else torch.float32
        self._matrix = torch.full((_SIDE[kind], _SIDE[kind]), 1 / _SIDE[kind], device=device, dtype=dtype)

    def seconds(self) -> float:
        """Of this time; the processor's as much as the clock's, so what others take of it counts."""
        import torch

        self._finish()
        began = time.perf_counter()
        product = self._matrix
        with torch.no_grad():
            for _ in range(self._times):
                product = product @ self._matrix
        self._finish()
        return time.perf_counter() - began

    def _finish(self) -> None:
        if self._device.type == "cuda":
            import torch

            torch.cuda.synchronize(self._device)
