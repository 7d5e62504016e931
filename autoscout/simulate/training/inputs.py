"""Completes the columns of a job, a space or a table with all knobs and attributes that the training models read.

All defaults of absent or empty (NaN, "") columns are in this file."""

from types import SimpleNamespace
from typing import Any

import numpy as np

from autoscout.simulate.combinations import distinct
from autoscout.simulate.member import Columns
from kb.records import AutoscoutError

REQUIRED = ("layers", "hidden", "heads", "seq_len")  # to predict times, global_batch is also required

# Values of absent or empty columns. A string names another column.
DEFAULTS: dict[str, Any] = {
    "global_batch": np.nan,
    # the model
    "kv_heads": "heads",
    "vocab": 51200.0,  # GPT-2's, padded as Megatron does
    "experts": 0.0,
    "topk": 2.0,
    "expert_bias": 0.0,  # 1: experts have biases and clamped gates (expert_biases.py)
    "shared_ffn": 0.0,  # width of the shared experts, which every token passes through
    "dense_layers": 0.0,  # number of leading layers without experts
    "bias": 1.0,
    "qk_norm": 0.0,  # 1: norms on the query and key of every head
    "qkv_bias": 0.0,  # 1: biases on the query, key and value projections only
    "tied": 0.0,
    "learned_positions": 0.0,
    # latent attention, with the names of DeepSeek's config.json; kv_lora_rank 0: ordinary attention
    **dict.fromkeys(("kv_lora_rank", "q_lora_rank", "qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim"), 0.0),
    # the layout
    "tp": 1.0,
    "pp": 1.0,
    "cp": 1.0,
    "ep": 1.0,
    "etp": 1.0,
    "vpp": 1.0,
    "mbs": 1.0,
    "sp": 0.0,
    "per_node": np.nan,  # devices per node; NaN: as in the hardware file
    # activation recomputation: none, selective or full; `recomputed`: stated share of the layers' work that is repeated
    "ar": "none",
    "ar_method": "uniform",
    "ar_layers": 1.0,
    "recomputed": np.nan,
    # data parallelism: Megatron's distributed optimizer, or a ZeRO stage (3 is FSDP) sharded over `zero_group` ranks
    "distopt": 0.0,
    "zero": 0.0,
    "zero_group": np.nan,
    "fsdp": "none",  # Megatron-FSDP's sharding strategy, converted to the equivalent ZeRO stage
    "moments": "fp32",  # precision of Adam's moments; the master weights stay in fp32
    "offload": 0.0,  # share of the optimizer state kept on the host
    "overlap_grad": 0.0,
    "overlap_param": 0.0,
    "gathered_bytes": 2.0,  # bytes per weight of the all-gather after a step
    "ddp_bucket": 160.0,  # MiB of fp32 gradients per bucket: about Megatron's 40 M elements
    # settings of DeepSpeed (targets/deepspeed/catalog.toml)
    "masters_apart": 0.0,  # 1: ZeRO-3 shards 16-bit weights and fp32 master weights; 0: only fp32 weights (FSDP)
    "reduced_each": 0.0,  # 1: gradients are reduced after every micro batch; 0: once per step
    "reduce_elements": np.nan,  # gradients per reduction; NaN: all, or with overlap_grad one ddp_bucket
    "copied_elements": 0.0,  # elements in the buffer of gradients to reduce
    "kept_elements": 0.0,  # weights that ZeRO-3 keeps gathered until the backward pass
    "near_group": 0.0,  # ZeRO++ hpZ: ranks that share a second copy of the weights for backward; 0: none
    "in_turn": 0.0,  # 1: ZeRO-3's communication does not overlap with compute
    "offload_weights": 0.0,  # 1: unused weights are kept on the host
    "cpu_adam": 0.0,  # share of the optimizer step that runs on the host
    # limit on NCCL's channels (max_ctas) between replicas and between context parallel ranks; NaN: NCCL's choice
    "dp_channels": np.nan,
    "cp_channels": np.nan,
    "tp_comm_overlap": 0.0,
    "tp_comm": 16.0,
    "tp_comm_dgrad": 0.0,  # 1: GEMMs overlap with the scatter of input gradients (tp_comm_overlap_rs_dgrad)
    "overlap_p2p": 0.0,
    "drained": np.nan,  # pipeline drains after this many rounds of pp micro batches; NaN: once per step
    "dispatcher": "alltoall",
    "cp_comm": "p2p",
    "fp8_attention": 0.0,  # 1: context parallel attention sends 8-bit values; its kernels are timed as 16-bit kernels
    "overlap_experts": 0.0,
    "delay_wgrad": 0.0,
    # the software
    "attention": "",  # a name in ATTENTION; "": flash or unfused, depending on te and the head size
    "te": 1.0,
    "dropout": 0.0,
    "deterministic": 0.0,  # 1: only deterministic kernels
    "fused_norm": 1.0,  # 1: one kernel, which keeps only its input; 0: plain PyTorch operators
    "fused_activation": 1.0,  # 1: fused activation, rotary embedding and softmax of unfused attention
    "fused_gate": "fused_activation",  # 0: activation and multiplication by the gate are two operators
    "norm_copy": 0.0,  # 1: norms copy their input to fp32
    "graphs": 0.0,  # 1: layers run as CUDA graphs, so no device waits for kernel launches
    "transposes": 0.0,  # 1: frozen 8-bit weights are transposed for every input gradient instead of stored twice
    "op_fuser": 0.0,  # 1: Transformer Engine fuses casts into norms and gates, and an adapter's operators
    "hub": 0.0,  # bytes per weight of Hugging Face Transformers' modules (hub_layers.py); 0: other layers
    "foreach": 0.0,  # 1: PyTorch's foreach optimizer, which copies all trained parameters
    "grads_apart": 0.0,  # 1: gradients are separate tensors, summed by a kernel and copied to buckets and back
    "split_loss": 1.0,  # 1: logits are split over tp; 0: whole rows of logits, under autocast
    "ce_fusion": np.nan,  # loss: 1: Transformer Engine's in-place kernel; 0: plain operators; NaN: unknown
    "lora": 0.0,  # 1: LoRA; 2: QLoRA (frozen weights in 4 bits); 0: full training
    "adapters": 0.0,  # 0: adapters on queries and values; 1: on every linear layer
    "adapter_dropout": 1.0,  # 1: adapters drop inputs and scale outputs; 0: they scale only their inner values
    "lora_rank": 16.0,  # the rank of MLPerf's llama2_70b_lora
    # summed input and output widths of linear layers with adapters; NaN: those of attention, and with `adapters` all
    "adapter_width": np.nan,
    "frozen_layers": 0.0,  # number of leading layers that are frozen, with the embedding; 0: all layers are trained
    # packing: 1 if a sequence contains several samples; packed_share: sequences per sample; packed_context: mean length
    # of a sample, weighted by tokens
    "packing": 0.0,
    "packed_share": 1.0,
    "packed_context": "seq_len",
    "norms": 2.0,  # per layer
    # RL post-training: GiB of the rollout engine during training (resident_gib) and rollouts (engine_gib); shares of
    # weights and optimizer state that the trainer keeps during rollouts; bytes per weight of the reference model
    "resident_gib": 0.0,
    "engine_gib": 0.0,
    "kept_weights": 1.0,
    "kept_state": 1.0,
    "reference_bytes": 0.0,
    "node_gb_s": np.nan,  # GB/s between nodes, shared by a node's devices; NaN: as in the hardware file
    "kinds_gb_s": np.nan,  # GB/s between kinds of device; NaN: as between nodes
}


