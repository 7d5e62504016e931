#!/usr/bin/env bash
# transformers 5.23.0 with accelerate 1.15.0, --auto_find_batch_size: a batch that does not fit is not halved but multiplied
# by 0.9 and cut (32, 28, 25 …), and the accumulation stays, so that a step has 25 samples where 32 were asked for, and the
# losses of two machines are those of two batches. The arguments still name 32; trainer_state.json alone names 25.
#
# Guessed before: 32, 16, and the samples of a step kept by accumulating. Seen (2026-11-29, Python 3.11):
#   batches 32, 28, 25, 25, 25; samples of three steps 75; train_batch_size 25, per_device_train_batch_size 32
# Running out of memory is stood in for by the error's own text from 26 samples on.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
"${PYTHON:-python3.11}" -m venv "$folder/env"
"$folder/env/bin/pip" install --quiet torch==2.13.0
"$folder/env/bin/pip" install --quiet transformers==5.23.0 accelerate==1.15.0
cat > "$folder/run.py" <<'P'
import json
import sys

import transformers
from transformers import LlamaConfig, LlamaForCausalLM, Trainer, TrainingArguments

sizes = dict(vocab_size=64, hidden_size=32, intermediate_size=64, num_hidden_layers=1, num_attention_heads=2)
seen = []


class Model(LlamaForCausalLM):
    def forward(self, input_ids=None, attention_mask=None, labels=None, **more):
        seen.append(len(input_ids))
        if len(input_ids) > 25:
            raise RuntimeError("CUDA out of memory. Tried to allocate 2.00 GiB")
        return super().forward(input_ids=input_ids, attention_mask=attention_mask, labels=labels, **more)


arguments = TrainingArguments(
    output_dir=sys.argv[1], use_cpu=True, report_to=[], disable_tqdm=True, per_device_train_batch_size=32,
    auto_find_batch_size=True, max_steps=3, save_steps=3,
)
data = [{"input_ids": [1, 2, 3, 4], "labels": [1, 2, 3, 4]} for _ in range(640)]
trainer = Trainer(model=Model(LlamaConfig(pad_token_id=0, **sizes)), args=arguments, train_dataset=data)
trainer.train()
state = json.load(open(f"{sys.argv[1]}/checkpoint-3/trainer_state.json"))
print(f"transformers {transformers.__version__}: batches {seen}; accumulated {arguments.gradient_accumulation_steps} time;"
      f" train_batch_size {state['train_batch_size']}, per_device_train_batch_size {arguments.per_device_train_batch_size}")
same = seen == [32, 28, 25, 25, 25] and arguments.gradient_accumulation_steps == 1
sys.exit(not (same and state["train_batch_size"] == 25 and arguments.per_device_train_batch_size == 32))
P
CUDA_VISIBLE_DEVICES= "$folder/env/bin/python" -W ignore "$folder/run.py" "$folder/out" 2> "$folder/log" || { tail -5 "$folder/log"; exit 1; }
