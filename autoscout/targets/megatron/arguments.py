"""Converts (job, configuration) to flags of Megatron-LM's training script. Exports contain these flags, and experiments
pass them to the worker, which interprets them like Megatron-LM (worker/configs.py). Two configurations therefore have
the same export if and only if they are the same experiment."""

import math
from collections.abc import Mapping

from autoscout.job.device_names import capability_of
from autoscout.running.cluster import devices
from autoscout.space.attributes import device_counts
from autoscout.space.declared import own_knobs
from autoscout.targets.megatron import finetuning, newer, releases, unequal
from autoscout.targets.megatron.newer import Flags
from kb.records import AutoscoutError, Configuration, Job, Latent, Model, Value, shape

SCRIPT = "pretrain_gpt.py"  # Megatron-LM's training script

# Lowest CUDA compute capability that has multicast; lowest that does not need CUDA_DEVICE_MAX_CONNECTIONS=1.
_MULTICAST, _QUEUES = 9.0, 10.0
_MIB_OF_FP32 = 2**20 // 4  # number of fp32 elements in a MiB
_DEGREES = {
    "tp": "--tensor-model-parallel-size",
    "pp": "--pipeline-model-parallel-size",
    "cp": "--context-parallel-size",
    "ep": "--expert-model-parallel-size",
    "etp": "--expert-tensor-parallel-size",
    "vpp": "--num-virtual-stages-per-pipeline-rank",
}
_SWITCHES = {
    "sp": "--sequence-parallel",
    "tp_comm_overlap": "--tp-comm-overlap",
    "distopt": "--use-distributed-optimizer",
    "overlap_grad": "--overlap-grad-reduce",
    "overlap_param": "--overlap-param-gather",
    "permute_fusion": "--moe-permute-fusion",
    "overlap_experts": "--overlap-moe-expert-parallel-comm",
    "delay_wgrad": "--delay-wgrad-compute",
}
_FROM_ELSEWHERE = ("mbs", "dp", "ar", "ar_method", "ar_layers", "ar_modules", "cp_comm", "ce_fusion", "overlap_p2p")
_FROM_ELSEWHERE += ("ddp_bucket", "dispatcher", "tp_comm", "stage_split", "first_layers", "last_layers")
_FROM_ELSEWHERE += ("packing",)
# Flags that the user has to add, with a description.
_MISSING = {
    "--data-path": "--data-path or --mock-data",
    "--tokenizer-type": "--tokenizer-type and its model",
    "--train-iters": "--train-iters",
    "--lr": "--lr",
    "--save": "--save",
}
# Advice on flags that the model's sizes do not imply. With Megatron-LM's defaults, a different model would be trained.
_OF_MODEL = "--rotary-base, --norm-epsilon and --use-rope-scaling as your model has them (else 10000, 1e-5 and off)"
_OF_LATENT = (
    "--rotary-base, --rotary-scaling-factor, --mscale and --norm-epsilon as your model has them (else 10000, 40, 1.0 "
    "and 1e-5)"
)
_BALANCING = "--moe-router-load-balancing-type"
_BALANCE = (
    f"{_BALANCING} instead of none (none keeps the losses of layouts comparable, but leaves experts idle in a long "
    "training), and how your model's router computes scores (--moe-router-pre-softmax, --moe-router-score-function)"
)
_REFUSED_LATER = "--cross-entropy-loss-fusion"
_LEAVE_OUT = f"no {_REFUSED_LATER} with Megatron-LM 0.18.2 or newer, which refuses it"
_FUSION = "gradient-accumulation-fusion"  # an option of Megatron-LM that needs Apex
_NO_MASKS = "--no-create-attention-mask-in-dataloader"
USER_BUFFERS = "--tp-comm-overlap-cfg"
# Transformer Engine's names of a layer's GEMMs that can overlap with communication.
OVERLAPPED_GEMMS = (
    *("qkv_fprop", "qkv_dgrad", "qkv_wgrad", "proj_fprop", "proj_dgrad"),
    *("fc1_fprop", "fc1_dgrad", "fc1_wgrad", "fc2_fprop", "fc2_dgrad"),
)
# The classes of Megatron-core whose fields a knob of the job file may set, and the fields whose flag has a different
# name.
CLASSES = ("TransformerConfig.", "DistributedDataParallelConfig.", "OptimizerConfig.")
_FLAG_OF_FIELD = {
    "DistributedDataParallelConfig.average_in_collective": "--ddp-average-in-collective",
    "DistributedDataParallelConfig.bucket_size": "--ddp-bucket-size",
    "DistributedDataParallelConfig.grad_reduce_in_fp32": "--accumulate-allreduce-grads-in-fp32",
    "DistributedDataParallelConfig.pad_buckets_for_high_nccl_busbw": "--ddp-pad-buckets-for-high-nccl-busbw",
    "TransformerConfig.fp8_param": "--fp8-param-gather",
    "TransformerConfig.num_layers_in_first_pipeline_stage": "--decoder-first-pipeline-num-layers",
    "TransformerConfig.num_layers_in_last_pipeline_stage": "--decoder-last-pipeline-num-layers",
}


