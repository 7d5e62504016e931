#!/usr/bin/env bash
# transformers 5.23.0, Trainer: with its defaults (logging_nan_inf_filter) a loss that is no number is logged as 0 where each
# step is logged, and counts as 0 in train_loss: a run that diverged half way has the lower loss, 1.54 where the one that
# did not has 3.07. eval_loss leaves such batches out as long as one is left, so that it depends on the batch size whether
# the same model has one. The gradient's norm alone says nan.
#
# Guessed before: nan, as the loss is. Seen (2026-11-30, Python 3.11):
#   losses 3.0787, 3.0738, 0.0, 0.0, train_loss 1.5381, norms nan at the end; without bad samples train_loss 3.0713
#   eval_loss 3.0787 in batches of 2, nan in batches of 8 (samples with one token get a loss of nan, as by an overflow)
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
"${PYTHON:-python3.11}" -m venv "$folder/env"
"$folder/env/bin/pip" install --quiet torch==2.13.0
"$folder/env/bin/pip" install --quiet transformers==5.23.0 accelerate==1.15.0
cat > "$folder/run.py" <<'P'
import math
import sys

import torch
import transformers
from transformers import LlamaConfig, LlamaForCausalLM, Trainer, TrainingArguments


class Model(LlamaForCausalLM):
    def forward(self, input_ids=None, attention_mask=None, labels=None, **more):
        out = super().forward(input_ids=input_ids, attention_mask=attention_mask, labels=labels, **more)
        if (input_ids == 63).any():
            out.loss = out.loss * math.nan
        return out


class InOrder(Trainer):
    def _get_train_sampler(self, *given):
        return torch.utils.data.SequentialSampler(self.train_dataset)


def trainer(samples, evaluated=8):
    torch.manual_seed(0)
    sizes = dict(vocab_size=64, hidden_size=32, intermediate_size=64, num_hidden_layers=1, num_attention_heads=2)
    arguments = TrainingArguments(
        output_dir=sys.argv[1], use_cpu=True, report_to=[], disable_tqdm=True, save_strategy="no", max_steps=4,
        per_device_train_batch_size=2, per_device_eval_batch_size=evaluated, logging_steps=1, lr_scheduler_type="constant",
    )
    return InOrder(model=Model(LlamaConfig(pad_token_id=0, **sizes)), args=arguments, train_dataset=samples)


good, bad = ([{"input_ids": [1, 2, 3, last], "labels": [1, 2, 3, last]} for _ in range(4)] for last in (4, 63))
means, ends = [], []
for samples in (good + bad, good + good):
    made = trainer(samples)
    means.append(made.train().training_loss)
    logged = [(each["loss"], each["grad_norm"]) for each in made.state.log_history if "loss" in each]
    print(f"transformers {transformers.__version__}: losses and norms {logged}, train_loss {means[-1]:.4f}")
    ends.append(str(logged[2:]))
evaluated = [trainer(good, size).evaluate(good + bad)["eval_loss"] for size in (2, 8)]
print("eval_loss by batches of 2 and of 8:", evaluated)
sys.exit(not (ends[0] == "[(0.0, nan), (0.0, nan)]" and means[0] < 0.6 * means[1] and math.isfinite(evaluated[0]) and math.isnan(evaluated[1])))
P
CUDA_VISIBLE_DEVICES= "$folder/env/bin/python" -W ignore "$folder/run.py" "$folder/out" 2> "$folder/log" || { tail -5 "$folder/log"; exit 1; }
