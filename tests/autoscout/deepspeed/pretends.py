"""A script that says what DeepSpeed's engine says, without DeepSpeed: its config, and a line a step.

Its speed follows from the config, as on some machine: larger micro batches and higher stages are as they are there.
"""

import argparse
import base64
import json
import os
import sys
import time
from pathlib import Path
from typing import Any

parser = argparse.ArgumentParser()
parser.add_argument("--deepspeed", nargs="?", const="", default="")
parser.add_argument("--deepspeed_config", default="")
parser.add_argument("--per_device_train_batch_size", type=int, default=0)
parser.add_argument("--ignores", action="store_true")
parser.add_argument("--fails-at-stage", type=int, default=-1)
parser.add_argument("--steps", type=int, default=60)
args, _ = parser.parse_known_args()
if os.environ.get("RANK", "0") != "0":
    sys.exit(0)
given = args.deepspeed_config or args.deepspeed
text = Path(given).read_text() if os.path.exists(given) else base64.urlsafe_b64decode(given).decode()
config: dict[str, Any] = (
    {"train_batch_size": 16, "train_micro_batch_size_per_gpu": 1} if args.ignores else json.loads(text)
)
zero: dict[str, Any] = config.get("zero_optimization", {})
stage, micro = zero.get("stage", 0), config.get("train_micro_batch_size_per_gpu", 1)
print("[2026-11-23 02:06:17,581] [INFO] [config.py:664:print_user_config]   json = " + json.dumps(config, indent=4))
if stage == args.fails_at_stage:
    sys.exit("torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.")
print("0 errors so far, error_if_nonfinite=False", file=sys.stderr)
batch = config.get("train_batch_size", 16)
info: dict[str, Any] = config.get("autotuning", {})
if info.get("model_info", {}).get("profile"):
    found = {"num_params": 1000, "trainable_num_params": 1000, "activation_mem_per_gpu": 64, "rank": 0}
    Path(info["model_info_path"]).write_text(json.dumps(found))
    sys.exit(0)
bucket = 1.05 if zero.get("reduce_bucket_size") == 50000 else 1.0
seconds = 0.004 * (1 + 0.3 * stage + 1 / micro) * bucket
for step in range(1, args.steps):
    time.sleep(0.004)
    speed = batch / seconds * (1 + 0.001 * (step % 3))
    print(f"loss: {8 - step / 100:.4f}", flush=True)
    print(f"global_step={step}, CurrSamplesPerSec={speed}, MemAllocated=0.5GB, MaxMemAllocated=0.52GB", flush=True)
if info.get("metric_path"):
    found = {"latency": seconds, "throughput": batch / seconds, "FLOPS_per_gpu": 1e9 / seconds}
    Path(info["metric_path"]).write_text(json.dumps(found))
