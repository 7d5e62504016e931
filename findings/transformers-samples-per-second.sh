#!/usr/bin/env bash
# transformers 5.23.0, Trainer: with max_steps its train_samples_per_second is steps × batch over the time, also where the
# data ends within a batch. Five samples in batches of four are 4 and 1 in turn: ten steps trained on 25, and 40 are said.
# With num_train_epochs the same ten steps are said to be 25 samples. A small data set's speed is 60 % too high.
#
# Guessed before: the samples that it trained on, either way. Seen (2026-11-29, Python 3.11):
#   max_steps=10: 25 samples seen, 40 said; num_train_epochs=5: 25 seen, 25 said
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
"${PYTHON:-python3.11}" -m venv "$folder/env"
"$folder/env/bin/pip" install --quiet torch==2.13.0
"$folder/env/bin/pip" install --quiet transformers==5.23.0 accelerate==1.15.0
cat > "$folder/run.py" <<'P'
import sys

import transformers
from transformers import LlamaConfig, LlamaForCausalLM, Trainer, TrainingArguments

sizes = dict(vocab_size=64, hidden_size=32, intermediate_size=64, num_hidden_layers=1, num_attention_heads=2)
data = [{"input_ids": [1, 2, 3, 4], "labels": [1, 2, 3, 4]} for _ in range(5)]
seen = []


class Model(LlamaForCausalLM):
    def forward(self, input_ids=None, attention_mask=None, labels=None, **more):
        seen.append(len(input_ids))
        return super().forward(input_ids=input_ids, attention_mask=attention_mask, labels=labels, **more)


found = []
for asked in ({"max_steps": 10}, {"num_train_epochs": 5}):
    seen.clear()
    arguments = TrainingArguments(
        output_dir=sys.argv[1], use_cpu=True, report_to=[], disable_tqdm=True, save_strategy="no",
        per_device_train_batch_size=4, **asked,
    )
    trainer = Trainer(model=Model(LlamaConfig(pad_token_id=0, **sizes)), args=arguments, train_dataset=data)
    said = trainer.train().metrics
    samples = said["train_samples_per_second"] * said["train_runtime"]
    found.append((len(seen), sum(seen), round(samples)))
    print(f"transformers {transformers.__version__}, {asked}: {len(seen)} steps, {sum(seen)} samples seen, {samples:.1f} said")
sys.exit(found != [(10, 25, 40), (10, 25, 25)])
P
CUDA_VISIBLE_DEVICES= "$folder/env/bin/python" -W ignore "$folder/run.py" "$folder/out" 2> "$folder/log" || { tail -5 "$folder/log"; exit 1; }
