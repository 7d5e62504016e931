"""A training script's shadow held against a real run of it on CPU ranks: bytes that torch's allocator gave out, as its
profiler saw them over the second step (the table of docs/shadow.md).

    PYTHONPATH=. python tests/tools/script_shadow_accuracy.py
"""

import os
import subprocess
import sys
import tempfile
from pathlib import Path

from autoscout.running import processes
from autoscout.running.shadow_process import said
from autoscout.simulate.shadow.traced import GIB
from autoscout.targets.command.own_shadow import SCRIPT
from tui.text import table

_WORLD = 2
# As any script, but for what looks at it: the highest sum of all allocations and frees of rank 0 while step 2 ran.
_LOOK = """
import atexit, os, torch
from torch.optim.optimizer import register_optimizer_step_post_hook
from torch.profiler import ProfilerActivity, profile

class Look:
    steps, begun, before = 0, None, 0

def stepped(optimizer, *_):
    Look.steps += 1
    if Look.steps == 1:
        Look.begun = profile(activities=[ProfilerActivity.CPU], profile_memory=True)
        Look.begun.__enter__()
    elif Look.steps == 2:
        Look.begun.__exit__(None, None, None)
        now = most = 0
        for event in Look.begun.profiler.kineto_results.events():
            if event.name() == "[memory]":
                now += event.nbytes()
                most = max(most, now)
        if os.environ["RANK"] == "0":
            print("MOST", most, flush=True)
        os._exit(0)

register_optimizer_step_post_hook(stepped)
"""
CASES = {
    "DDP": "ddp.py --width 512 --layers 4 --length 256 --micro-batch 4 --global-batch 8",
    "DDP, recomputed": "ddp.py --width 512 --layers 4 --length 256 --micro-batch 4 --global-batch 8 --checkpointing",
    "DDP, two micro batches": "ddp.py --width 512 --layers 4 --length 256 --micro-batch 2 --global-batch 8",
    "DDP, bf16 products": "ddp.py --width 512 --layers 4 --length 256 --micro-batch 4 --global-batch 8 --bf16",
}


def main() -> None:
    own = Path("fixtures/own").absolute()
    rows = []
    with tempfile.TemporaryDirectory() as place:
        asked = []
        for words in CASES.values():
            command = ["torchrun", "--nproc-per-node", str(_WORLD), *words.split()]
            asked.append({"words": command, "cwd": str(own), "rank": 0, "world": _WORLD, "a_node": 2, "gpu": False})
        answers = said(SCRIPT, asked, [sys.executable], 500.0, os.environ)
        for (name, words), answer in zip(CASES.items(), answers, strict=True):
            script, *flags = words.split()
            looked = Path(place) / script
            looked.write_text(_LOOK + (own / script).read_text())
            most = _real(looked, flags)
            assert answer is not None
            during = answer["steps"][1]
            left = answer["steps"][0]["left"]
            traced = max(during["forward_backward"], during["optimizer"]) - left
            rows.append((name, f"{most / GIB:.4f}", f"{traced / GIB:.4f}", f"{traced / most - 1:+.2%}"))
    print(table(rows, ("script", "measured GiB above what is left", "its shadow", "error")))


def _real(script: Path, flags: list[str]) -> int:
    """Bytes above what was there when the step began."""
    command = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", str(_WORLD), "--master-port"]
    done = subprocess.run(
        [*command, str(processes.free_port()), str(script), *flags], capture_output=True, text=True, timeout=500
    )
    line = next((line for line in done.stdout.splitlines() if line.startswith("MOST")), "")
    if not line:
        raise SystemExit(done.stdout + done.stderr)
    return int(line.split()[1])


if __name__ == "__main__":
    main()
