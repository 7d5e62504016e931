"""Measures the speed of this rank's device by a fixed computation that is equal on all ranks and has no communication.
In training, ranks wait for each other in each iteration, so their step times are equal. This measurement shows which
device is throttled or shared."""

import time
from typing import Any

_SIDE = {"cpu": 192, "cuda": 2048}  # side of the square matrices; on a GPU, three of 8 MiB each exist at once
_TIMES = {"cpu": 8, "cuda": 32}  # number of matrix products, which take a few milliseconds


class Alone:
    def __init__(self, device: Any) -> None:
        import torch

        kind = "cuda" if device.type == "cuda" else "cpu"
        self._times, self._device = _TIMES[kind], device
        dtype = torch.bfloat16 if kind == "cuda" else torch.float32
        self._matrix = torch.full((_SIDE[kind], _SIDE[kind]), 1 / _SIDE[kind], device=device, dtype=dtype)

    def seconds(self) -> float:
        """Returns the wall-clock seconds of the computation, which include time that other processes use the device."""
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
