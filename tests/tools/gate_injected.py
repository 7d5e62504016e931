"""Runs gates of real CPU jobs that are slowed down by a known share: docs/lab/testing.md.

PYTHONPATH=. python tests/tools/gate_injected.py megatron --gates 2 --slower 0 0.01 0.03 0.05

loop: numpy, timed by CPU time, because other load on a shared machine can double wall times. ddp: fixtures/own/ddp.py
on two ranks; megatron: a tiny GPT on two ranks; vllm: a tiny Llama (`make .venv-vllm/ready`). In the last three, both
versions start through the same wrapper, which delays each optimizer step, or step of vLLM's engine, by the given share
of its duration."""

import argparse
import json
import math
import os
import subprocess
import sys
import tempfile
from pathlib import Path

from scipy.special import stdtrit

SLOWED = """
import os, sys, time
from importlib import machinery

SHARE = float(os.environ["SLOWER"])

def wait(began):
    until = time.perf_counter() + SHARE * (time.perf_counter() - began)
    while time.perf_counter() < until:
        pass

def of_torch(module):
    ended = {}
    def after(optimizer, *_):
        if 0 in ended:
            wait(ended[0])
        ended[0] = time.perf_counter()
    module.register_optimizer_step_post_hook(after)

def of_vllm(module):
    for name in ("step", "step_with_batch_queue"):
        def slowed(self, step=getattr(module.EngineCore, name)):
            began = time.perf_counter()
            found = step(self)
            wait(began)
            return found
        setattr(module.EngineCore, name, slowed)

AFTER = {"torch.optim.optimizer": of_torch, "vllm.v1.engine.core": of_vllm}

class Finder:
    @staticmethod
    def find_spec(name, path=None, target=None):
        if name not in AFTER:
            return None
        spec = machinery.PathFinder.find_spec(name, path)
        run = spec.loader.exec_module
        def exec_module(module):
            run(module)
            AFTER[name](module)
        spec.loader.exec_module = exec_module
        return spec

sys.meta_path.insert(0, Finder)
"""
LOOP = """
import sys, time
import numpy as np

rng = np.random.default_rng(0)
weights = [0.05 * rng.standard_normal((256, 256)) for _ in range(4)]
for step in range(1000):
    began = time.process_time()
    x = rng.standard_normal((512, 256))
    kept, y = [x], x
    for w in weights:
        kept.append(y := np.tanh(y @ w))
    loss, grad = float(((y - x) ** 2).mean()), 2 * (y - x) / x.size
    for w, before, after in zip(weights[::-1], kept[-2::-1], kept[:0:-1]):
        grad = grad * (1 - after**2)
        w_grad, grad = before.T @ grad, grad @ w.T
        w -= 10.0 * w_grad
    until = time.process_time() + float(sys.argv[2]) * (time.process_time() - began)
    while time.process_time() < until:
        pass
    print(f"step {step} | loss {loss:.6f} | {1000 * (time.process_time() - began):.3f} ms", flush=True)
"""
LOOP_JOB = """
name = "injected"
target = "command"
[cluster]
nodes = [{ device = "cpu", count = 1 }]
[objective]
minimize = "step_time_s"
[launch]
iterations = 40
command = "python train.py --slower 0.0"
environment = { OMP_NUM_THREADS = "1", OPENBLAS_NUM_THREADS = "1" }
[launch.metrics]
step_time_ms = 'loss [\\d.]+ \\| ([\\d.]+) ms'
loss = 'loss ([\\d.]+)'
[space]
knob = [{ name = "slower", values = [0.0, 0.01, 0.03, 0.05], sets = "--slower" }]
"""
# kind → (job, replacements in it, interpreter). Runs get more iterations, to outweigh their start.
JOBS = {
    "ddp": ("fixtures/own/ddp.toml", {"iterations = 5": "iterations = 40", "ddp.py": "{here}/fixtures/own/ddp.py"}, ""),
    "megatron": ("fixtures/jobs/tiny-gpt-cpu.toml", {"count = 4": "count = 2"}, sys.executable),
    "vllm": ("fixtures/jobs/tiny-llama-serve-cpu.toml", {}, ".venv-vllm/bin/python"),
}


def prepared(folder: Path, kind: str) -> None:
    """Writes job.toml and the wrapper that makes it slower."""
    if kind == "loop":
        (folder / "train.py").write_text(LOOP)
        (folder / "job.toml").write_text(LOOP_JOB)
        return
    file, changes, _ = JOBS[kind]
    text = Path(file).read_text()
    for old, new in changes.items():
        text = text.replace(old, new.format(here=Path.cwd()))
    (folder / "job.toml").write_text(text)
    (folder / "slowed").mkdir()
    (folder / "slowed" / "sitecustomize.py").write_text(SLOWED)


def side(folder: Path, kind: str, slower: float) -> str:
    if kind == "loop":
        return f"slower={slower}" if slower else ""
    variables = f"SLOWER={slower} PYTHONPATH={folder}/slowed"
    if not (python := JOBS[kind][2]):
        return f'prefix="env {variables}"'
    wrapper = folder / f"slower-{slower}" / "python"
    wrapper.parent.mkdir(exist_ok=True)
    wrapper.write_text(f'#!/bin/sh\n{variables}${{PYTHONPATH:+:$PYTHONPATH}} exec {os.path.abspath(python)} "$@"\n')
    wrapper.chmod(0o755)
    return f"python={wrapper}"


def noise(found: dict, name: str) -> float:
    """Standard deviation of one log cost, from the interval of the mean difference of the pairs."""
    part = next(each for each in found["parts"] if each["name"] == name)
    half = math.log(part["high"] / part["low"]) / 2
    return half * math.sqrt(found["pairs"] / 2) / float(stdtrit(found["pairs"] - 1, 0.975))


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("kind", choices=["loop", *JOBS])
    parser.add_argument("--gates", type=int, default=1)
    parser.add_argument("--wall", default="3m")
    parser.add_argument("--slower", type=float, nargs="+", default=[0.0, 0.01, 0.03, 0.05])
    asked = parser.parse_args()
    metric = "output_tokens_per_s" if asked.kind == "vllm" else "step_time_s"
    print("| job | slower | verdict | B is at | pairs | noise of a run | load |\n|---|---|---|---|---|---|---|")
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        prepared(folder, asked.kind)
        for slower in asked.slower * asked.gates:
            sides = [side(folder, asked.kind, share) for share in (0.0, slower)]
            words = ["gate", *sides, "--job", folder / "job.toml", "--json", "--kb", folder / "kb.duckdb"]
            done = subprocess.run(
                [sys.executable, "-m", "tui.cli", *words, "--wall", asked.wall],
                cwd=folder if asked.kind == "loop" else None,
                env={**os.environ, "TMPDIR": name, "PYTHONPATH": str(Path.cwd())},
                capture_output=True,
                text=True,
            )
            if done.returncode not in (0, 1, 4) or not done.stdout:
                raise SystemExit(done.stderr)
            found = json.loads(done.stdout)
            if not found["pairs"]:
                raise SystemExit(found["sentence"])
            ends = " to ".join(f"{100 * (found[key] - 1):+.1f} %" for key in ("low", "high") if found[key])
            row = f"{found['verdict']} | {ends} | {found['pairs']} | {noise(found, metric):.1%}"
            print(f"| {asked.kind} | {slower:.0%} | {row} | {os.getloadavg()[0]:.1f} |", flush=True)


if __name__ == "__main__":
    main()
