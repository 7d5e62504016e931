#!/usr/bin/env bash
# megatron-core 0.19.2 (its wheel contains megatron/training): the floating-point operations of a step, which its log's
# TFLOP/s come from, are those of full causal attention also with --window-size. With windows of 128 tokens in 16,384, a
# small model's are said to be as many as without, and its TFLOP/s are too high by what attention no longer does.
#
# Guessed before: a window's products are counted. Seen (2026-11-29, Python 3.12, torch 2.14.1):
#   full attention 16492674416640, windows of 128 tokens 16492674416640; attention is 80 % of it
set -euo pipefail
python=${PYTHON:-python3.12}
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
"$python" -m venv "$folder/env"
"$folder/env/bin/pip" install --quiet torch==2.14.1 triton numpy packaging
# --no-deps: nothing else of what the wheel asks for is called here.
"$folder/env/bin/pip" install --quiet --no-deps --only-binary :all: --python-version 3.12 \
    --implementation cp --platform manylinux_2_28_x86_64 --platform manylinux_2_24_x86_64 \
    --platform manylinux2014_x86_64 --target "$folder/engine" megatron-core==0.19.2
cat > "$folder/run.py" <<'P'
import sys
from types import SimpleNamespace

import megatron.core
from megatron.training.training import num_floating_point_operations


class Arguments(SimpleNamespace):
    def __getattr__(self, name):
        return None  # as an argument that was not given


sizes = dict(
    num_layers=4, hidden_size=256, num_attention_heads=4, num_query_groups=2, group_query_attention=True, kv_channels=64,
    ffn_hidden_size=1024, swiglu=True, seq_length=16384, padded_vocab_size=1024, multi_latent_attention=False,
    attention_output_gate=False,
)
full = num_floating_point_operations(Arguments(**sizes), 8)
windows = num_floating_point_operations(Arguments(**sizes, window_size=(127, 0)), 8)
attention = 3 * 2 * 4 * 8 * 16384**2 * 256  # forward and backward, layers, samples, causal pairs
print(f"megatron-core {megatron.core.__version__}: full {full:.0f}, windows {windows:.0f}; attention {attention / full:.0%}")
sys.exit(not (full == windows and attention / full > 0.5))
P
PYTHONPATH="$folder/engine" CUDA_VISIBLE_DEVICES= "$folder/env/bin/python" -W ignore "$folder/run.py" 2> "$folder/log" || { tail -5 "$folder/log"; exit 1; }
