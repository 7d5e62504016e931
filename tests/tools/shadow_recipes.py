"""Recipes of Megatron-LM's functional tests (tests/functional_tests/test_cases at the rows' commits), whose peak memory
its CI measured with Transformer Engine, as inputs of a shadow (dry run).

CI's figure is of the last rank, which alone logs. If a recipe does not state the number of GPUs, `world` is inferred
from the measured bytes after a step, and `known` is False."""

import csv
from pathlib import Path
from typing import Any

import msgspec

from autoscout.simulate.shadow.verdict import traced_micro_batches

TABLE = Path(__file__).parents[3] / "shared" / "data" / "validation" / "megatron_ci_golden_large_models.csv"
_MIB = 2**20
# Bytes of cuBLAS: a workspace for each of two threads (32 MiB with :4096:8, as in deterministic recipes, and on
# Hopper), and Transformer Engine's workspace.
_DETERMINISTIC_A100, _A100, _HOPPER = 2 * 32 * _MIB + 4 * _MIB, 2 * (8 * _MIB + 2**17) + 4 * _MIB, 3 * 32 * _MIB


class Recipe(msgspec.Struct, frozen=True, kw_only=True):
    case: str
    gpu: str
    world: int
    known: bool
    dense: bool
    flags: dict[str, Any]
    script: dict[str, Any] = {}
    workspace: int = _HOPPER
    flash: bool = False
    multiprocessors: int = 0
    once: bool = True  # placeholders of fused gradients are kept (Transformer Engine 2.5 and newer)

    def question(self, imbalance: float = 1.0) -> dict[str, Any]:
        return {
            "arguments": self.flags,
            "device": "cuda",
            "world": self.world,
            "rank": self.world - 1,
            "stand_ins": True,
            "flash": self.flash,
            "workspace": self.workspace,
            "deterministic_sm": self.multiprocessors,
            "script": self.script,
            "imbalance": imbalance,
            "placeholders_once": self.once,
            "micro_batches": traced_micro_batches(
                self.flags.get("--pipeline-model-parallel-size", 1),
                self.flags.get("--num-virtual-stages-per-pipeline-rank", 1),
            ),
        }