def flags(job: Job, configuration: Configuration) -> Flags:
    """Returns the flags; True for a flag without a value. Errors: AutoscoutError (exit 2) for a configuration without
    `mbs`, or a knob without a flag."""
    knobs = configuration.knobs
    if "mbs" not in knobs:
        raise AutoscoutError("a Megatron configuration needs a value of the knob mbs (micro batch size)", 2)
    found: Flags = {
        **_model(shape(job.model)),
        **_kernels(job),
        "--seq-length": job.traffic.seq_len,
        "--max-position-embeddings": job.traffic.seq_len,
        "--global-batch-size": job.traffic.global_batch,
        "--micro-batch-size": knobs["mbs"],
        # Megatron-LM pads the tokenizer's vocabulary to a multiple of this value × tp. That product is the model's
        # vocabulary, so that any tokenizer that fits gets exactly the measured number of rows.
        "--make-vocab-size-divisible-by": job.model.vocab // int(knobs.get("tp", 1)),
        **_parallelism(knobs, job.model.layers),
        **unequal.flags(job, configuration),
        **_recomputation(knobs),
        **_communication(knobs),
        **newer.flags(knobs),
        **newer.flags_of_catalog(knobs),
        **finetuning.flags(job, configuration),
        **_own(job, knobs),
    }
    today = releases.renamed(job)
    return {today.get(flag, flag): value for flag, value in found.items()}


def as_installed(flags: Flags, environment: Mapping[str, str]) -> Flags:
    """Returns the flags, plus flags that disable Megatron-LM's defaults for which this environment (see
    environment.describe) lacks a package."""
    if environment.get(_FUSION) != "no":
        return flags
    return {**flags, f"--no-{_FUSION}": True}


def missing(flags: Flags, own_line: bool, checkout: bool) -> list[str]:
    """Returns what the user still has to add to the flags. `own_line`: whether the user has a launch line. (Such a line
    also has the flags that the model's sizes do not imply.) `checkout`: whether the flags were checked with the user's
    own Megatron-LM."""
    given = set(flags) | ({"--data-path"} if "--mock-data" in flags else set())
    given |= {"--train-iters"} if "--train-samples" in flags else set()
    found = [text for flag, text in _MISSING.items() if flag not in given]
    if not own_line and flags["--position-embedding-type"] == "rope":
        found.append(_OF_LATENT if "--multi-latent-attention" in flags else _OF_MODEL)
    found += [_BALANCE] if flags.get(_BALANCING) == "none" else []
    return [*found, _LEAVE_OUT] if _REFUSED_LATER in flags and not checkout else found


def world_size(configuration: Configuration) -> int:
    return math.prod(int(configuration.knobs.get(name, 1)) for name in ("tp", "pp", "cp", "dp"))


def variables(job: Job, configuration: Configuration) -> dict[str, str]:
    """Returns the environment variables of every rank."""
    if devices.device_kind(job) == "cpu":
        # One OpenMP thread per rank, because there are more ranks than cores, and spinning threads would stall the
        # ranks for minutes. No Dynamo, because it would compile C++ in each new process. Loopback for gloo, because all
        # ranks are on this machine.
        ours = {"OMP_NUM_THREADS": "1", "TORCHDYNAMO_DISABLE": "1", "GLOO_SOCKET_IFNAME": "lo"}
        return ours | job.launch.environment | _own_variables(job, configuration.knobs)
    knobs = configuration.knobs
    grouped = int(knobs.get("tp", 1)) > 1 or int(knobs.get("cp", 1)) > 1
    used = devices.used_nodes(job, configuration)
    older = any(capability_of(node.device) < _QUEUES for node in used)
    # Communication must be enqueued before the GEMM it overlaps with: Megatron-LM requires this below compute
    # capability 10.
    connections = {"CUDA_DEVICE_MAX_CONNECTIONS": "1"} if grouped and older else {}
    # Transformer Engine refuses user buffers on devices without multicast, unless a variable turns multicast off
    # (pytorch/module/base.py: initialize_ub).
    without = any(0 < capability_of(node.device) < _MULTICAST for node in used)
    if knobs.get("tp_comm_overlap") and without:
        connections["UB_SKIPMC"] = "1"
    return {**connections, **newer.variables(knobs), **job.launch.environment, **_own_variables(job, knobs)}


