"""Compares the user's current Megatron-LM command (`[launch] current`) with the job, and finds its configuration."""

import ast
import re
from collections.abc import Iterator, Mapping

from autoscout.job.words import listed
from autoscout.line.kinds import arguments, refused
from autoscout.line.launch_line import Flags, Line
from autoscout.space.graph import Space
from autoscout.targets import current_launch
from autoscout.targets.megatron.arguments import SCRIPT, USER_BUFFERS, flags
from autoscout.targets.megatron.persons import PROGRAM
from kb.records import AutoscoutError, Configuration, Job, Value

# Megatron-LM's bucket has max(40, replicas) million elements; the knob's nearest value is 128 MiB up to 47 replicas.
USUAL: Mapping[str, Value] = {"ddp_bucket": 128}
# Flags of the model and the batch, which must agree with the job.
_WORKLOAD = (
    *("--num-layers", "--hidden-size", "--num-attention-heads", "--num-query-groups", "--kv-channels"),
    *("--ffn-hidden-size", "--num-experts", "--moe-router-topk", "--moe-ffn-hidden-size"),
    *("--moe-shared-expert-intermediate-size", "--q-lora-rank", "--kv-lora-rank", "--qk-head-dim"),
    *("--qk-pos-emb-head-dim", "--v-head-dim", "--seq-length", "--global-batch-size"),
)
# Flag of a part of the model → the job's field. The job must have each part that launch.current has.
_PARTS = {
    "--num-experts": "experts",
    "--moe-shared-expert-intermediate-size": "shared_ffn",
    "--moe-layer-freq": "dense_layers",
    "--multi-latent-attention": "latent",
    "--swiglu": "gated",
    "--add-qkv-bias": "qkv_bias",
    "--qk-layernorm": "qk_norm",
}
# Flags of launch.current that AutoScout's launch may lack, because they have no effect or different flags with the same
# effect are set.
_ALIKE = (
    *("--sequence-parallel", "--recompute-activations", "--use-rotary-position-embeddings", "--vocab-size"),
    *("--make-vocab-size-divisible-by", "--no-create-attention-mask-in-dataloader", "--no-masked-softmax-fusion"),
)
# Flag → the knob that a job must allow for a line with this flag.
_ASKED = {
    "--fp8-format": "fp8",
    "--cuda-graph-impl": "cuda_graph",
    "--use-megatron-fsdp": "fsdp",
    "--use-precision-aware-optimizer": "moments",
    "--optimizer-cpu-offload": "offload",
    "--num-distributed-optimizer-instances": "instances",
    "--overlap-moe-expert-parallel-comm": "overlap_experts",
    "--delay-wgrad-compute": "delay_wgrad",
    "--moe-flex-dispatcher-backend": "dispatcher",
    "--hierarchical-context-parallel-sizes": "cp_comm",
}
ASKED = list(dict.fromkeys(_ASKED.values()))
_CHUNKS = "--num-virtual-stages-per-pipeline-rank"
_NO_SETTINGS = ("--data-path", "--make-vocab-size-divisible-by")  # flags that do not affect the configuration
# Flags of launch.current that determine knobs, so their values must be literal, not shell variables.
_OF_KNOBS = (
    *("--micro-batch-size", "--tensor-model-parallel-size", "--pipeline-model-parallel-size"),
    *("--context-parallel-size", "--expert-model-parallel-size", "--expert-tensor-parallel-size"),
    *("--num-layers-per-virtual-pipeline-stage", _CHUNKS, "--recompute-granularity", "--recompute-num-layers"),
)
_MOST_LAYERS = 10_000  # maximum length of a parsed layer pattern
_OFF = (["none"], ["1"])  # values that have the same effect as omitting the flags
RECIPE = "delayed"  # Megatron-LM's default FP8 recipe
_NODES = ("--nnodes", "--num_nodes", "-N", "--nodes")
_EACH = ("--nproc-per-node", "--nproc_per_node", "--gpus-per-node", "--ntasks-per-node")