def _flags(
    layers: int, hidden: int, heads: int, ffn: int, seq: int, vocab: int, mbs: int, gbs: int, tp: int, **more: Any
) -> dict[str, Any]:
    return {
        "--num-layers": layers,
        "--hidden-size": hidden,
        "--num-attention-heads": heads,
        "--group-query-attention": True,
        "--num-query-groups": 8,
        "--kv-channels": 128,
        "--ffn-hidden-size": ffn,
        "--seq-length": seq,
        "--max-position-embeddings": seq,
        "--vocab-size": -(-vocab // (128 * tp)) * 128 * tp,
        "--micro-batch-size": mbs,
        "--global-batch-size": gbs,
        "--tensor-model-parallel-size": tp,
        "--untie-embeddings-and-output-weights": True,
        "--bf16": True,
        "--use-distributed-optimizer": True,
        "--overlap-grad-reduce": True,
        "--overlap-param-gather": True,
        "--transformer-impl": "transformer_engine",
        **{f"--{name.replace('_', '-')}": value for name, value in more.items()},
    }


_7B = {
    "position_embedding_type": "learned_absolute",
    "normalization": "LayerNorm",
    "attention_dropout": 0.1,
    "hidden_dropout": 0.1,
    "no_gradient_accumulation_fusion": True,
}
_15B = {
    "position_embedding_type": "rope",
    "normalization": "LayerNorm",
    "attention_dropout": 0.0,
    "hidden_dropout": 0.0,
    "disable_bias_linear": True,
    "layernorm_zero_centered_gamma": True,
    "no_bias_gelu_fusion": True,
    "no_rope_fusion": True,
    "sequence_parallel": True,
}
_MIXTRAL = {
    "position_embedding_type": "rope",
    "normalization": "RMSNorm",
    "attention_dropout": 0.0,
    "hidden_dropout": 0.0,
    "disable_bias_linear": True,
    "swiglu": True,
    "no_rope_fusion": True,
    "sequence_parallel": True,
    "num_experts": 8,
    "moe_router_topk": 2,
    "moe_grouped_gemm": True,
    "moe_aux_loss_coeff": 1e-2,
    "moe_token_dispatcher_type": "alltoall",
}
_PP4 = {**_7B, "pipeline_model_parallel_size": 4, "num_virtual_stages_per_pipeline_rank": 8}
_SQUARED = {"mask": True, "rotary_percent": 0.5, "squared_relu": True}
_8X7B = (32, 4096, 32, 14336, 4096)


def _seven(case: str, gpu: str, flags: dict[str, Any]) -> Recipe:
    a100 = gpu.startswith("A100")
    return Recipe(
        case=case,
        gpu=gpu,
        world=8,
        known=True,
        dense=True,
        flags=flags,
        script={"mask": True},
        workspace=_DETERMINISTIC_A100 if a100 else _HOPPER,
        flash=a100,
        multiprocessors=108 if a100 else 0,
    )


def _fifteen(gpu: str) -> Recipe:
    a100 = gpu.startswith("A100")
    return Recipe(
        case="gpt3_15b_8t_release_sm",
        gpu=gpu,
        world=256,
        known=False,
        dense=True,
        flags=_flags(32, 6144, 48, 24576, 4096, 256000, 4, 384, 8, **_15B),
        script=_SQUARED,
        workspace=_A100 if a100 else _HOPPER,
        flash=a100,
        once=not a100,  # that row ran in CI's long-term environment, with an older release
    )


def _mixtral(case: str, gpu: str, world: int, flags: dict[str, Any], flash: bool = False) -> Recipe:
    return Recipe(
        case=case,
        gpu=gpu,
        world=world,
        known=False,
        dense=False,
        flags=flags,
        script={"mask": True},
        workspace=_A100 if flash else _HOPPER,
        flash=flash,
        once=not flash,  # the A100's row ran in CI's long-term environment
    )


def _experts(pp: int, ep: int, etp: int, **more: Any) -> dict[str, Any]:
    degrees = {
        "pipeline_model_parallel_size": pp,
        "expert_model_parallel_size": ep,
        "expert_tensor_parallel_size": etp,
    }
    return {**_MIXTRAL, **degrees, **more}


RECIPES = [
    _seven(case, gpu, _flags(32, 4096, 32, 16384, 8192, 131074, mbs, 8, tp, **more))
    for case, mbs, tp, more in (
        ("gpt3_7b_tp1_pp4_memory_speed", 1, 1, _PP4),
        ("gpt3_7b_tp4_pp1_memory_speed", 2, 4, _7B),
    )
    for gpu in ("A100-SXM-80GB", "H100-SXM-80GB")
]
RECIPES += [_fifteen(gpu) for gpu in ("A100-SXM-80GB", "H100-SXM-80GB")]
RECIPES += [msgspec.structs.replace(recipe, case="gpt3_15b_8t_release") for recipe in RECIPES[-2:]]
RECIPES += [
    _mixtral(
        "mixtral_8x7b_alltoall_tp2pp4ep4_release",
        "A100-SXM-80GB",
        128,
        _flags(*_8X7B, 256000, 1, 1024, 2, moe_ffn_hidden_size=14336, **_experts(4, 4, 2)),
        flash=True,
    ),
    _mixtral(
        "mixtral_8x7b_tp1pp4ep8vpp8_release",
        "H100-SXM-80GB",
        64,
        _flags(
            *_8X7B,
            32000,
            1,
            256,
            2,
            moe_ffn_hidden_size=14336,
            **_experts(4, 8, 1, num_virtual_stages_per_pipeline_rank=8),
        ),
    ),
    _mixtral(
        "mixtral_8x22b_tp2pp8ep8vpp1_release",
        "H100-SXM-80GB",
        128,
        _flags(56, 6144, 48, 16384, 4096, 32000, 1, 256, 2, moe_ffn_hidden_size=16384, **_experts(8, 8, 2)),
    ),
]


def measured(recipe: Recipe) -> list[int]:
    """Peak bytes of all runs of the recipe on that GPU, newest first; [] if the table is missing."""
    if not TABLE.exists():
        return []
    with open(TABLE, newline="") as file:
        rows = [r for r in csv.DictReader(file) if r["case"] == recipe.case and r["gpu"] == recipe.gpu]
    return [int(float(r["mem_max_allocated_bytes"])) for r in rows if r["mem_max_allocated_bytes"]]
