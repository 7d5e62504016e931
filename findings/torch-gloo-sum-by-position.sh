#!/usr/bin/env bash
# gloo adds 16-bit numbers in 16 bits, each part of a tensor in another order of the ranks: four ranks that hold the same
# number everywhere get different sums by position. 256 + 1 + 1 + 1 is 260 in some elements of one tensor and 256 in others
# (259 is exact; bfloat16 has 258 and 260 next to it). So a gradient in bfloat16 depends on where it lies in its bucket,
# and another bucket size changes the numbers that a job computes. In float32 all elements are 259.
#
# Guessed before: one sum of the same four numbers in all elements. Seen (2026-11-29, torch 2.13.0, Python 3.11, CPU):
#   bfloat16, 4 ranks: [256.0, 260.0]    float16, 2048 + 1 + 1 + 1: [2048.0, 2052.0]    float32: [259.0]
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
"${PYTHON:-python3.11}" -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet torch==2.13.0 numpy
cat > "$folder/run.py" <<'P'
import sys

import torch
import torch.distributed as dist

dist.init_process_group("gloo")
found = []
for dtype, first in ((torch.bfloat16, 256.0), (torch.float16, 2048.0), (torch.float32, 256.0)):
    held = torch.full((16,), 1.0 if dist.get_rank() else first, dtype=dtype)
    dist.all_reduce(held)
    found.append(sorted(set(held.tolist())))
    if dist.get_rank() == 0:
        print(f"torch {torch.__version__}, gloo, {dist.get_world_size()} ranks, {dtype}: sums {found[-1]}")
dist.barrier()
dist.destroy_process_group()
sys.exit(found != [[256.0, 260.0], [2048.0, 2052.0], [259.0]])
P
OMP_NUM_THREADS=1 "$folder/venv/bin/torchrun" --standalone --nproc-per-node 4 "$folder/run.py"
