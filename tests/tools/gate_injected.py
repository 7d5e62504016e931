"""Runs gates of real CPU jobs that are slowed down by a known share: docs/lab/testing.md.

PYTHONPATH=. python tests/tools/gate_injected.py loop --gates 2 --slower 0 0.01 0.03 0.05
PYTHONPATH=. python tests/tools/gate_injected.py megatron --rounds 20 --slower 0 0.03 0.05 --keep FILE

loop: numpy, timed by CPU time, because other load on a shared machine can double wall times. ddp: fixtures/own/ddp.py
on one rank; megatron: a tiny GPT on one rank; vllm: a tiny Llama (`make .venv-vllm/ready`). In the last three, both
versions start through the same wrapper, which delays each optimizer step, or step of vLLM's engine, by the given share
of its duration.

--rounds: measures so many pairs of A and each B at the same time (gate --at-once), by the code that gates measure with.
Gates are then decided from these pairs by the code that decides. One gate starts at each pair; the first pair follows
the last. --keep: adds the pairs to a file, and also decides gates of those that are already there."""

import argparse
import contextlib
import json
import math
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from scipy.special import stdtrit

from autoscout.job.objective import cost_of_run
from autoscout.targets.jobs import load_job
from autoscout.tuning import gate, sides
from autoscout.tuning.loop import Stop
from tests.tools.gate_rates import decided

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
    "ddp": (
        "fixtures/own/ddp.toml",
        {
            "iterations = 5": "iterations = 20",
            "count = 2": "count = 1",
            "torchrun --nproc-per-node {gpus} --master-port {port} ddp.py": "env MASTER_PORT={{port}} python "
            "{here}/fixtures/own/ddp.py",
            "[launch]\n": '[launch]\nenvironment = {{ RANK = "0", LOCAL_RANK = "0", WORLD_SIZE = "1", '
            'MASTER_ADDR = "127.0.0.1" }}\n',
        },
        "",
    ),
    "megatron": (
        "fixtures/jobs/tiny-gpt-cpu.toml",
        {"count = 4": "count = 1", "iterations = 5": "iterations = 10"},
        sys.executable,
    ),
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
        assert old in text, old
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


def recorded(folder: Path, kind: str, share: float, rounds: int) -> list[tuple[float, float]]:
    """Costs of pairs that run at the same time. `share`: by how much B is slower."""
    job, kb, done = load_job(str(folder / "job.toml")), folder / "kb.duckdb", list[tuple[float, float]]()
    with contextlib.ExitStack() as held:
        stop = Stop()
        a, b = (
            gate.opened(held, held.enter_context(sides.side(side(folder, kind, each), job, kb)), kb, print, stop)
            for each in (0.0, share)
        )
        runs = gate.at_once(held, a, b, lambda _: None, stop)
        for number in range(-1, rounds):  # the first pair warms files and caches up
            found = [cost_of_run(job.objective, result) for _, result in runs.pair(number)]
            if None in found:
                raise SystemExit(f"{a.done[-1].evidence or b.done[-1].evidence}")
            if number >= 0:
                done.append((found[0], found[1]))
            print(number, *found, file=sys.stderr, flush=True)
    return done


def rates(kind: str, share: float, done: Sequence[tuple[float, float]]) -> None:
    limit, count = min(gate.LIMIT, len(done)), len(done)
    logs = [math.log(b / a) for a, b in done]
    gates = [decided([done[(begin + n) % count] for n in range(limit)], gate.MARGIN, limit) for begin in range(count)]
    worse = [g for g in gates if g.kind == "worse"]
    cells = [len(worse), sum(g.pairs <= 20 for g in worse), sum(g.kind == "no worse" for g in gates)]
    print(
        f"| {kind} | {share:.0%} | {math.exp(statistics.median(logs)) - 1:+.1%} | {statistics.stdev(logs):.1%} "
        f"| {count} | {' | '.join(f'{n / count:.0%}' for n in cells)} "
        f"| {statistics.mean(g.pairs for g in gates):.1f} |",
        flush=True,
    )


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("kind", choices=["loop", *JOBS])
    parser.add_argument("--gates", type=int, default=1)
    parser.add_argument("--wall", default="3m")
    parser.add_argument("--slower", type=float, nargs="+", default=[0.0, 0.01, 0.03, 0.05])
    parser.add_argument("--rounds", type=int, default=0)
    parser.add_argument("--keep", type=Path)
    asked = parser.parse_args()
    if asked.rounds:
        print("| job | slower | measured | noise of a pair | pairs | worse | in 20 pairs | no worse | pairs a gate |")
        print("|---|---|---|---|---|---|---|---|---|")
        known = json.loads(asked.keep.read_text()) if asked.keep and asked.keep.exists() else {}
        for share in asked.slower:
            with tempfile.TemporaryDirectory() as name:
                prepared(Path(name), asked.kind)
                done = known.setdefault(f"{asked.kind} {share}", [])
                done += recorded(Path(name), asked.kind, share, asked.rounds)
            rates(asked.kind, share, done)
            if asked.keep:
                asked.keep.write_text(json.dumps(known))
        return
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
