"""Gates of a real training script that is slowed down by a known share of each step: docs/lab/testing.md.

Steps are timed by the processor's clock, since whatever else runs on a shared machine doubles those of the wall.

PYTHONPATH=. python tests/tools/gate_injected.py --gates 2 --slower 0 0.01 0.03 0.05
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

SCRIPT = Path("fixtures/own/ddp.py")
CHANGES = {
    "parser = arg": 'ALONE = {"backend": "gloo", "store": dist.HashStore(), "rank": 0, "world_size": 1}\nparser = arg',
    "args = parser": 'parser.add_argument("--slower", type=float)\nargs = parser',
    'init_process_group("nccl" if on_gpus else "gloo")': "init_process_group(**ALONE)",
    "perf_counter": "process_time",
    "    mean = total.item() / world  # waits for the device\n": """    mean = total.item() / world
    until = time.process_time() + args.slower * (time.process_time() - started)
    while time.process_time() < until:
        pass
""",
}
JOB = """
name = "injected"
target = "command"
[cluster]
nodes = [{ device = "cpu", count = 1 }]
[objective]
minimize = "step_time_s"
[launch]
iterations = 20
command = "python ddp.py --micro-batch 16 --slower 0.0"
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
    text = SCRIPT.read_text()
    for old, new in CHANGES.items():
        text = text.replace(old, new)
    print("| slower | verdict | B is at | pairs |\n|---|---|---|---|")
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "ddp.py").write_text(text)
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
                ends = [found[key] for key in ("ratio", "low", "high")]
                at = " to ".join(f"{100 * (end - 1):+.1f} %" for end in ends[1:] if end)
                print(f"| {slower:.0%} | {found['verdict']} | {at} | {found['pairs']} |", flush=True)


if __name__ == "__main__":
    main()