def training_line_problems(job: Job) -> Iterator[str]:
    """Yields a sentence for each contradiction between launch.current and the job, and for a launch.current without
    flags of Megatron-LM."""
    try:
        given = _flags_today(job)
    except AutoscoutError as error:
        yield str(error)
        return
    if not given.keys() & {"--micro-batch-size", "--tensor-model-parallel-size", "--num-layers", "--seq-length"}:
        yield (
            "launch.current has none of Megatron-LM's flags; write the whole command line with its values, in place of "
            "variables ($TP_SIZE) and of a script that contains the line"
        )
        return
    if why := not_had(current_launch.line_of(job)):
        yield f"launch.current {why}"
    for flag in _OF_KNOBS:
        if any(re.search("[$`]", word) for word in given.get(flag, ())):
            yield (
                f"launch.current has {flag} {' '.join(given[flag])}; write the value, because no shell expands "
                "variables here"
            )
    of_job = flags(job, Configuration({"mbs": 1}))
    yield from current_launch.contradictions(given, {flag: of_job[flag] for flag in _WORKLOAD if flag in of_job})
    yield from _parts(job, given, of_job)
    if "--sft" in given and job.task != "finetune":
        yield (
            "launch.current trains on conversations (--sft), with one sequence per micro batch; set task = "
            "'finetune', and traffic.lengths to the lengths of the conversations"
        )
    nodes, each = (next((given[f][0] for f in names if given.get(f)), "") for names in (_NODES, _EACH))
    if each.isdigit() and (nodes or "1").isdigit() and int(nodes or 1) * int(each) != job.devices:
        yield (
            f"launch.current starts {int(nodes or 1)} × {each} ranks, but the cluster has {job.devices} devices; make "
            f"them agree"
        )


def _parts(job: Job, given: Flags, of_job: Mapping[str, object]) -> Iterator[str]:
    """Yields each part of the line's model that the job's model lacks. Otherwise, experiments would train a different
    model."""
    for flag, field in _PARTS.items():
        words = " ".join(given.get(flag, ()))
        if (
            flag in given
            and flag not in of_job
            and words != "1"
            and (flag != "--moe-layer-freq" or dense_layers(given))
        ):
            yield f"launch.current has {flag} {words}".rstrip() + f", but the job has no model.{field}; make them agree"
    pattern = "".join(given.get("--moe-layer-freq", ()))
    dense = dense_layers(given)
    if pattern and "--moe-layer-freq" in of_job and dense is not None and dense != job.model.dense_layers:
        yield (
            f"launch.current has --moe-layer-freq {pattern}, but the job has model.dense_layers = "
            f"{job.model.dense_layers}; make them agree"
        )


def dense_layers(given: Flags) -> int | None:
    """Returns the number of initial layers without experts, from --moe-layer-freq: a number N means experts in every
    Nth layer; a list such as [0]*2+[1]*6 has a 0 (no experts) or 1 for each layer. None if a later layer has no experts
    either, or if the flag cannot be parsed."""
    text = "".join(given.get("--moe-layer-freq", ["1"]))
    if text.isdecimal():
        return 0 if text == "1" else None
    try:
        kinds = "".join(map(str, _listed(ast.parse(text, mode="eval").body)))
    except (SyntaxError, ValueError):
        return None
    found = re.fullmatch("(0*)1+", kinds)
    return len(found[1]) if found else None


def _listed(node: ast.expr) -> list[int]:
    """Evaluates an expression of lists and their repetitions. Errors: ValueError for any other expression."""
    match node:
        case ast.List():
            return [0 if isinstance(each, ast.Constant) and each.value == 0 else 1 for each in node.elts]
        case ast.BinOp(left=left, op=ast.Add(), right=right):
            return _listed(left) + _listed(right)
        case ast.BinOp(left=left, op=ast.Mult(), right=ast.Constant(value=int(times))) if times <= _MOST_LAYERS:
            return _listed(left) * times
    raise ValueError("no list")


def unmodelled(given: Flags) -> list[str]:
    """Returns the flags, with their values, that a job cannot describe."""
    found = [*refused(PROGRAM, given)]
    if "--moe-layer-freq" in given and dense_layers(given) is None:
        found.append(f"--moe-layer-freq {' '.join(given['--moe-layer-freq'])}")
    return found


