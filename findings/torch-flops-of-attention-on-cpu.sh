#!/usr/bin/env bash
# torch 2.13.0, FlopCounterMode on CPUs: scaled_dot_product_attention has no floating-point operation, forward or backward,
# with the kernel that it takes by default. The same call forced to the plain kernel counts 4 B H S² D, and three times that
# with its backward pass. Nothing warns. Who counts a model's work without a GPU loses all of attention's products.
#
# Guessed before: 4 B H S² D with either kernel, as on GPUs. Seen (2026-11-29, Python 3.11, Linux):
#   default kernel: forward 0, with backward 0; plain kernel: forward 16777216, with backward 50331648
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
"${PYTHON:-python3.11}" -m venv "$folder/env"
"$folder/env/bin/pip" install --quiet torch==2.13.0 numpy
cat > "$folder/run.py" <<'P'
import contextlib
import sys

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention
from torch.utils.flop_counter import FlopCounterMode

batch, heads, length, width = 2, 4, 128, 32
found = {}
for name, kernel in (("default", contextlib.nullcontext()), ("plain", sdpa_kernel(SDPBackend.MATH))):
    given = [torch.randn(batch, heads, length, width, requires_grad=True) for _ in range(3)]
    with kernel, FlopCounterMode(display=False) as counted:
        out = scaled_dot_product_attention(*given)
        forward = counted.get_total_flops()
        out.sum().backward()
    found[name] = (forward, counted.get_total_flops())
    print(f"torch {torch.__version__}, {name} kernel: forward {found[name][0]}, with backward {found[name][1]}")
products = 4 * batch * heads * length * length * width
sys.exit(found != {"default": (0, 0), "plain": (products, 3 * products)})
P
CUDA_VISIBLE_DEVICES= "$folder/env/bin/python" -W ignore "$folder/run.py"
