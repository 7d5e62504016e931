"""Flags and variables for features added to Megatron-core after 0.10: layout strings, hierarchical context parallelism,
FP8 GEMMs, CUDA graphs, Megatron-FSDP, the precision-aware optimizer with offloading, and NCCL settings."""

from collections.abc import Mapping, Sequence

from autoscout.space.knob import KnobEntry
from autoscout.targets.target import shipped
from kb.records import Value

Flags = dict[str, Value | list[str]]
ENV = "env:"
# Value of the knob stage_split → number of layers that the loss counts as when layers are distributed over stages.
SPREAD = {"spread": 0, "spread+loss": 1, "spread+2loss": 2}
KNOBS = frozenset(
    (
        *("fp8", "cuda_graph", "fsdp", "moments", "instances", "offload"),
        *("nccl_ctas", "nccl_nvls", "nccl_proto", "nccl_buffer", "power_cap"),
    )
)
GRAPH_WARMUP = 1  # steps before graphs are captured: the worker's warm-up
_SCOPES = {"attn": ["attn"], "layer": ["attn", "mlp"], "attn+router": ["attn", "moe_router", "moe_preprocess"]}
_MIB = 2**20


def flags(knobs: Mapping[str, Value]) -> Flags:
    """Returns the flags of the knobs that need a newer release of Megatron-core."""
    found: Flags = {}
    if knobs.get("fp8", "none") != "none":
        found |= {"--fp8-format": "hybrid", "--fp8-recipe": knobs["fp8"]}
    if knobs.get("cuda_graph", "none") != "none":
        found["--cuda-graph-impl"] = "transformer_engine"
        found["--cuda-graph-scope"] = _SCOPES[str(knobs["cuda_graph"])]
        found["--cuda-graph-warmup-steps"] = GRAPH_WARMUP
        found["--te-rng-tracker"] = True
    if knobs.get("fsdp", "none") != "none":
        found["--use-megatron-fsdp"] = True
        found["--data-parallel-sharding-strategy"] = knobs["fsdp"]
        found["--ckpt-format"] = "fsdp_dtensor"
        found["--no-gradient-accumulation-fusion"] = True
    if knobs.get("moments", "fp32") != "fp32":
        found["--use-precision-aware-optimizer"] = True
        found |= dict.fromkeys(("--exp-avg-dtype", "--exp-avg-sq-dtype"), knobs["moments"])
    if knobs.get("offload"):
        found |= dict.fromkeys(("--use-precision-aware-optimizer", "--optimizer-cpu-offload"), True)
        found["--overlap-cpu-optimizer-d2h-h2d"] = True
        found["--optimizer-offload-fraction"] = knobs["offload"]
    if int(knobs.get("instances", 1)) > 1:
        found["--num-distributed-optimizer-instances"] = knobs["instances"]
    return found


def of_catalog() -> dict[str, KnobEntry]:
    """Returns the catalog's knobs whose `sets` is a flag, or switches followed by the flag that takes the value."""
    return {knob.name: knob for knob in shipped("megatron").knob if knob.sets.startswith("--")}


def flags_of_catalog(knobs: Mapping[str, Value]) -> Flags:
    found: Flags = {}
    for name, knob in of_catalog().items():
        if name in knobs and (value := knobs[name]) != knob.off:
            *switches, last = knob.sets.split(", ")
            found |= dict.fromkeys(switches, True)
            found[last] = value.split("+") if isinstance(value, str) else value
    return found


def dispatcher(name: str) -> Flags:
    if name not in ("flex", "hybridep"):
        return {"--moe-token-dispatcher-type": name}
    backend = "deepep" if name == "flex" else name
    return {"--moe-token-dispatcher-type": "flex", "--moe-flex-dispatcher-backend": backend}


def context_parallel(name: str, cp: int) -> Flags:
    """Returns the flags for the communication between context parallel ranks. "a2a4+p2p": all-to-all of heads within
    groups of 4 ranks, and a ring between the groups."""
    if "+" not in name:
        return {"--cp-comm-type": [name]}
    inner = int(name.removeprefix("a2a").removesuffix("+p2p"))
    return {
        "--cp-comm-type": ["a2a+p2p"],
        "--hierarchical-context-parallel-sizes": [str(inner), str(cp // inner)],
    }


def layout(layers: int, chunks: int, counted: int) -> str:
    """Returns a layout string that distributes layers over chunks as evenly as possible in pipeline order. The first
    chunks get the remainder, and the loss counts as `counted` layers. (61, 32, 2) gives "Ett|tt|…|tt|t|L" in
    Megatron-core's notation: E is the embedding, t a layer, L the loss."""
    whole, more = divmod(layers + counted, chunks)
    share = [whole + (i < more) for i in range(chunks)]
    share[-1] -= counted
    # if the loss counts more than a whole chunk, the last chunk has a negative share: take layers from earlier chunks
    for i in range(chunks - 2, -1, -1):
        if share[-1] >= 0:
            break
        share[i], share[-1] = share[i] - 1, share[-1] + 1
    return written(share)


def written(share: Sequence[int]) -> str:
    """Returns the layout string for these numbers of layers in the chunks."""
    return "|".join(["E" + "t" * share[0], *("t" * n for n in share[1:-1]), "t" * share[-1] + "L"])


def variables(knobs: Mapping[str, Value]) -> dict[str, str]:
    """Returns the environment variables that these knobs set on every rank."""
    found: dict[str, str] = {}
    if knobs.get("fsdp", "none") != "none" or knobs.get("overlap_experts"):
        # communication overlaps with kernels only in separate hardware queues
        found["CUDA_DEVICE_MAX_CONNECTIONS"] = "32"
    if knobs.get("offload_acts", "none") != "none":
        # without this variable, Transformer Engine (since 2.10) would also offload weights
        found["NVTE_CPU_OFFLOAD_V1"] = "1"
    if knobs.get("nccl_ctas"):
        found["NCCL_MAX_CTAS"] = nccl_text(knobs["nccl_ctas"])
    if "nccl_nvls" in knobs:
        found["NCCL_NVLS_ENABLE"] = nccl_text(knobs["nccl_nvls"])
    if knobs.get("nccl_proto", "auto") != "auto":
        found["NCCL_PROTO"] = nccl_text(knobs["nccl_proto"])
    if "nccl_buffer" in knobs:
        found["NCCL_BUFFSIZE"] = str(int(knobs["nccl_buffer"]) * _MIB)
    return found


def nccl_text(value: Value) -> str:
    """Converts a value to an environment variable's text: switches are 1 and 0."""
    return str(int(value)) if isinstance(value, bool) else str(value)
