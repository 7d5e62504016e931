#!/usr/bin/env bash
# peft 0.21.2 with transformers 5.23.0: LoRA on a mixture's w1, w2 and w3 by the names that its checkpoint has. Since the
# weights w1 and w3 became one, their adapter has twice the rank that was asked for: 8 for r=4, while w2 keeps 4 and
# LoraConfig, and adapter_config.json with it, says 4 for all. So the experts have 44 % more adapter weights than three
# adapters of the stated rank, with gradients and optimizer states of their own.
#
# Guessed before: rank 4 in all, 18432 numbers. Seen (2026-11-30, Python 3.11):
#   w1 and w3 (gate_up_proj): rank 8; w2 (down_proj): rank 4; 26624 trainable, three adapters of rank 4 have 18432
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
"${PYTHON:-python3.11}" -m venv "$folder/env"
"$folder/env/bin/pip" install --quiet torch==2.13.0
"$folder/env/bin/pip" install --quiet transformers==5.23.0 accelerate==1.15.0 peft==0.21.2
cat > "$folder/run.py" <<'P'
import sys

import peft
from transformers import MixtralConfig, MixtralForCausalLM

hidden, wide, experts, rank = 64, 128, 8, 4
sizes = dict(vocab_size=64, hidden_size=hidden, intermediate_size=wide, num_hidden_layers=1, num_attention_heads=2)
sizes |= dict(num_key_value_heads=2, num_local_experts=experts, num_experts_per_tok=2)
asked = peft.LoraConfig(target_modules=["w1", "w2", "w3"], r=rank, task_type="CAUSAL_LM")
model = peft.get_peft_model(MixtralForCausalLM(MixtralConfig(**sizes)), asked)
ranks = {}
for name, weight in model.named_parameters():
    if "lora_A" in name:  # of all experts together, inputs second
        ranks["w1 and w3" if weight.shape[1] == hidden else "w2"] = weight.shape[0] // experts
trained, stated = model.get_nb_trainable_parameters()[0], 3 * rank * (hidden + wide) * experts
print(f"peft {peft.__version__}: rank {model.peft_config['default'].r} is asked for, experts have {ranks};"
      f" {trained} numbers are trained, three adapters of rank {rank} have {stated}")
sys.exit(not (ranks == {"w1 and w3": 2 * rank, "w2": rank} and trained == 26624 and stated == 18432))
P
CUDA_VISIBLE_DEVICES= "$folder/env/bin/python" -W ignore "$folder/run.py" 2> "$folder/log" || { tail -5 "$folder/log"; exit 1; }
