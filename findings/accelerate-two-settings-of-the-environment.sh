#!/usr/bin/env bash
# accelerate 1.15.0 with transformers 5.23.0, two settings that the launcher hands on by the environment (the second with
# --use_deepspeed): who wins differs. Accelerator(mixed_precision="no") beats the launcher's bf16, while its argument
# gradient_accumulation_steps=4 loses to the environment's 1, and the script takes four times as many steps. The Trainer's
# --bf16 False loses, too: it trains in bf16, while its arguments, which logs and checkpoints keep, say bf16=False.
#
# Guessed before: what the script says wins in all three. Seen (2026-11-30, Python 3.11):
#   Accelerator: mixed precision no, accumulation 1; Trainer: bf16=False, autocast on, torch.bfloat16
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
"${PYTHON:-python3.11}" -m venv "$folder/env"
"$folder/env/bin/pip" install --quiet torch==2.13.0
"$folder/env/bin/pip" install --quiet transformers==5.23.0 accelerate==1.15.0
cat > "$folder/plain.py" <<'P'
import sys

import accelerate

made = accelerate.Accelerator(cpu=True, mixed_precision="no", gradient_accumulation_steps=4)
print(f"accelerate {accelerate.__version__}, Accelerator: mixed precision {made.mixed_precision},"
      f" accumulation {made.gradient_accumulation_steps}")
sys.exit((made.mixed_precision, made.gradient_accumulation_steps) != ("no", 1))
P
cat > "$folder/trainer.py" <<'P'
import sys

import torch
import transformers
from transformers import HfArgumentParser, LlamaConfig, LlamaForCausalLM, Trainer, TrainingArguments

seen = set()


class Model(LlamaForCausalLM):
    def forward(self, input_ids=None, attention_mask=None, labels=None, **more):
        seen.add((torch.is_autocast_enabled("cpu"), str(torch.get_autocast_dtype("cpu"))))
        return super().forward(input_ids=input_ids, attention_mask=attention_mask, labels=labels, **more)


(arguments,) = HfArgumentParser(TrainingArguments).parse_args_into_dataclasses()
sizes = dict(vocab_size=64, hidden_size=32, intermediate_size=64, num_hidden_layers=1, num_attention_heads=2)
data = [{"input_ids": [1, 2, 3, 4], "labels": [1, 2, 3, 4]} for _ in range(8)]
Trainer(model=Model(LlamaConfig(pad_token_id=0, **sizes)), args=arguments, train_dataset=data).train()
print(f"transformers {transformers.__version__}, Trainer: bf16={arguments.bf16}, autocast and its type {seen}")
sys.exit(arguments.bf16 or seen != {(True, "torch.bfloat16")})
P
cd "$folder"
export CUDA_VISIBLE_DEVICES= HF_HOME="$folder/home"
launch() { env/bin/accelerate launch --cpu --num_processes 1 --num_machines 1 --dynamo_backend no --mixed_precision bf16 "$@"; }
ACCELERATE_GRADIENT_ACCUMULATION_STEPS=1 launch plain.py 2> log || { tail -5 log; exit 1; }
launch trainer.py --output_dir out --use_cpu --bf16 False --max_steps 1 --report_to none --disable_tqdm True 2> log > said \
    || { tail -5 log said; exit 1; }
grep Trainer: said
