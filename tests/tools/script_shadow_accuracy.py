"""Compares a training script's shadow (dry run) with a real run on CPU ranks: bytes allocated by torch over two steps,
according to its profiler (the table of docs/lab/shadow.md).

    PYTHONPATH=. python tests/tools/script_shadow_accuracy.py [PYTHON that has transformers]
"""

import os
import subprocess
import sys
import tempfile
from pathlib import Path

from autoscout.running import processes
from autoscout.running.shadow_process import shadows_of
from autoscout.simulate.shadow.traced import GIB
from autoscout.targets.command.own_shadow import SCRIPT
from tui.text import table

_WORLD, _RUNS = 2, 3
# Added to the script: prints the highest sum of allocations minus frees on rank 0 in two steps.
_LOOK = """
import os, torch
from torch.optim.optimizer import register_optimizer_step_post_hook
from torch.profiler import ProfilerActivity, profile

looking, steps = profile(activities=[ProfilerActivity.CPU], profile_memory=True), []
looking.__enter__()

def stepped(optimizer, *_):
    steps.append(0)
    if len(steps) == 2:
        looking.__exit__(None, None, None)
        now = most = 0
        for event in looking.profiler.kineto_results.events():
            if event.name() == "[memory]":
                now += event.nbytes()
                most = max(most, now)
        if os.environ["RANK"] == "0":
            print("MOST", most, flush=True)
        os._exit(0)

register_optimizer_step_post_hook(stepped)
"""
_SHARDED = """
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

dist.init_process_group("gloo")
layers = [nn.TransformerEncoderLayer(512, 8, 2048, dropout=0.0, batch_first=True, norm_first=True) for _ in range(4)]
model = nn.Sequential(nn.Embedding(512, 512), *layers, nn.Linear(512, 512))
policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
for layer in model:
    fully_shard(layer, mp_policy=policy)
fully_shard(model, mp_policy=policy)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
for step in range(4):
    tokens = torch.randint(512, (4, 257))
    logits = model(tokens[:, :-1])
    nn.functional.cross_entropy(logits.float().flatten(0, 1), tokens[:, 1:].flatten()).backward()
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    optimizer.zero_grad()
"""
_HUGGING_FACE = """
import sys
import torch
import torch.distributed as dist
from torch.distributed.fsdp import fully_shard
from transformers import LlamaConfig, LlamaForCausalLM

dist.init_process_group("gloo")
shape = dict(hidden_size=256, intermediate_size=704, num_hidden_layers=4, num_attention_heads=4, num_key_value_heads=2)
model = LlamaForCausalLM(LlamaConfig(**shape, vocab_size=4096, use_cache=False, tie_word_embeddings=False))
model.train()
if sys.argv[1] == "ddp":
    model = torch.nn.parallel.DistributedDataParallel(model)
else:
    for layer in model.model.layers:
        fully_shard(layer)
    fully_shard(model)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
for step in range(4):
    tokens = torch.randint(4096, (2, 256))
    model(input_ids=tokens, labels=tokens).loss.backward()
    optimizer.step()
    optimizer.zero_grad()
"""
CASES = {
    "DDP": "ddp.py --width 512 --layers 4 --length 256 --micro-batch 4 --global-batch 8",
    "DDP, recomputed": "ddp.py --width 512 --layers 4 --length 256 --micro-batch 4 --global-batch 8 --checkpointing",
    "DDP, two micro batches": "ddp.py --width 512 --layers 4 --length 256 --micro-batch 2 --global-batch 8",
    "DDP, bf16 products": "ddp.py --width 512 --layers 4 --length 256 --micro-batch 4 --global-batch 8 --bf16",
    "FSDP2, bf16 parameters": "sharded.py",
}
WITH_TRANSFORMERS = {
    "Llama of Hugging Face, DDP": "llama.py ddp",
    "Llama of Hugging Face, FSDP2": "llama.py fsdp2",
}


def main() -> None:
    python = sys.argv[1] if len(sys.argv) > 1 else sys.executable
    cases = {**CASES, **(WITH_TRANSFORMERS if len(sys.argv) > 1 else {})}
    rows = []
    with tempfile.TemporaryDirectory() as place, tempfile.TemporaryDirectory() as plain:
        own = Path(plain)
        (own / "ddp.py").write_text(Path("fixtures/own/ddp.py").read_text())
        (own / "sharded.py").write_text(_SHARDED)
        (own / "llama.py").write_text(_HUGGING_FACE)
        asked = []
        for words in cases.values():
            command = ["torchrun", "--nproc-per-node", str(_WORLD), *words.split()]
            asked.append({"words": command, "cwd": str(own), "rank": 0, "world": _WORLD, "a_node": 2, "gpu": False})
        answers = shadows_of(SCRIPT, asked, [python], 500.0, os.environ)
        for (name, words), answer in zip(cases.items(), answers, strict=True):
            script, *flags = words.split()
            looked = Path(place) / script
            looked.write_text(_LOOK + (own / script).read_text())
            runs = sorted(_real(python, looked, flags) for _ in range(_RUNS))
            assert answer is not None
            traced = max(max(step["forward_backward"], step["optimizer"]) for step in answer["steps"])
            measured = " ".join(f"{most / GIB:.4f}" for most in runs)
            rows.append((name, measured, f"{traced / GIB:.4f}", f"{traced / runs[0] - 1:+.2%}"))
    print(table(rows, ("script", "measured GiB, three runs", "its shadow", "to the lowest")))


def _real(python: str, script: Path, flags: list[str]) -> int:
    """Peak bytes of a real run."""
    command = [python, "-m", "torch.distributed.run", "--nproc-per-node", str(_WORLD), "--master-port"]
    done = subprocess.run(
        [*command, str(processes.free_port()), str(script), *flags], capture_output=True, text=True, timeout=500
    )
    line = next((line for line in done.stdout.splitlines() if line.startswith("MOST")), "")
    if not line:
        raise SystemExit(done.stdout + done.stderr)
    return int(line.split()[1])


if __name__ == "__main__":
    main()