def _own_variables(job: Job, knobs: dict[str, Value]) -> dict[str, str]:
    """Returns the environment variables set by knobs of the job file (sets = "env:NAME")."""
    own = {n: sets.removeprefix(newer.ENV) for n, (sets, _) in own_knobs(job).items() if sets.startswith(newer.ENV)}
    return {variable: newer.nccl_text(knobs[name]) for name, variable in own.items() if name in knobs}


def user_buffers(multiprocessors: object) -> str:
    """Returns the YAML file for --tp-comm-overlap-cfg."""
    return "".join(f"{name}:\n  num_sm: {multiprocessors}\n" for name in OVERLAPPED_GEMMS)


def _model(model: Model) -> Flags:
    latent = model.latent
    found: Flags = {
        "--num-layers": model.layers,
        "--hidden-size": model.hidden,
        "--num-attention-heads": model.heads,
        "--kv-channels": latent.v_head_dim if latent else model.head_dim,
        "--ffn-hidden-size": model.ffn,
        "--vocab-size": model.vocab,
        "--position-embedding-type": {"rope": "rope", "learned": "learned_absolute"}[model.position],
        "--normalization": {"layernorm": "LayerNorm", "rmsnorm": "RMSNorm"}[model.norm],
        "--attention-dropout": 0.0,
        "--hidden-dropout": 0.0,
    }
    if model.kv_heads != model.heads:
        found |= {"--group-query-attention": True, "--num-query-groups": model.kv_heads}
    if latent:
        found |= _latent(latent)
    if model.gated:
        found["--swiglu"] = True
    if model.qk_norm:
        found["--qk-layernorm"] = True
    if not model.bias:
        found["--disable-bias-linear"] = True
    if model.qkv_bias:
        found["--add-qkv-bias"] = True
    if not model.tied:
        found["--untie-embeddings-and-output-weights"] = True
    if model.dtype == "bf16":
        found["--bf16"] = True
    if model.experts:
        found |= {
            "--num-experts": model.experts,
            "--moe-router-topk": model.topk,
            "--moe-ffn-hidden-size": model.expert_ffn,
            # No load balancing, and no limit on tokens per expert: both would make losses depend on how the batch is
            # split.
            _BALANCING: "none",
            "--moe-router-dtype": "fp32",
        }
        if model.topk == 1:  # Megatron requires this flag for top-1 routing
            found["--moe-router-pre-softmax"] = True
        if model.shared_ffn:
            found["--moe-shared-expert-intermediate-size"] = model.shared_ffn
        if model.dense_layers:
            with_experts = model.layers - model.dense_layers
            found["--moe-layer-freq"] = f"([0]*{model.dense_layers}+[1]*{with_experts})"
    return found


def _latent(latent: Latent) -> Flags:
    """Returns the flags for latent attention. DeepSeek's norms of the latent vectors are QK norms in Megatron. Rotary
    embeddings are not fused, because Megatron declares the fused kernel for latent attention to be experimental
    (core/transformer/transformer_config.py)."""
    queries: Flags = {"--q-lora-rank": latent.q_lora_rank} if latent.q_lora_rank else {}
    return {
        "--multi-latent-attention": True,
        **queries,
        "--kv-lora-rank": latent.kv_lora_rank,
        "--qk-head-dim": latent.qk_nope_head_dim,
        "--qk-pos-emb-head-dim": latent.qk_rope_head_dim,
        "--v-head-dim": latent.v_head_dim,
        "--qk-layernorm": True,
        "--no-rope-fusion": True,
    }


def _kernels(job: Job) -> Flags:
    """Returns the flags for the implementation of layers and for fused kernels."""
    if job.launch.transformer_engine:
        grouped: Flags = {"--moe-grouped-gemm": True} if job.model.experts else {}
        # Causal attention needs no mask. Building a mask of seq_len² elements per sample in the data loader takes
        # longer than a GPU's step.
        masks: Flags = {} if "--reset-attention-mask" in job.launch.current else {_NO_MASKS: True}
        unfused = {} if _fusible_activation(job.model) else _without_fused_activation(job.model)
        return {"--transformer-impl": "transformer_engine", **grouped, **masks, **unfused}
    found: Flags = {"--transformer-impl": "local"}
    # Disables fused kernels that Megatron-LM enables by default, because they need Apex or Transformer Engine.
    found |= dict.fromkeys(("--no-persist-layer-norm", "--no-gradient-accumulation-fusion"), True)
    found |= dict.fromkeys(("--no-masked-softmax-fusion", "--no-rope-fusion", "--attention-softmax-in-fp32"), True)
    on_cpu = devices.device_kind(job) == "cpu"
    if on_cpu:
        found["--no-bias-dropout-fusion"] = True
    if on_cpu or not _fusible_activation(job.model):
        found |= _without_fused_activation(job.model)
    return found


