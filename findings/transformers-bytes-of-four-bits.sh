#!/usr/bin/env bash
# transformers 5.23.0 with bitsandbytes 0.50.2: get_memory_footprint() of a model in 4 bits leaves the scales out, a float32
# for 64 weights, an eighth of what it counts for them. bnb_4bit_use_double_quant, whose only purpose is to make them
# smaller, so changes nothing of it: two settings that differ by 8 % of a model's memory have the same footprint.
#
# Guessed before: the scales are counted. Seen (2026-11-30, Python 3.11, CPU):
#   footprint 2894080 with and without double quantization; scales 327680 bytes without, 83200 with
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
"${PYTHON:-python3.11}" -m venv "$folder/env"
"$folder/env/bin/pip" install --quiet torch==2.13.0
"$folder/env/bin/pip" install --quiet transformers==5.23.0 accelerate==1.15.0 bitsandbytes==0.50.2
cat > "$folder/run.py" <<'P'
import sys

import torch
import transformers
from transformers import BitsAndBytesConfig, LlamaConfig, LlamaForCausalLM

sizes = dict(vocab_size=64, hidden_size=512, intermediate_size=1024, num_hidden_layers=2, num_attention_heads=8)
LlamaForCausalLM(LlamaConfig(**sizes)).save_pretrained(sys.argv[1])
found = []
for twice in (False, True):
    asked = BitsAndBytesConfig(load_in_4bit=True, bnb_4bit_use_double_quant=twice, bnb_4bit_compute_dtype=torch.bfloat16)
    model = LlamaForCausalLM.from_pretrained(sys.argv[1], quantization_config=asked, device_map="cpu")
    states = [p.quant_state for p in model.parameters() if getattr(p, "quant_state", None) is not None]
    scales = sum(s.absmax.nbytes + (s.state2.absmax.nbytes if s.nested else 0) for s in states)
    found.append((model.get_memory_footprint(), scales))
    print(f"transformers {transformers.__version__}, double quantization {twice}: footprint {found[-1][0]}, scales {scales} bytes")
(plain, large), (double, small) = found
sys.exit(not (plain == double and large > 3 * small > 0))
P
export CUDA_VISIBLE_DEVICES= HF_HUB_OFFLINE=1
"$folder/env/bin/python" -W ignore "$folder/run.py" "$folder/model" 2> "$folder/log" || { tail -5 "$folder/log"; exit 1; }
