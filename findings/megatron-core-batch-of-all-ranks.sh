#!/bin/sh
# megatron-core 0.18.2 (and 0.18.0, 0.19.0, 0.19.2): get_batch_on_this_cp_rank declares
# `cp_group: Optional[ProcessGroup] = None`, "context-parallel process group used for CP partitioning". Left out, it is
# not the context-parallel group, as up to 0.17.1, but all ranks of the job: without any context parallelism every rank
# is given another part of its own sequence, and nothing is said. Seen on 2 CPU ranks with torch 2.13.0.
#
#     sh megatron-core-batch-of-all-ranks.sh        needs a Python 3.11 with pip; exits non-zero if that has changed
set -eu
PYTHON=${PYTHON:-python3.11}
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
"$PYTHON" -m venv "$folder/env"
"$folder/env/bin/python" -m pip install --quiet torch==2.13.0 triton numpy packaging
for version in 0.17.1 0.18.2; do # these wheels ask for Python 3.12, and what is used here runs on 3.11
    "$folder/env/bin/python" -m pip install --quiet --no-deps --ignore-requires-python --only-binary :all: --python-version 3.12 \
        --implementation cp --platform manylinux_2_28_x86_64 --platform manylinux_2_24_x86_64 \
        --platform manylinux2014_x86_64 --target "$folder/$version" "megatron-core==$version"
done
cat > "$folder/part.py" <<'PY'
import sys

import torch
from megatron.core import parallel_state
from megatron.core.utils import get_batch_on_this_cp_rank

torch.distributed.init_process_group("gloo")
parallel_state.initialize_model_parallel(context_parallel_size=1, create_gloo_process_groups=False)
asked = {"is_hybrid_cp": False} if sys.argv[1] == "0.18.2" else {}  # required since 0.18
batch = get_batch_on_this_cp_rank({"tokens": torch.arange(8).reshape(1, 8)}, **asked)
if torch.distributed.get_rank() == 0:
    print("context parallel size", parallel_state.get_context_parallel_world_size(), "tokens", batch["tokens"].tolist())
PY
for version in 0.17.1 0.18.2; do
    PYTHONPATH="$folder/$version" CUDA_VISIBLE_DEVICES= "$folder/env/bin/python" -W ignore -m torch.distributed.run \
        --nproc-per-node 2 "$folder/part.py" "$version" 2> "$folder/$version.log" > "$folder/$version.txt" || cat "$folder/$version.log"
    echo "megatron-core $version: $(cat "$folder/$version.txt")"
done
grep -q 'size 1 tokens \[\[0, 1, 2, 3, 4, 5, 6, 7\]\]' "$folder/0.17.1.txt"
grep -q 'size 1 tokens \[\[0, 1, 6, 7\]\]' "$folder/0.18.2.txt"