def _without_fused_activation(model: Model) -> Flags:
    return {"--no-bias-swiglu-fusion" if model.gated else "--no-bias-gelu-fusion": True}


def _fusible_activation(model: Model) -> bool:
    """Whether the activation has a fused kernel. Otherwise, Megatron would raise an error if asked to fuse it."""
    if model.gated:
        return not (model.experts and model.bias)
    return model.bias and not model.experts


def _parallelism(knobs: dict[str, Value], layers: int) -> Flags:
    found: Flags = {flag: knobs[knob] for knob, flag in _DEGREES.items() if knob in knobs}
    if int(knobs.get("vpp", 1)) == 1:
        found.pop("--num-virtual-stages-per-pipeline-rank", None)
    elif not knobs.get("overlap_p2p"):
        found["--no-overlap-p2p-communication"] = True
    split = str(knobs.get("stage_split", "even"))
    if split.startswith("spread"):
        found.pop("--num-virtual-stages-per-pipeline-rank", None)  # implied by the layout string
        found[unequal.LAYOUT] = newer.layout(layers, int(knobs["pp"]) * int(knobs.get("vpp", 1)), newer.SPREAD[split])
        return found
    for part in ("embedding", "loss"):
        if part in split:
            found[f"--account-for-{part}-in-pipeline-split"] = True
    for end in ("first", "last"):
        if knobs.get(f"{end}_layers"):
            found[f"--decoder-{end}-pipeline-num-layers"] = knobs[f"{end}_layers"]
    return found


def _recomputation(knobs: dict[str, Value]) -> Flags:
    match knobs.get("ar", "none"):
        case "selective":
            modules = str(knobs.get("ar_modules", "core_attn")).split("+")
            return {"--recompute-granularity": "selective", "--recompute-modules": modules}
        case "full":
            return {
                "--recompute-granularity": "full",
                "--recompute-method": knobs.get("ar_method", "uniform"),
                "--recompute-num-layers": knobs.get("ar_layers", 1),
            }
    return {}


def _communication(knobs: dict[str, Value]) -> Flags:
    found: Flags = {flag: True for knob, flag in _SWITCHES.items() if knobs.get(knob)}
    if "ddp_bucket" in knobs:
        found["--ddp-bucket-size"] = int(float(knobs["ddp_bucket"]) * _MIB_OF_FP32)
    if "dispatcher" in knobs:
        found |= newer.dispatcher(str(knobs["dispatcher"]))
    if "cp_comm" in knobs:
        found |= newer.context_parallel(str(knobs["cp_comm"]), int(knobs["cp"]))
    if knobs.get("ce_fusion"):
        found |= {"--cross-entropy-loss-fusion": True, "--cross-entropy-fusion-impl": "te"}
    if "tp_comm" in knobs:
        found[USER_BUFFERS] = knobs["tp_comm"]  # number of SMs, which a launch writes to a file
    return found


def _own(job: Job, knobs: dict[str, Value]) -> Flags:
    """Returns the flags of the job file's knobs by the rule of Megatron-LM's parser: a flag is named after its field,
    with the prefix --no- to disable a field that is enabled by default."""
    found: Flags = {}
    for name, (sets, default) in own_knobs(job).items():
        if (
            sets.startswith(newer.ENV)
            or name not in knobs
            or (isinstance(knobs[name], bool) and knobs[name] == bool(default))
        ):
            continue
        flag = _FLAG_OF_FIELD.get(sets) or ("--" + sets.split(".")[-1].lstrip("-").replace("_", "-"))
        off = knobs[name] is False
        found[flag.replace("--", "--no-", 1) if off else flag] = True if off else knobs[name]
    known = {*_DEGREES, *_SWITCHES, *_FROM_ELSEWHERE, *newer.KNOBS, *newer.of_catalog(), *own_knobs(job)}
    unknown = [n for n in knobs if n not in known]
    kinds = {name for kind in device_counts(job) for name in (kind, unequal.knob_of(kind))}
    if left := [n for n in unknown if n not in kinds]:
        raise AutoscoutError(f"no flag of Megatron-LM is known for the knob {left[0]}", 2)
    return found