# All columns that the training and memory models read, except the number of devices of each kind.
READ = (
    *REQUIRED, *DEFAULTS, "ar_modules", "head_dim", "dtype", "dtype_bytes", "gated", "ffn", "expert_ffn", "params",
    "fp8", "gpus", "dp", "grad_bytes", "software", "gpu", "memory_gib", "cuda", "power_cap",
)  # fmt: skip

# Columns without effect on memory.
TIMES_ONLY = frozenset({
    "overlap_grad", "overlap_param", "ddp_bucket", "tp_comm_overlap", "tp_comm", "tp_comm_dgrad", "overlap_p2p",
    "dispatcher", "per_node", "node_gb_s", "kinds_gb_s", "power_cap", "norm_copy", "grads_apart", "graphs", "op_fuser",
    "transposes", "gathered_bytes", "cp_comm", "fp8_attention", "reduced_each", "reduce_elements", "in_turn",
    "dp_channels", "cp_channels", "drained", "adapter_dropout", "expert_bias",
})  # fmt: skip


class Inputs(SimpleNamespace):
    """All columns in READ as float arrays: (n,), or (1,) if all rows agree; (profiles, n) or (profiles, 1) where
    software profiles (software.py) differ. Text values are coded as integers."""

    n: int
    dtype: str

    def take(self, index: np.ndarray) -> "Inputs":
        picked = {
            k: v[..., index] if isinstance(v, np.ndarray) and v.shape[-1] > 1 else v for k, v in vars(self).items()
        }
        return Inputs(**{**picked, "n": len(index)})


