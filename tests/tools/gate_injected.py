"""Gates of a real training loop that is slowed down by a known share of each step: docs/lab/testing.md.

PYTHONPATH=. python tests/tools/gate_injected.py --gates 2 --slower 0 0.01 0.03 0.05

Steps are timed by the processor's clock, since whatever else runs on a shared machine doubles those of the wall; the
loop needs numpy alone, which starts in a tenth of PyTorch's time.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

SCRIPT = """
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
JOB = """
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


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--gates", type=int, default=2)
    parser.add_argument("--wall", default="5m")
    parser.add_argument("--slower", type=float, nargs="+", default=[0.0, 0.01, 0.03, 0.05])
    asked = parser.parse_args()
    print("| slower | verdict | B is at | pairs |\n|---|---|---|---|")
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "train.py").write_text(SCRIPT)
        (Path(folder) / "job.toml").write_text(JOB)
        for _ in range(asked.gates):
            for slower in asked.slower:
                side = f"slower={slower}" if slower else ""
                words = ["gate", "", side, "--job", "job.toml", "--json", "--kb", "kb.duckdb", "--wall", asked.wall]
                done = subprocess.run(
                    [sys.executable, "-m", "tui.cli", *words],
                    cwd=folder,
                    env={**os.environ, "PYTHONPATH": str(Path.cwd()), "TMPDIR": folder},
                    capture_output=True,
                    text=True,
                )
                if done.returncode not in (0, 1, 4) or not done.stdout:
                    raise SystemExit(done.stderr)
                found = json.loads(done.stdout)
                ends = [f"{100 * (found[key] - 1):+.1f} %" for key in ("low", "high") if found[key]]
                print(f"| {slower:.0%} | {found['verdict']} | {' to '.join(ends)} | {found['pairs']} |", flush=True)


if __name__ == "__main__":
    main()
