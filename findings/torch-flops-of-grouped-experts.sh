#!/usr/bin/env bash
# torch 2.13.0 with transformers 5.23.0: the experts of a mixture have no floating-point operation for FlopCounterMode.
# Models multiply by torch's grouped_mm since transformers 5 (experts_implementation is "grouped_mm" without a word), of
# which the counter knows nothing; the same model with "eager" or "batched_mm" has 3.3 times as many. Nothing warns. A share
# of the peak from this count is that of attention and of the vocabulary alone.
#
# Guessed before: 2 × tokens × k × n of each expert, as of any product. Seen (2026-11-30, Python 3.11):
#   default (grouped_mm): 5373952 forward; eager 17956864, batched_mm 17956864, of which the experts are 12582912
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
"${PYTHON:-python3.11}" -m venv "$folder/env"
"$folder/env/bin/pip" install --quiet torch==2.13.0
"$folder/env/bin/pip" install --quiet transformers==5.23.0
cat > "$folder/run.py" <<'P'
import sys

import torch
import transformers
from torch.utils.flop_counter import FlopCounterMode
from transformers import MixtralConfig, MixtralForCausalLM

sizes = dict(vocab_size=64, hidden_size=64, intermediate_size=128, num_hidden_layers=1, num_attention_heads=2)
sizes |= dict(num_key_value_heads=2, num_local_experts=8, num_experts_per_tok=2)
tokens = torch.arange(128).reshape(2, 64) % 64
found = {}
for asked in (None, "eager", "batched_mm"):
    torch.manual_seed(0)
    model = MixtralForCausalLM._from_config(MixtralConfig(**sizes), **({"experts_implementation": asked} if asked else {}))
    with FlopCounterMode(display=False) as counted:
        model(input_ids=tokens)
    found[model.config._experts_implementation] = counted.get_total_flops()
    print(f"torch {torch.__version__}, transformers {transformers.__version__}, {asked or 'default'}:"
          f" {model.config._experts_implementation}, {counted.get_total_flops()} operations")
experts = 2 * tokens.numel() * 2 * 3 * 64 * 128  # two experts a token, three products each
print("of the experts:", experts)
known = found["eager"]
sys.exit(found != {"grouped_mm": known - experts, "eager": known, "batched_mm": known})
P
CUDA_VISIBLE_DEVICES= "$folder/env/bin/python" -W ignore "$folder/run.py" 2> "$folder/log" || { tail -5 "$folder/log"; exit 1; }