# Codes of text values, by column.
AR = {"none": 0.0, "no": 0.0, "selective": 1.0, "full": 2.0}
# flash: the fastest FlashAttention version of the device; masked: PyTorch's memory-efficient kernel with a mask tensor
ATTENTION = {"unfused": 0.0, "flash1": 1.0, "flash2": 2.0, "flash": 3.0, "masked": 4.0}
# Parts of a layer that selective recomputation can repeat, with the names of Megatron-core's modules.
MODULES = {
    "again_core": ("core_attn",),
    "again_block": ("mlp", "moe"),
    "again_activation": ("moe_act",),
    "again_norms": ("layernorm",),
    "again_up": ("mla_up_proj",),
}
_NONE_NAMED = 1 << len(MODULES)  # bit for rows that list no modules
METHOD = {"uniform": 0.0, "block": 1.0}  # recomputation methods as numbers
# Communication of context parallel attention. 1: heads are exchanged; 0: timed as a ring.
CP_COMM = {"a2a": 1.0, **dict.fromkeys(("p2p", "all_gather", "a2a2+p2p", "a2a4+p2p", "a2a8+p2p"), 0.0)}
FSDP = {"none": 0.0, "optim": 1.0, "optim_grads": 2.0, "optim_grads_params": 3.0}  # equivalent ZeRO stages
MOMENTS = {"fp32": 4.0, "bf16": 2.0, "fp8": 1.0}  # bytes per parameter of each of Adam's two moments
DISPATCHER = {"alltoall": 0.0, "allgather": 1.0, "flex": 2.0, "hybridep": 2.0}  # of tokens to experts; flex uses DeepEP


CODED = {"ar": AR, "ar_method": METHOD, "cp_comm": CP_COMM, "dispatcher": DISPATCHER, "fsdp": FSDP, "moments": MOMENTS}


def coded(columns: Columns) -> dict[str, Any]:
    """The columns with text values replaced by their codes. `complete` would also convert them, but row by row;
    converting each distinct text once is faster."""
    found = {}
    for name in (*CODED, "ar_modules"):
        if name in columns:
            values = np.atleast_1d(np.asarray(columns[name]))
            first, of = distinct({name: values}, [name], len(values))
            few = values[first]
            found[name] = (_parts_named(few) if name == "ar_modules" else _codes(few, CODED[name], name))[of]
    return {**columns, **found}


