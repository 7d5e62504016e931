"""Creates a model folder with random weights, without downloads: config.json, weights and a tokenizer.

model.py FOLDER CONFIG      CONFIG is the content of config.json"""

import json
import os
import shutil
import sys
from pathlib import Path


def main() -> None:
    folder, config = Path(sys.argv[1]), json.loads(sys.argv[2])
    part = folder.with_name(f"{folder.name}.{os.getpid()}")
    part.mkdir(parents=True)
    try:
        _weights(part, config)
        _tokenizer(part, config)
        (part / "config.json").write_text(json.dumps(config, indent=2))
        try:
            part.rename(folder)
        except OSError:  # a concurrent session has created the folder
            shutil.rmtree(part)
    except BaseException:
        shutil.rmtree(part, ignore_errors=True)
        raise
    print(json.dumps({"model": str(folder)}))


def _weights(folder: Path, config: dict) -> None:
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    torch.manual_seed(0)
    kind = config["model_type"]
    shape = AutoConfig.for_model(kind, **{k: v for k, v in config.items() if k not in ("model_type", "architectures")})
    model = AutoModelForCausalLM.from_config(shape, dtype=getattr(torch, config["torch_dtype"]))
    model.save_pretrained(folder, safe_serialization=True)
    (folder / "generation_config.json").unlink(missing_ok=True)


def _tokenizer(folder: Path, config: dict) -> None:
    """Makes a tokenizer with one word per token: w17 is token 17."""
    from tokenizers import Tokenizer, models, pre_tokenizers

    words = {("<s>", "</s>", "<unk>")[i] if i < 3 else f"w{i}": i for i in range(config["vocab_size"])}
    tokenizer = Tokenizer(models.WordLevel(words, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer.save(str(folder / "tokenizer.json"))
    special = {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>"}
    settings = {"tokenizer_class": "PreTrainedTokenizerFast", "model_max_length": config["max_position_embeddings"]}
    (folder / "tokenizer_config.json").write_text(json.dumps(special | settings))


if __name__ == "__main__":
    main()
