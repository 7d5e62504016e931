#!/usr/bin/env bash
# lm-eval 0.4.13, tasks of several choices: a model whose logits are no numbers (a quantization that overflowed, a broken
# kernel) is no error and has no accuracy of 0 or nan, but takes the first choice each time, as argmax takes a nan for the
# largest. Where 15 of 20 answers are the first, it has 0.75, and a limit set by an earlier run may be kept; a model of
# random weights, which likes a longer text less, has 0.0. No file but the samples' log-likelihoods says nan.
#
# Guessed before: nan, or an error. Seen (2026-11-30, Python 3.11, transformers 5.23.0):
#   random weights: acc 0.0; weights of nan: acc 0.75, stderr 0.0993, log-likelihoods nan
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
"${PYTHON:-python3.11}" -m venv "$folder/env"
"$folder/env/bin/pip" install --quiet torch==2.13.0
"$folder/env/bin/pip" install --quiet transformers==5.23.0 accelerate==1.15.0 lm-eval==0.4.13
cd "$folder"
cat > run.py <<'P'
import importlib.metadata
import json
import math
import os
import sys

import lm_eval
import torch
from lm_eval.models.huggingface import HFLM
from lm_eval.tasks import TaskManager
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

os.mkdir("task")
with open("task/data.jsonl", "w") as file:
    for i in range(20):
        file.write(json.dumps({"asked": f"item {i}", "choices": ["yes", "no", "so"], "right": int(i >= 15)}) + "\n")
task = {"task": "tiny", "dataset_path": "json", "dataset_kwargs": {"data_files": {"test": f"{os.getcwd()}/task/data.jsonl"}}}
task |= {"test_split": "test", "output_type": "multiple_choice", "metric_list": [{"metric": "acc"}]}
task |= {"doc_to_text": "{{asked}}", "doc_to_choice": "{{choices}}", "doc_to_target": "right"}
json.dump(task, open("task/tiny.yaml", "w"))
letters = {letter: i for i, letter in enumerate(["<s>", "</s>", *sorted(pre_tokenizers.ByteLevel.alphabet())])}
words = Tokenizer(models.BPE(letters, []))
words.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
words = PreTrainedTokenizerFast(tokenizer_object=words, bos_token="<s>", eos_token="</s>", pad_token="</s>")
sizes = dict(vocab_size=len(letters), hidden_size=32, intermediate_size=64, num_hidden_layers=1, num_attention_heads=2)
found = []
for name in ("random weights", "weights of nan"):
    torch.manual_seed(0)
    model = LlamaForCausalLM(LlamaConfig(**sizes))
    if found:
        model.lm_head.weight.data.fill_(math.nan)
    tasks = TaskManager(include_path="task", include_defaults=False)
    out = lm_eval.simple_evaluate(HFLM(model, tokenizer=words, device="cpu"), tasks=["tiny"], task_manager=tasks)
    found.append((out["results"]["tiny"]["acc,none"], out["samples"]["tiny"][0]["resps"][0][0][0]))
    print(f"lm-eval {importlib.metadata.version('lm_eval')}, {name}: acc {found[-1][0]}, a log-likelihood {found[-1][1]:.4g}")
(plain, _), (broken, likelihood) = found
sys.exit(not (plain == 0.0 and broken == 0.75 and math.isnan(likelihood)))
P
export CUDA_VISIBLE_DEVICES= HF_HUB_OFFLINE=1 HF_DATASETS_OFFLINE=1 HF_HOME="$folder/home"
env/bin/python -W ignore run.py 2> log || { tail -5 log; exit 1; }
