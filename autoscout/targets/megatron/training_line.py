"""A person's present Megatron-LM command (`[launch] current`): what it says, as the job and a configuration have it."""

from collections.abc import Iterator, Mapping

from autoscout.space.graph import Space
from autoscout.targets import current_launch
from autoscout.targets.megatron.arguments import USER_BUFFERS, flags
from kb.records import AutoscoutError, Configuration, Job, Value

_BUCKET = 128  # MiB: the framework's own, 40 million elements or a million a replica, is the nearest to it up to 96
# What must be the same in the job: what is trained on how many devices.
_WORKLOAD = (
    *("--num-layers", "--hidden-size", "--num-attention-heads", "--num-query-groups", "--kv-channels"),
    *("--ffn-hidden-size", "--num-experts", "--moe-router-topk", "--moe-ffn-hidden-size"),
    *("--seq-length", "--global-batch-size"),
)
_NODES = ("--nnodes", "--num_nodes", "-N", "--nodes")
_EACH = ("--nproc-per-node", "--nproc_per_node", "--gpus-per-node", "--ntasks-per-node")


def problems(job: Job) -> Iterator[str]:
    """What of the line contradicts the job, or says nothing."""
    try:
        said = _said(job)
    except AutoscoutError as error:
        yield str(error)
        return
    if not said.keys() & {"--micro-batch-size", "--tensor-model-parallel-size", "--num-layers", "--seq-length"}:
        yield (
            "launch.current has none of Megatron-LM's flags; write the whole command line, without variables "
            "($TP_SIZE) or a script that holds it"
        )
        return
    of_job = flags(job, Configuration({"mbs": 1}))
    yield from current_launch.contradictions(said, {flag: of_job[flag] for flag in _WORKLOAD if flag in of_job})
    nodes, each = (next((said[f][0] for f in names if said.get(f)), "") for names in (_NODES, _EACH))
    if each.isdigit() and (nodes or "1").isdigit() and int(nodes or 1) * int(each) != job.devices:
        yield (
            f"launch.current starts {int(nodes or 1)} × {each} ranks, but the cluster has {job.devices} devices; make "
            f"them agree"
        )


def launched(space: Space, job: Job) -> tuple[Configuration, list[str]]:
    """The configuration that the line runs, or the nearest valid one, and what a person should know of that."""

    def mapped(configuration: Configuration) -> Mapping[str, object]:
        return flags(job, Configuration({"mbs": 1, **configuration.knobs}))

    usual: dict[str, Value] = {"ddp_bucket": _BUCKET}
    found, moved = current_launch.configuration(space, _said(job), mapped, usual)
    return found, current_launch.note(moved)


def _said(job: Job) -> dict[str, list[str]]:
    """The line's flags, and what older spellings of them mean today."""
    said = current_launch.said_of(job.launch.current)
    said.pop(USER_BUFFERS, None)  # a file
    if "--recompute-activations" in said:
        said |= {"--recompute-granularity": ["selective"]}
    per_stage = said.pop("--num-layers-per-virtual-pipeline-stage", [""])[0]
    stages = said.get("--pipeline-model-parallel-size", ["1"])[0]
    if per_stage.isdigit() and stages.isdigit() and int(per_stage) * int(stages):
        said["--num-virtual-stages-per-pipeline-rank"] = [str(job.model.layers // (int(per_stage) * int(stages)))]
    if "--recompute-granularity" in said and said["--recompute-granularity"] == ["selective"]:
        said.setdefault("--recompute-modules", ["core_attn"])
    return said
