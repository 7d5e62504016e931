"""Stands for the scripts of frameworks that read YAML: nanotron's, GPT-NeoX's, OLMo's. It refuses a step of other
samples than 16 on 4 ranks, and says a line a step as they do, the faster the larger its micro batch is.

settings_trainer.py FILE.yaml… [--a.b=value…]
"""

import sys
import time

import yaml

settings: dict = {}
for word in sys.argv[1:]:
    if word.endswith((".yaml", ".yml")):
        with open(word) as file:
            settings |= yaml.safe_load(file)
for word in sys.argv[1:]:
    if word.startswith("--") and "=" in word:
        path, _, value = word[2:].partition("=")
        inner = settings
        *keys, last = path.split(".")
        for key in keys:
            inner = inner.setdefault(key, {})
        inner[last] = yaml.safe_load(value)
if "tokens" in settings:
    layout, step = settings["parallelism"], settings["tokens"]
    micro, often, ranks = step["micro_batch_size"], step["batch_accumulation_per_replica"], layout["dp"]
    assert layout["dp"] * layout["tp"] * layout["pp"] == 4, layout
    print(" Memory usage: 9.00MiB. Peak allocated 10.00MiB. Peak reserved: 12.00MiB")
    line = "iteration: {i} / 9999 | time_per_iteration_ms: 1.2K | lm_loss: {loss:.3g} | lr: 0.1"
elif "train_micro_batch_size_per_gpu" in settings:
    micro, often = settings["train_micro_batch_size_per_gpu"], settings.get("gradient_accumulation_steps", 1)
    ranks = 4 // (settings["model_parallel_size"] * max(settings["pipe_parallel_size"], 1))
    print("after 1 iterations memory (MB) | allocated: 9.0 | max allocated: 10.0 | reserved: 12.0")
    line = " iteration {i:8d}/    9999 | elapsed time per iteration (ms): {ms:.1f} | lm_loss: {loss:.6E} |"
else:
    micro, ranks = settings["device_train_microbatch_size"], 4
    often = settings["global_train_batch_size"] // ranks // micro
    line = "[step={i}/9999,epoch=0]\n    train/CrossEntropyLoss={loss:.3f}\n    optim/total_grad_norm=1.5"
assert micro * often * ranks == 16, (micro, often, ranks)
print(f"{ranks} ranks of {micro} samples, {often} times", flush=True)
for i in range(1, 5000):
    took = 0.01 * often * (4 / ranks) ** 0.2
    time.sleep(took)
    print(line.format(i=i, loss=6 - i / 1000, ms=1000 * took), flush=True)
