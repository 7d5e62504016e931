"""A person's script with the Hugging Face Trainer: a GPT-2 from nothing on random tokens.

torchrun --nproc-per-node 2 trains_hf.py --deepspeed ds_config.json --output_dir out
"""

import torch
from transformers import (  # type: ignore[import-not-found]
    GPT2Config,
    GPT2LMHeadModel,
    HfArgumentParser,
    Trainer,
    TrainingArguments,
)

LENGTH, WORDS = 32, 512


class Tokens(torch.utils.data.Dataset):
    def __len__(self) -> int:
        return 4096

    def __getitem__(self, i: int) -> dict[str, torch.Tensor]:
        drawn = torch.randint(WORDS, (LENGTH,), generator=torch.Generator().manual_seed(i))
        return {"input_ids": drawn, "labels": drawn}


(training,) = HfArgumentParser(TrainingArguments).parse_args_into_dataclasses()
torch.manual_seed(0)
model = GPT2LMHeadModel(GPT2Config(vocab_size=WORDS, n_positions=LENGTH, n_embd=64, n_layer=2, n_head=4))
Trainer(model=model, args=training, train_dataset=Tokens()).train()