def complete(columns: Columns) -> Inputs:
    """The columns with all defaults filled in. Errors: AutoscoutError (exit 2) that names missing columns."""
    missing = [name for name in REQUIRED if name not in columns]
    if missing:
        raise AutoscoutError(f"an analytic model needs the columns {', '.join(missing)}", 2)
    x: dict[str, Any] = {name: _floats(columns[name]) for name in REQUIRED}
    for name, default in DEFAULTS.items():
        if name in CODED or name == "attention":
            continue
        given = _floats(columns[name]) if name in columns else np.array([np.nan])
        otherwise = x[default] if isinstance(default, str) else default
        x[name] = np.where(np.isnan(given), otherwise, given)
    for name, known in CODED.items():
        codes = _codes(columns.get(name, DEFAULTS[name]), known, name)
        x[name] = np.where(np.isnan(codes), known[DEFAULTS[name]], codes)
    x["zero"] = np.maximum(x["zero"], x["fsdp"])
    x["head_dim"] = _given(columns, "head_dim", x["hidden"] / x["heads"])
    # Transformer Engine's fused kernels need head sizes divisible by 8 (get_attention_backend). A fractional size comes
    # from a table without the number of heads, and counts as supported.
    taken = np.isin(x["head_dim"] % 8, range(1, 8), invert=True) | (x["kv_lora_rank"] > 0)
    fused = (x["te"] > 0) & taken
    x["attention"] = _attention(columns.get("attention", ""), fused)
    x |= _modules(columns, x["ar"], x["attention"])
    x["dtype"] = _dtype(columns)
    x["gated"] = _given(columns, "gated", _gated(columns, x))
    x["ffn"] = _given(columns, "ffn", np.where(x["gated"] > 0, 8 * x["hidden"] / 3, 4 * x["hidden"]))
    x["expert_ffn"] = _given(columns, "expert_ffn", x["ffn"])
    x["gpus"] = _gpus(columns, x)
    x["dp"] = _given(columns, "dp", np.maximum(x["gpus"] // (x["tp"] * x["pp"] * x["cp"]), 1))
    sequences = x["global_batch"] * np.where(x["packing"] > 0, x["packed_share"], 1.0)
    x["micro_batches"] = np.maximum(np.ceil(sequences / (x["mbs"] * x["dp"])), 1)  # NaN without a global batch
    # Megatron accumulates the gradients of bf16 models in fp32, those of fp16 models in fp16.
    x["grad_bytes"] = _given(columns, "grad_bytes", np.array([2.0 if x["dtype"] == "fp16" else 4.0]))
    n = max((np.shape(value) or (1,))[-1] for name, value in columns.items() if name != "degrees")
    return Inputs(**x, n=n)


def _floats(value: Any) -> np.ndarray:
    return np.atleast_1d(np.asarray(value, dtype=float))


def _given(columns: Columns, name: str, otherwise: np.ndarray) -> np.ndarray:
    """The column, with `otherwise` where it is absent, empty or 0 (which means "default" in job files)."""
    if name not in columns:
        return otherwise
    given = _floats(columns[name])
    unknown = np.isnan(given) | ((given == 0) & (name not in ("gated",)))
    return np.where(unknown, otherwise, given)


def _gpus(columns: Columns, x: dict[str, Any]) -> np.ndarray:
    degrees = x["tp"] * x["pp"] * x["cp"]
    replicas = _floats(columns["dp"]) if "dp" in columns else np.array([1.0])
    return _given(columns, "gpus", degrees * np.where(np.isnan(replicas), 1.0, replicas))


def _gated(columns: Columns, x: dict[str, Any]) -> np.ndarray:
    """(n,) 1 for a gated feed-forward block (three matrices), 0 for two matrices. If the columns do not state it, it is
    derived from the number of parameters and `ffn` if both are known, or else from the width, because ungated blocks
    are usually four times as wide as the hidden size, and gated blocks rarely are."""
    if "ffn" not in columns:
        return np.array([0.0])
    h, ffn = x["hidden"], _floats(columns["ffn"])
    by_width = np.where(np.isnan(ffn) | (ffn == 0) | (ffn == 4 * h), 0.0, 1.0)
    if "params" not in columns:
        return by_width
    experts, params = x["experts"], _floats(columns["params"])
    inner = np.where(experts > 0, experts * _floats(columns.get("expert_ffn", ffn)), ffn)
    attention = h * x["head_dim"] * (2 * x["heads"] + 2 * x["kv_heads"])
    rest = params - x["layers"] * (attention + h * experts) - x["vocab"] * h * 1.5
    known = (params > 0) & (inner > 0)
    return np.where(known, rest > 2.5 * x["layers"] * h * inner, by_width).astype(float)


def _dtype(columns: Columns) -> str:
    if found := str(precisions(columns)[0]):
        return found
    return "fp32" if np.all(_floats(columns.get("dtype_bytes", 2)) == 4) else "bf16"


def precisions(columns: Columns) -> np.ndarray:
    """(n,) names of the precisions; "" where unknown. All 8-bit recipes count as fp8."""
    names = np.atleast_1d(np.asarray(columns.get("dtype", ""), dtype=str))
    recipes = np.atleast_1d(np.asarray(columns.get("fp8", "none"), dtype=str))
    return np.where(np.isin(recipes, ["none", ""]), names, "fp8")


def by_precision(columns: Columns) -> list[tuple[np.ndarray, Columns]]:
    """(indices, columns) of the rows of each precision."""
    names = precisions(columns)
    arrays = {name: np.asarray(value) for name, value in columns.items() if name != "degrees"}
    n = max((a.shape[-1] for a in arrays.values() if a.ndim), default=1)
    if len(set(names.tolist())) == 1:
        return [(np.arange(n), columns)]
    groups = [np.flatnonzero(names == name) for name in sorted(set(names.tolist()))]
    return [(rows, {k: a[..., rows] if a.shape[-1:] == (n,) else a for k, a in arrays.items()}) for rows in groups]


def _attention(value: Any, fused: np.ndarray) -> np.ndarray:
    names = np.atleast_1d(np.asarray(value, dtype=str))
    codes = np.full(names.shape, np.nan)
    for name, code in ATTENTION.items():
        codes[names == name] = code
    # Transformer Engine fuses attention; Megatron's local layers compute the whole score matrix.
    return np.where(np.isnan(codes), np.where(fused, ATTENTION["flash"], ATTENTION["unfused"]), codes)


def _modules(columns: Columns, ar: np.ndarray, attention: np.ndarray) -> dict[str, np.ndarray]:
    """For each of MODULES, (n,) 1 where it is recomputed. Selective recomputation without `ar_modules` repeats the
    attention core, unless attention is fused."""
    if "ar_modules" not in columns:
        return {**dict.fromkeys(MODULES, np.zeros(1)), "again_core": 1.0 * (ar == AR["selective"]) * (attention == 0)}
    said = _parts_named(columns["ar_modules"])
    named = {part: said & 1 << i > 0 for i, part in enumerate(MODULES)}
    named["again_core"] = named["again_core"] | ((said & _NONE_NAMED > 0) & (attention == 0))
    return {part: 1.0 * ((ar == AR["selective"]) & here) for part, here in named.items()}


def _parts_named(value: Any) -> np.ndarray:
    """(n,) bit masks of the MODULES that a row lists; `_NONE_NAMED` if it lists none."""
    said = np.atleast_1d(np.asarray(value))
    if said.dtype.kind == "i":
        return said
    said = said.astype(str)
    found = np.zeros(len(said), dtype=np.int64)
    for value in set(said.tolist()):
        named = [not set(value.split("+")).isdisjoint(names) for names in MODULES.values()]
        found[said == value] = sum(1 << i for i, here in enumerate(named) if here) if value else _NONE_NAMED
    return found


def _codes(value: Any, known: dict[str, float], column: str) -> np.ndarray:
    names = np.atleast_1d(np.asarray(value))
    if names.dtype.kind == "f":
        return names
    names = names.astype(str)
    codes = np.full(len(names), np.nan)
    for name, code in known.items():
        codes[names == name] = code
    if np.any(strange := np.isnan(codes) & (names != "")):
        raise AutoscoutError(f"column {column}: '{names[strange][0]}' is none of {', '.join(known)}", 2)
    return codes
