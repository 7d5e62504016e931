"""Stands for GRPO with TRL: modules of TRL's names with its timers and trainer, as far as our clock reads them, and a
run that logs as Hugging Face's trainer does.

rl_trainer.py [--max_steps N] [--gradient_accumulation_steps N] [--num_iterations N]
    [--end HOW] [--reward R] [--micro_s S]
"""

import importlib.abc
import importlib.util
import os
import random
import sys
import time
import types

flags = sys.argv[1:]


def flag(name, default):
    return flags[flags.index(name) + 1] if name in flags else default


class ProfilingContext:
    def __init__(self, name):
        self.name = f"GRPOTrainer.{name}"

    def __enter__(self):
        return self

    def __exit__(self, *raised):
        return False


class Accelerator:
    def gather(self, found):
        time.sleep(0.01)
        return found


class GRPOTrainer:
    def __init__(self):
        micro, accumulation = (
            int(flag("--per_device_train_batch_size", 2)),
            int(flag("--gradient_accumulation_steps", 1)),
        )
        self.num_iterations = int(flag("--num_iterations", 1))
        self.args = types.SimpleNamespace(
            steps_per_generation=accumulation,
            gradient_accumulation_steps=accumulation,
            generation_batch_size=micro * accumulation,
        )
        self.accelerator, self.step = Accelerator(), 0

    def _prepare_inputs(self, batch):
        with ProfilingContext("_prepare_inputs"):
            if self.step % (self.args.steps_per_generation * self.num_iterations) == 0:
                with ProfilingContext("transformers.generate"):
                    time.sleep(0.08)
                self.accelerator.gather(1)
                with ProfilingContext("_get_per_token_logps_and_entropies"):
                    time.sleep(0.02)
                with ProfilingContext("_calculate_rewards"), ProfilingContext("length"):
                    reward(self.step)
        self.step += 1
        return batch

    def compute_loss(self):
        with ProfilingContext("compute_loss"), ProfilingContext("_get_per_token_logps_and_entropies"):
            time.sleep(0.04 / self.args.gradient_accumulation_steps + float(flag("--micro_s", 0)))


def reward(step):
    how = flag("--end", "well")
    if step >= 3 and how == "reward":
        raise ZeroDivisionError("the reward of an empty answer")
    if step >= 3 and how == "engine":
        print("vllm.v1.engine.exceptions.EngineDeadError: EngineCore encountered an issue.", flush=True)
        sys.exit(1)
    if step >= 3 and how == "endless":
        time.sleep(600)


class Loader(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Finds the modules of TRL and accelerate here."""

    def find_spec(self, fullname, path=None, target=None):
        ours = fullname.partition(".")[0] in ("trl", "accelerate")
        return importlib.util.spec_from_loader(fullname, self, is_package=True) if ours else None

    def exec_module(self, module):
        module.ProfilingContext, module.GRPOTrainer, module.Accelerator = ProfilingContext, GRPOTrainer, Accelerator


sys.meta_path.append(Loader())
__import__("accelerate"), __import__("trl.extras.profiling"), __import__("trl.trainer.grpo_trainer")
trainer, drawn = GRPOTrainer(), random.Random(int(flag("--seed", 0)))
for _ in range(int(flag("--max_steps", 30))):
    for _micro in range(trainer.args.gradient_accumulation_steps):
        trainer._prepare_inputs({})
        trainer.compute_loss()
    told = {"loss": "0.0123", "grad_norm": "0.5", "learning_rate": "1e-06", "reward": flag("--reward", "0.5")}
    print({**told, "reward_std": "0.1"}, os.getpid(), flush=True)
