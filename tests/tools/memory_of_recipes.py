"""Compares the analytic memory model with peaks of the last rank in Megatron-LM's CI: a table of
docs/lab/simulators-training.md. If a recipe leaves the number of GPUs open, it is inferred (shadow_recipes.py).

    PYTHONPATH=.:tests/tools python tests/tools/memory_of_recipes.py
"""

from statistics import median
from typing import Any

import numpy as np
from shadow_recipes import RECIPES, Recipe, measured

from autoscout.simulate.training.inputs import complete
from autoscout.simulate.training.rank_memory import GIB, of_stage, rank_bytes

NAMES = {
    "num_layers": "layers",
    "hidden_size": "hidden",
    "num_attention_heads": "heads",
    "num_query_groups": "kv_heads",
    "kv_channels": "head_dim",
    "ffn_hidden_size": "ffn",
    "moe_ffn_hidden_size": "expert_ffn",
    "seq_length": "seq_len",
    "vocab_size": "vocab",
    "micro_batch_size": "mbs",
    "global_batch_size": "global_batch",
    "tensor_model_parallel_size": "tp",
    "pipeline_model_parallel_size": "pp",
    "expert_model_parallel_size": "ep",
    "expert_tensor_parallel_size": "etp",
    "num_virtual_stages_per_pipeline_rank": "vpp",
    "num_experts": "experts",
    "moe_router_topk": "topk",
    "sequence_parallel": "sp",
    "hidden_dropout": "dropout",
    "swiglu": "gated",
}


def last_rank_gib(recipe: Recipe) -> float:
    flags = {name.removeprefix("--").replace("-", "_"): value for name, value in recipe.flags.items()}
    columns: dict[str, Any] = {ours: float(flags[theirs]) for theirs, ours in NAMES.items() if theirs in flags}
    columns["dropout"] = 1.0 * (columns["dropout"] > 0)
    columns |= {"gpus": recipe.world, "distopt": 1, "dtype": "bf16", "bias": 0, "te": 1}
    columns["learned_positions"] = flags.get("position_embedding_type") == "learned_absolute"
    x = complete(columns)
    return float(np.ravel(rank_bytes(of_stage(x, x.pp - 1)))[0] / GIB)


def main() -> None:
    print("| case | GPU | ranks | measured GiB, median | closed form |\n|---|---|---|---|---|")
    for recipe in RECIPES:
        if not (runs := measured(recipe)):
            continue
        real, said = median(runs) / GIB, last_rank_gib(recipe)
        ranks = f"{recipe.world}{'' if recipe.known else ' (inferred)'}"
        print(f"| {recipe.case} | {recipe.gpu} | {ranks} | {real:.2f} | {said:.2f}: {said / real - 1:+.1%} |")


if __name__ == "__main__":
    main()
