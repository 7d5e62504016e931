"""Exports jobs with LoRA adapters, which Megatron-LM does not support, to Megatron-Bridge: a command
`scripts/training/run_recipe.py` with a recipe for the user's model in LoRA mode, and configuration overrides.

Names follow ConfigContainer of Megatron-Bridge 0.7: `model` has the fields of TransformerConfig, `ddp` and `optimizer`
those of Megatron-core's classes. Such a command was never tested, because it needs GPUs."""

from autoscout.space.language.template import as_text
from autoscout.targets.megatron.newer import Flags
from kb.records import AutoscoutError, Job

PROGRAM = ["scripts/training/run_recipe.py", "--recipe", "RECIPE", "--mode", "lora"]
MISSING = ["RECIPE, a complete recipe of your model (its shape is the recipe's own)", "--dataset", "--save_dir"]
_MODEL = (
    *("--tensor-model-parallel-size", "--pipeline-model-parallel-size", "--context-parallel-size"),
    *("--expert-model-parallel-size", "--expert-tensor-parallel-size", "--recompute-granularity"),
    *("--recompute-method", "--recompute-num-layers", "--recompute-modules"),
    *("--moe-token-dispatcher-type", "--moe-flex-dispatcher-backend", "--account-for-embedding-in-pipeline-split"),
    *("--account-for-loss-in-pipeline-split", "--cross-entropy-fusion-impl", "--hierarchical-context-parallel-sizes"),
    *("--cuda-graph-impl", "--cuda-graph-scope", "--cuda-graph-warmup-steps", "--moe-permute-fusion"),
    *("--calculate-per-token-loss", "--delay-wgrad-compute", "--overlap-moe-expert-parallel-comm"),
)
_OTHERS = {
    "--micro-batch-size": "train.micro_batch_size",
    "--global-batch-size": "train.global_batch_size",
    "--seq-length": "dataset.seq_length",
    "--cp-comm-type": "model.cp_comm_type",
    "--num-virtual-stages-per-pipeline-rank": "model.virtual_pipeline_model_parallel_size",
    "--decoder-first-pipeline-num-layers": "model.num_layers_in_first_pipeline_stage",
    "--decoder-last-pipeline-num-layers": "model.num_layers_in_last_pipeline_stage",
    "--pipeline-model-parallel-layout": "model.pipeline_model_parallel_layout",
    "--ddp-bucket-size": "ddp.bucket_size",
    "--num-distributed-optimizer-instances": "ddp.num_distributed_optimizer_instances",
    "--use-precision-aware-optimizer": "optimizer.use_precision_aware_optimizer",
    "--exp-avg-dtype": "optimizer.exp_avg_dtype",
    "--exp-avg-sq-dtype": "optimizer.exp_avg_sq_dtype",
    "--optimizer-cpu-offload": "optimizer.optimizer_cpu_offload",
    "--optimizer-offload-fraction": "optimizer.optimizer_offload_fraction",
    "--overlap-cpu-optimizer-d2h-h2d": "optimizer.overlap_cpu_optimizer_d2h_h2d",
}
# Switches that are written even if they are off, since a recipe may enable them.
_SWITCHES = {
    "--sequence-parallel": "model.sequence_parallel",
    "--tp-comm-overlap": "comm_overlap.tp_comm_overlap",
    "--use-distributed-optimizer": "ddp.use_distributed_optimizer",
    "--overlap-grad-reduce": "ddp.overlap_grad_reduce",
    "--overlap-param-gather": "ddp.overlap_param_gather",
    "--cross-entropy-loss-fusion": "model.cross_entropy_loss_fusion",
}
# Flags that the recipe replaces: the model's shape, kernels and data.
_RECIPES = (
    *("--num-layers", "--hidden-size", "--num-attention-heads", "--kv-channels", "--ffn-hidden-size", "--vocab-size"),
    *("--position-embedding-type", "--normalization", "--attention-dropout", "--hidden-dropout", "--swiglu", "--bf16"),
    *("--group-query-attention", "--num-query-groups", "--disable-bias-linear", "--num-experts", "--moe-router-topk"),
    *("--untie-embeddings-and-output-weights", "--moe-ffn-hidden-size", "--moe-router-load-balancing-type"),
    *("--moe-router-dtype", "--moe-router-pre-softmax", "--transformer-impl", "--moe-grouped-gemm", "--sft"),
    *("--moe-shared-expert-intermediate-size", "--moe-layer-freq", "--qk-layernorm", "--add-qkv-bias"),
    *("--max-position-embeddings", "--data-path", "--make-vocab-size-divisible-by"),
    *("--no-bias-swiglu-fusion", "--no-bias-gelu-fusion"),
    *("--no-gradient-accumulation-fusion", "--no-persist-layer-norm", "--no-masked-softmax-fusion"),
    *(
        "--no-create-attention-mask-in-dataloader",
        "--no-rope-fusion",
        "--attention-softmax-in-fp32",
        "--no-bias-dropout-fusion",
        "--te-rng-tracker",
    ),
)


def overrides(job: Job, flags: Flags, packing: bool) -> list[str]:
    """Returns the command-line overrides. Errors: AutoscoutError (exit 2) for a flag without a known field."""
    lora = job.model.lora
    assert lora is not None
    found = [f"peft.dim={lora.rank}", f"peft.alpha={2 * lora.rank}", f"peft.target_modules={_list(lora.modules)}"]
    found += [f"{field}={as_text(flags.get(flag, False))}" for flag, field in _SWITCHES.items()]
    if "--num-virtual-stages-per-pipeline-rank" in flags:
        found.append(f"model.overlap_p2p_comm={as_text('--no-overlap-p2p-communication' not in flags)}")
    for flag, value in flags.items():
        if flag in (*_SWITCHES, *_RECIPES, "--no-overlap-p2p-communication"):
            continue
        field = _OTHERS.get(flag) or (f"model.{flag[2:].replace('-', '_')}" if flag in _MODEL else "")
        if not field:
            raise AutoscoutError(
                f"{job.name}: no field of Megatron-Bridge is known for {flag}, so it is not exported", 2
            )
        found.append(f"{field}={_list(value) if isinstance(value, list) else as_text(value)}")
    if packing:
        found.append(f"dataset.offline_packing_specs.packed_sequence_size={job.traffic.seq_len}")
    return found


def _list(values: list[str]) -> str:
    return f"[{','.join(values)}]"
