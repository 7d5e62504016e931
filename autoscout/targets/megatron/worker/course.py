"""The progress of a run: warm-up until times stop decreasing, then as many iterations as a decision needs (ending.py).
All ranks decide by the same iteration times (the slowest rank's), so they all end at the same iteration."""

import math
import resource
import statistics
from collections.abc import Callable
from typing import Any

import ending
import energy

_COMPARED = 3  # iterations whose losses and gradient norms are recorded


class Course:
    def __init__(self, config: dict[str, Any], mean: Callable[[Any, Any], float]) -> None:
        """`mean`: function from (an iteration's losses, device) to the global mean loss. All ranks must call this
        function together."""
        self._config, self.mean = config, mean
        self._warmup = config["warmup"]
        self._spread = config.get("spread", 0.0)
        self.steps = 0
        self.of_experts: list[float] = []
        self._warmup_s: list[float] = []
        self._iterations_s: list[float] = []
        self._own_s: list[float] = []
        self._parts_s: list[dict[str, float]] = []
        self._alone_s: list[float] = []
        self._cpu_s: list[float] = []
        self._energy_j: list[float] = []
        self._losses: list[float] = []
        self._grad_norms: list[float] = []
        self._hopeless = ""
        self._cpu = 0.0
        self._gpu: list[str] = []  # UUID of this rank's GPU
        self._taken: float | None = None

    def on(self, device: Any, warmup: int = 0) -> None:
        """Must be called before the first iteration. `warmup`: minimum number of warm-up iterations, for example before
        CUDA graphs are captured."""
        import alone

        self._device, self._by_itself = device, alone.Alone(device)
        self._warmup = max(self._warmup, warmup)
        if device.type == "cuda":
            import torch

            self._gpu = [f"GPU-{torch.cuda.get_device_properties(device).uuid}"]

    @property
    def over(self) -> bool:
        return bool(self._hopeless) or self._enough

    @property
    def _enough(self) -> bool:
        few = ending.SEARCHED if "best_s" in self._config else ending.FEW
        config = self._config
        return ending.enough(self._iterations_s, config["iterations"], config["measure_s"], self._spread, few)

    def begin(self) -> None:
        self._cpu, self._taken = cpu_seconds(), energy.joules(self._gpu)

    def end(self, seconds: float, own: float, losses: Any, grad_norm: float, parts: dict[str, float]) -> None:
        """Records an iteration. `seconds`: time of the slowest rank. `own`: time of this rank. `parts`: part of the
        step → seconds."""
        self.steps += 1
        if len(self._losses) < _COMPARED:
            self._losses.append(self.mean(losses, self._device))
            self._grad_norms.append(float(grad_norm))
        if len(self._warmup_s) < self._warmup:
            self._warmup_s.append(seconds)
            return
        self._iterations_s.append(seconds)
        self._own_s.append(own)
        self._parts_s.append(parts)
        self._cpu_s.append(cpu_seconds() - self._cpu)
        self._alone_s.append(self._by_itself.seconds())
        now = energy.joules(self._gpu)
        self._energy_j.append(math.nan if now is None or self._taken is None else now - self._taken)
        if ending.still_warm(self._iterations_s, len(self._warmup_s), self._warmup):
            self._warmup_s.append(self._iterations_s.pop(0))
            for series in (self._own_s, self._parts_s, self._cpu_s, self._alone_s, self._energy_j):
                del series[0]
            return
        if "best_s" in self._config:
            self._hopeless = ending.hopeless(self._iterations_s, self._config["best_s"], self._spread)

    def result(self) -> dict[str, Any]:
        energy = {} if math.isnan(sum(self._energy_j)) else {"energy_j": statistics.fmean(self._energy_j)}
        return {
            **energy,
            "parts_s": {name: statistics.median(p[name] for p in self._parts_s) for name in self._parts_s[0]},
            "ended": "" if self._enough else self._hopeless,
            "warmup_s": self._warmup_s,
            "iterations_s": self._iterations_s,
            "step_time_s": statistics.median(self._own_s),
            "alone_s": statistics.fmean(self._alone_s),
            "cpu_s": statistics.fmean(self._cpu_s),
            "losses": self._losses,
            "grad_norms": self._grad_norms + self.of_experts,
        }


def cpu_seconds() -> float:
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime
