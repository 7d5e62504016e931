#!/usr/bin/env bash
# torch 2.13.0, gloo: all_reduce with MAX or MIN keeps a NaN or loses it by the rank that has it. Two ranks, one with NaN
# and one with 1.0: where rank 0 has the NaN, both get NaN; where rank 1 has it, both get 1.0. torch.max of the two values
# is NaN in either order. A check of "any loss that is no number" by the maximum over ranks sees half of them.
#
# Expected before: NaN on both, as torch.max. Seen (2026-11-29, Python 3.11):
#   MAX, NaN on rank 0: nan, nan; on rank 1: 1.0, 1.0; MIN the same; SUM: nan wherever it is
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
"${PYTHON:-python3.11}" -m venv "$folder/env"
"$folder/env/bin/pip" install --quiet torch==2.13.0 numpy
cat > "$folder/run.py" <<'P'
import math
import sys

import torch
import torch.distributed as dist

dist.init_process_group("gloo")
found = {}
for name in ("MAX", "MIN", "SUM"):
    for owner in (0, 1):
        value = torch.tensor([math.nan if dist.get_rank() == owner else 1.0])
        dist.all_reduce(value, op=getattr(dist.ReduceOp, name))
        both = [torch.zeros(1) for _ in range(2)]
        dist.all_gather(both, value)
        found[name, owner] = [each.item() for each in both]
        if dist.get_rank() == 0:
            print(f"torch {torch.__version__}, {name}, NaN on rank {owner}: {found[name, owner]}", flush=True)
lost = [key for key, values in found.items() if not all(math.isnan(value) for value in values)]
dist.destroy_process_group()
sys.exit(lost != [("MAX", 1), ("MIN", 1)] or not torch.max(torch.tensor([1.0, math.nan])).isnan())
P
CUDA_VISIBLE_DEVICES= "$folder/env/bin/torchrun" --standalone --nproc-per-node 2 "$folder/run.py" 2> "$folder/log" || { tail -5 "$folder/log"; exit 1; }
