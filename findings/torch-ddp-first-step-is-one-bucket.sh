#!/usr/bin/env bash
# torch 2.13.0, DistributedDataParallel: the first step sends all gradients in one bucket, whatever bucket_cap_mb says; the
# stated buckets come with the second. With find_unused_parameters=True they are there at once. And the cap is none: a
# bucket ends when it has passed it, so that 1 makes buckets of 1.22 MiB of these layers of 0.61, as 1.2 would. The first
# step of two values of bucket_cap_mb is the same, also for who profiles or times one step.
#
# Guessed before: the same buckets in every step, one layer each. Seen (2026-11-30, Python 3.11):
#   bucket_cap_mb=1: step 1 [4.88], steps 2 and 3 [1.22, 1.22, 1.22, 1.22]; with find_unused_parameters the latter in all
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
"${PYTHON:-python3.11}" -m venv "$folder/env"
"$folder/env/bin/pip" install --quiet torch==2.13.0 numpy
cat > "$folder/run.py" <<'P'
import sys

import torch
import torch.distributed as dist
from torch.nn import Linear, Sequential
from torch.nn.parallel import DistributedDataParallel

dist.init_process_group("gloo")
found = []


def noted(sizes: list, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:
    sizes.append(round(bucket.buffer().nbytes / 2**20, 2))
    done = torch.futures.Future()
    done.set_result(bucket.buffer())
    return done


for more in ({}, {"find_unused_parameters": True}):
    model = DistributedDataParallel(Sequential(*[Linear(400, 400, bias=False) for _ in range(8)]), bucket_cap_mb=1, **more)
    sizes, steps = [], []
    model.register_comm_hook(sizes, noted)
    for _ in range(3):
        model(torch.randn(2, 400)).sum().backward()
        steps.append([*sizes])
        sizes.clear()
    found.append(steps)
    if dist.get_rank() == 0:
        print(f"torch {torch.__version__}, bucket_cap_mb=1 {more or ''}: MiB by step {steps}", flush=True)
dist.barrier()
dist.destroy_process_group()
sys.exit(found != [[[4.88], [1.22] * 4, [1.22] * 4], [[1.22] * 4] * 3])
P
export CUDA_VISIBLE_DEVICES= OMP_NUM_THREADS=1
"$folder/env/bin/torchrun" --standalone --nproc-per-node 2 "$folder/run.py" 2> "$folder/log" || { tail -5 "$folder/log"; exit 1; }
