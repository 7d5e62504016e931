#!/usr/bin/env bash
# accelerate 1.15.0: `accelerate launch --cpu --num_processes 2 train.py` starts one process, without RANK or WORLD_SIZE,
# on one thread (OMP_NUM_THREADS=1), and warns of nothing but defaults. The former --multi_cpu is gone; several CPU ranks
# need torchrun. The same script under torchrun with two ranks knows of two.
#
# Guessed before: two processes over gloo. Seen (2026-11-29, Python 3.11):
#   accelerate launch: 1 process, num_processes 1, no RANK, OMP_NUM_THREADS 1; torchrun: 2 processes, num_processes 2
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
"${PYTHON:-python3.11}" -m venv "$folder/env"
"$folder/env/bin/pip" install --quiet torch==2.13.0 numpy
"$folder/env/bin/pip" install --quiet accelerate==1.15.0
cat > "$folder/train.py" <<'P'
import os

from accelerate import PartialState

rank, state = os.environ.get("RANK"), PartialState(cpu=True)
print(f"process: num_processes {state.num_processes}, RANK {rank}, OMP_NUM_THREADS {os.environ.get('OMP_NUM_THREADS')}")
P
cd "$folder"
export HF_HOME="$folder/home" CUDA_VISIBLE_DEVICES=
env/bin/accelerate launch --cpu --num_processes 2 train.py > a.txt 2> a.log || { tail -5 a.log; exit 1; }
env/bin/torchrun --nproc-per-node 2 train.py > b.txt 2> b.log || { tail -5 b.log; exit 1; }
echo "accelerate $(env/bin/python -c 'import accelerate; print(accelerate.__version__)'):"
sed 's/^/  accelerate launch: /' a.txt
sed 's/^/  torchrun: /' b.txt
test "$(grep -c ^process a.txt)" = 1 && grep -q 'num_processes 1, RANK None, OMP_NUM_THREADS 1' a.txt
test "$(grep -c 'num_processes 2' b.txt)" = 2