def not_had(line: Line) -> str:
    """Returns the end of a sentence on the settings of a pretrain_gpt.py line that a job cannot describe; "" if there
    are none. Errors: AutoscoutError (exit 2) for an unclosed quote."""
    if not (found := unmodelled(line.after(SCRIPT))):
        return ""
    return (
        f"has {listed(found)}, which neither [model] nor a knob of target = 'megatron' covers, so the measured "
        "training would differ from the exported one; tune the line unchanged with target = 'command' (`autoscout "
        "init` without --target)"
    )


def launched(space: Space, job: Job) -> tuple[Configuration, list[str]]:
    """Returns (the valid configuration nearest to launch.current's, notes for the user)."""

    def mapped(configuration: Configuration) -> Mapping[str, object]:
        found = flags(job, Configuration({"mbs": 1, **configuration.knobs}))
        return {flag: value for flag, value in found.items() if flag not in _NO_SETTINGS}

    found, notes = current_launch.configuration(space, _flags_today(job), mapped, USUAL)
    off = [name for name in asked(_flags_today(job)) if name not in job.space.allow]
    if off:
        notes = [*notes, f"{listed(off)} in launch.current is ignored; to use it, set [space] allow = {off}"]
    there, known = mapped(found), arguments(PROGRAM)
    other = [
        flag
        for flag, words in _flags_today(job).items()
        if flag in known and known[flag].measured == "job" and known[flag].changes(words)
        if flag not in {*there, *_ALIKE} and _ASKED.get(flag) not in off
    ]
    if other:
        notes = [*notes, f"{listed(other)} in launch.current is ignored, because no configuration of this job has it"]
    return found, notes


def asked(given: Flags) -> list[str]:
    """Returns the knobs that need the job's permission and that the launch line's flags use."""
    return list(dict.fromkeys(knob for flag, knob in _ASKED.items() if given.get(flag, ["none"]) not in _OFF))


def _flags_today(job: Job) -> dict[str, list[str]]:
    return respelled(current_launch.line_of(job).flags, job.model.layers)


def respelled(given: dict[str, list[str]], layers: int) -> dict[str, list[str]]:
    """Returns the flags as AutoScout's exports have them: older names are replaced, and implied flags added."""
    given = dict(given)
    given.pop(USER_BUFFERS, None)  # its value is a file name
    if "--recompute-activations" in given:
        given |= {"--recompute-granularity": ["selective"]}
    method = given.get("--activations-checkpoint-method") or ["uniform"] * ("--checkpoint-activations" in given)
    if method:
        at_once = given.get("--activations-checkpoint-num-layers", ["1"])
        given |= {"--recompute-granularity": ["full"], "--recompute-method": method, "--recompute-num-layers": at_once}
    per_stage = "".join(given.pop("--num-layers-per-virtual-pipeline-stage", []))
    stages = "".join(given.get("--pipeline-model-parallel-size", ["1"]))
    if per_stage.isdigit() and stages.isdigit() and int(per_stage) * int(stages):
        given[_CHUNKS] = [str(layers // (int(per_stage) * int(stages)))]
    if given.get(_CHUNKS) == ["1"]:  # Megatron-LM does not interleave with a single chunk
        del given[_CHUNKS]
    if "--num-experts" in given and (tp := given.get("--tensor-model-parallel-size", ["1"])) != ["1"]:
        given.setdefault("--expert-tensor-parallel-size", tp)  # ModelParallelConfig's default is tp
    if "--fp8-format" in given:
        given.setdefault("--fp8-recipe", [RECIPE])
    if "--optimizer-cpu-offload" in given:
        given.setdefault("--optimizer-offload-fraction", ["1.0"])
    if "--recompute-granularity" in given and given["--recompute-granularity"] == ["selective"]:
        given.setdefault("--recompute-modules", ["core_attn"])
    if "--exp-avg-dtype" not in given:  # without this flag, moments have the default dtype
        given.pop("--use-precision-aware-optimizer", None)
    return given
