"""Shapes of public models that tables of training runs give by name only."""

import re

from autoscout.simulate.validation.serving_tables import served_model

# layers, hidden, heads, kv heads, ffn, gated, vocabulary, tied: from the models' public cards.
SHAPES: dict[str, tuple[float, ...]] = {
    "mpt-125m": (12, 768, 12, 12, 3072, 0, 50368, 1),
    "mpt-350m": (24, 1024, 16, 16, 4096, 0, 50368, 1),
    "mpt-760m": (24, 1536, 12, 12, 6144, 0, 50368, 1),
    "mpt-1b": (24, 2048, 16, 16, 8192, 0, 50368, 1),
    "mpt-3b": (32, 2560, 20, 20, 10240, 0, 50368, 1),
    "mpt-7b": (32, 4096, 32, 32, 16384, 0, 50368, 1),
    "mpt-13b": (40, 5120, 40, 40, 20480, 0, 50368, 1),
    "mpt-30b": (48, 7168, 56, 56, 28672, 0, 50368, 1),
    "mpt-70b": (80, 8192, 64, 64, 32768, 0, 50368, 1),
    "internlm-7b": (32, 4096, 32, 32, 11008, 1, 103168, 0),
    "internlm-20b": (60, 5120, 40, 40, 13824, 1, 103168, 0),
    "llama2-7b": (32, 4096, 32, 32, 11008, 1, 32000, 0),
    "llama2-13b": (40, 5120, 40, 40, 13824, 1, 32000, 0),
    "llama2-34b": (48, 8192, 64, 8, 22016, 1, 32000, 0),
    "llama2-70b": (80, 8192, 64, 8, 28672, 1, 32000, 0),
    "llama3-8b": (32, 4096, 32, 8, 14336, 1, 128256, 0),
    "llama3-70b": (80, 8192, 64, 8, 28672, 1, 128256, 0),
    "llama3.1-8b": (32, 4096, 32, 8, 14336, 1, 128256, 0),
    "llama3.1-70b": (80, 8192, 64, 8, 28672, 1, 128256, 0),
    "llama3.1-405b": (126, 16384, 128, 8, 53248, 1, 128256, 0),
    "llama-3.2-1b": (16, 2048, 32, 8, 8192, 1, 128256, 1),
    "llama-3.2-3b": (28, 3072, 24, 8, 8192, 1, 128256, 1),
    "mistral-7b": (32, 4096, 32, 8, 14336, 1, 32000, 0),
    "mistral-7b-v0.2": (32, 4096, 32, 8, 14336, 1, 32000, 0),
    "falcon-7b": (32, 4544, 71, 1, 18176, 0, 65024, 1),
    "gemma-2b": (18, 2048, 8, 1, 16384, 1, 256000, 1),
    "gemma-7b": (28, 3072, 16, 16, 24576, 1, 256000, 1),
    "gemma-2-2b": (26, 2304, 8, 4, 9216, 1, 256000, 1),
    "gemma-2-9b": (42, 3584, 16, 8, 14336, 1, 256000, 1),
    "phi-2": (32, 2560, 32, 32, 10240, 0, 51200, 0),
    "phi-3-mini-4k-instruct": (32, 3072, 32, 32, 8192, 1, 32064, 0),
    "stablelm-base-alpha-3b": (16, 4096, 32, 32, 16384, 0, 50688, 0),
    "tiny-llama": (22, 2048, 32, 4, 5632, 1, 32000, 0),
}

# Mixtures of experts: the same, then experts, chosen per token, width of an expert, size of a head.
MIXTURES: dict[str, tuple[float, ...]] = {
    "mixtral-8x22b": (56, 6144, 48, 8, 16384, 1, 32768, 0, 8, 2, 16384, 128),
    "qwen3-235b-a22b": (94, 4096, 64, 4, 12288, 1, 151936, 0, 128, 8, 1536, 128),
    "gpt-oss-120b": (36, 2880, 64, 8, 2880, 1, 201088, 0, 128, 4, 2880, 64),
}
_NAMES = ("layers", "hidden", "heads", "kv_heads", "ffn", "gated", "vocab", "tied")
_OF_EXPERTS = ("experts", "topk", "expert_ffn", "head_dim")
# Of models whose heads are wider than hidden / heads, by their config.json.
_HEAD_DIM = {"gemma7b": 256.0, "gemma2b": 256.0, "gemma22b": 256.0, "gemma29b": 256.0}


def shape_of(name: str) -> dict[str, float]:
    """A public model's shape by its name, however it is spelt (LLAMA3_70B, meta-llama/Meta-Llama-3-8B); {} where it
    is not known."""
    plain = _plain(name)
    shape = _BY_NAME.get(plain) or _BY_NAME.get(plain.removeprefix("meta"))
    if shape is None:
        return _served(name)
    found = dict(zip((*_NAMES, *_OF_EXPERTS), map(float, shape), strict=False))
    return found | ({"head_dim": _HEAD_DIM[plain]} if plain in _HEAD_DIM else {})


def _served(name: str) -> dict[str, float]:
    """The same for models that serving tables name."""
    shape = served_model(name)
    if shape is None:
        return {}
    return {"gated": 1.0, "tied": 0.0} | {k: float(shape[k]) for k in (*_NAMES, *_OF_EXPERTS) if k in shape}


def _plain(name: str) -> str:
    """Letters and digits, without text in brackets, which says how a model was run, not which it is."""
    return re.sub(r"[^a-z0-9]", "", re.sub(r"\(.*?\)", "", name).rsplit("/", 1)[-1].lower())


_BY_NAME = {_plain(name): shape for name, shape in (SHAPES | MIXTURES).items()}
