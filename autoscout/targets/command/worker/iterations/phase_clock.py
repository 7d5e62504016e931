"""Times the phases of an RL iteration on this rank by wrapping TRL's own timers. Writes a JSON line per iteration to a
file per rank next to $AUTOSCOUT_RESULT. An iteration lasts from the start of one rollout to the start of the next, and
may have several updates.

Names of timers: trl 1.16.0, trainer/grpo_trainer.py and extras/profiling.py."""

import functools
import json
import os
import sys
import time
from pathlib import Path

PHASES = ("rollout", "reward", "logprobs", "weights", "wait", "other", "update")
_PREPARING, _TRAINING, _SCORES = "_prepare_inputs", "compute_loss", "_get_per_token_logps_and_entropies"
_OF_TIMERS = {
    "transformers.generate": "rollout",
    "transformers.generate_batch": "rollout",
    "vLLM.generate": "rollout",
    "sync_weights": "weights",
    "_calculate_rewards": "reward",
    _SCORES: "logprobs",
    _PREPARING: "other",
    _TRAINING: "update",
}
_GATHERS = ("gather", "gather_object", "broadcast_object_list")


class PhaseClock:
    """Adds each timer's seconds, minus those of nested timers, to the timer's phase. The remaining time of an iteration
    counts as the phase "update"."""

    def __init__(self):
        self._open = []  # stack of [timer, phase, start in seconds, seconds of nested timers]
        self._spent = dict.fromkeys(PHASES, 0.0)
        self._began = None  # when the current iteration began
        self._generates = False
        self.told = {}  # values other than times that are written for the current iteration

    def enter(self, timer):
        around = self._open[-1][1] if self._open else "update"
        inside = any(name == _TRAINING for name, *_ in self._open)
        phase = "update" if inside else _OF_TIMERS.get(timer, around)
        if phase in ("rollout", "weights") and not self._generates:
            self._generates = True
            self._over([start for name, _, start, _ in self._open if name == _PREPARING][-1:])
        self._open.append([timer, phase, time.perf_counter(), 0.0])

    def leave(self):
        _, phase, start, inside = self._open.pop()
        if phase not in ("update", "wait"):
            _settled()
        took = time.perf_counter() - start
        self._spent[phase] += took - inside
        if self._open:
            self._open[-1][3] += took
        else:
            self._generates = False

    def gathering(self, gather):
        """Returns `gather` timed as the phase "wait", because a rank waits in this collective operation for the slowest
        rank."""

        @functools.wraps(gather)
        def timed(*given, **named):
            if not self._open or self._open[-1][1] == "update":
                return gather(*given, **named)
            self._open.append(["", "wait", time.perf_counter(), 0.0])
            try:
                found = gather(*given, **named)
                _settled()
                return found
            finally:
                self.leave()

        return timed

    def _over(self, at):
        """Ends an iteration. `at`: [time at which batch preparation for the next iteration began]; [] if unknown."""
        if not at:
            return
        if self._began is not None:
            whole = at[0] - self._began
            spent = {**self._spent, "update": 0.0}
            spent["update"] = max(0.0, whole - sum(spent.values()))
            _write({"step_time_s": whole, **{f"{name}_s": value for name, value in spent.items()}, **self._of(whole)})
        self._began, self._spent = at[0], dict.fromkeys(PHASES, 0.0)

    def _of(self, whole):
        told = dict(self.told)
        torch = sys.modules.get("torch")
        if torch is not None and torch.cuda.is_initialized():
            told["peak_memory_gib"] = torch.cuda.max_memory_allocated() / 2**30
        return {**told, "samples_per_s": told["samples"] / whole} if "samples" in told else told


def _settled():
    """Waits for the GPU's running kernels, whose time belongs to the current phase."""
    torch = sys.modules.get("torch")
    if torch is not None and torch.cuda.is_initialized():
        torch.cuda.synchronize()


def _write(line):
    result = os.environ.get("AUTOSCOUT_RESULT")
    if result:
        path = Path(result).with_name(f"iterations-{os.environ.get('RANK', '0')}.jsonl")
        with path.open("a") as file:
            file.write(json.dumps(line) + "\n")


def of_trl(module):
    """Wraps the timers of the trainer in a TRL module that was just imported."""
    clock, trainer = PhaseClock(), module.GRPOTrainer
    timer = getattr(sys.modules["trl.extras.profiling"], "ProfilingContext", None)
    if timer is None:
        raise RuntimeError("AutoScout times the iterations of TRL 0.29 and newer only; this version is older")
    begin, end = timer.__enter__, timer.__exit__

    def entered(self):
        clock.enter(self.name.partition(".")[2])
        return begin(self)

    def left(self, *raised):
        clock.leave()
        return end(self, *raised)

    timer.__enter__, timer.__exit__ = entered, left
    prepare = trainer._prepare_inputs

    @functools.wraps(prepare)
    def prepared(self, batch):
        arguments = self.args
        updates = arguments.steps_per_generation * self.num_iterations / arguments.gradient_accumulation_steps
        passes, samples = self.num_iterations, arguments.generation_batch_size
        clock.told = {"samples": samples, "passes": passes, "lag_updates": max(0.0, updates - 1)}
        return prepare(self, batch)

    trainer._prepare_inputs = prepared
    accelerator = sys.modules["accelerate"].Accelerator
    accelerator.gather = clock.gathering(accelerator.gather)
    for place in (module, sys.modules.get("trl.generation.vllm_generation")):
        for name in _GATHERS:
            if hasattr(place, name):
                setattr(place, name, clock.gathering(getattr(place, name)))
