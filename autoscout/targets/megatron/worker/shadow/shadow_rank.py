"""Runs one rank of a Megatron job of any world size without a GPU and without other ranks: builds and trains the model
with fake tensors and torch's fake process group, and records what happens.

    python shadow_rank.py FOLDER        answers FOLDER/question-N.json in FOLDER/answer-N.json, each in a fork

A question has the input of worker/train.py (`arguments`: Megatron-LM's flags, `device`), `world`, `rank`,
`micro_batches`, `stand_ins` (whether to replace Transformer Engine), and properties of the GPU: `flash`, `workspace`
(bytes that cuBLAS allocates), `deterministic_sm`. An answer is {"verdict": "starts" | "refused" | "untraceable", …}."""

import functools
import os
import sys
import time
from pathlib import Path
from typing import Any

# Adds the modules of train.py and the shared workers: the target's interpreter does not have our packages.
sys.path.insert(0, str(Path(__file__).parents[4] / "running" / "worker"))
sys.path.insert(0, str(Path(__file__).parents[1]))
sys.path.insert(0, str(Path(__file__).parent))

import leash
import rank_questions


def load(stand_ins: bool, version: str) -> None:
    """Imports everything before the first fork. If each fork imported, imports would take two thirds of its time."""
    import cpu_shim
    import endless
    import fake_torch

    endless.end()
    fake_torch.before_megatron()
    if stand_ins:
        import stand_in_package

        stand_in_package.install(version)
    import building  # noqa: F401
    import megatron.core.models.gpt.gpt_layer_specs  # noqa: F401

    fake_torch.after_megatron()
    if not stand_ins:
        cpu_shim.without_transformer_engine()


def answer(question: dict[str, Any]) -> dict[str, Any]:
    import torch
    from torch._subclasses.fake_tensor import FakeTensorMode
    from watch import watch

    began = time.process_time()
    try:
        with FakeTensorMode(allow_non_fake_inputs=True), watch:
            found = _trained(question)
    except Exception as error:
        return _refused(error, watch.phase, time.process_time() - began)
    usage = {"cpu_s": round(time.process_time() - began, 3), "torch": torch.__version__}
    return {"verdict": "starts", **found, **usage}


def _refused(error: Exception, phase: str, seconds: float) -> dict[str, Any]:
    import untraceable

    found = rank_questions.refusal(error, phase) | (untraceable.of(error) or {})
    return {**found, "cpu_s": round(seconds, 3)}


def _trained(question: dict[str, Any]) -> dict[str, Any]:
    import building
    import configs
    import fake_torch
    import torch
    from fused_layers import Settings
    from megatron.core import parallel_state, tensor_parallel
    from shadow_model import Script, build
    from torch.testing._internal.distributed.fake_pg import FakeStore
    from watch import watch

    watch.phase = "groups"
    if question["device"] == "cuda":
        fake_torch.as_on_a_gpu()
    script, config = Script.of(question)
    rank, world = question["rank"], question["world"]
    os.environ.update(RANK=str(rank), WORLD_SIZE=str(world), LOCAL_RANK="0")
    torch.distributed.init_process_group("fake", rank=rank, world_size=world, store=FakeStore())
    parallel_state.initialize_model_parallel(**configs.groups(config["given"]), create_gloo_process_groups=False)
    watch.names = _group_names()
    watch.phase = "config"
    shape = building.transformer_config(config)
    script.complete(shape)
    configs.ddp(config["given"])
    configs.optimizer(config["given"], 1e-5)
    tensor_parallel.model_parallel_cuda_manual_seed(1234)
    Settings.flash, Settings.fp8 = question.get("flash", True), bool(shape.fp8)
    Settings.multiprocessors = question.get("deterministic_sm", 0)
    Settings.once = question.get("placeholders_once", True)
    if shape.num_moe_experts:
        import routing

        routing.spread(shape.num_moe_experts, shape.moe_router_topk, question.get("imbalance", 1.0))
    watch.phase = "build"
    chunks, optimizer = build(config, script, shape)
    with watch.tagged("workspace of cuBLAS"):
        workspace = torch.empty(question.get("workspace", 0), dtype=torch.uint8)
    built = watch.now
    replicas = parallel_state.get_data_parallel_world_size()
    micro = config["global_batch"] // (config["micro_batch"] * replicas)
    most = question.get("micro_batches") or micro
    virtual = shape.virtual_pipeline_model_parallel_size
    # The first step only creates the optimizer's state, so it has as few micro batches as the schedule allows. With
    # activation offloading, it has all micro batches, because Megatron's offloading code records them in the first
    # step.
    shortest = shape.pipeline_model_parallel_size if virtual else 1
    if getattr(shape, "fine_grained_activation_offloading", False):
        shortest = most
    steps = [_step(config, script, chunks, optimizer, min(micro, shortest))]
    watch.record()
    steps.append(_step(config, script, chunks, optimizer, min(micro, most)))
    import trace_summary

    del workspace
    return {
        "parameters": sum(p.numel() for c in chunks for p in c.parameters()),
        "built": built,
        "steps": steps,
        "micro_batches": micro,
        "micro_batches_traced": min(micro, most),
        "replicas": replicas,
        **trace_summary.of(watch),
    }


def _step(config: dict[str, Any], script: Any, chunks: list[Any], optimizer: Any, micro: int) -> dict[str, int]:
    from megatron.core.pipeline_parallel import get_forward_backward_func
    from watch import watch

    watch.peak = watch.now
    with watch.in_phase("forward"):
        for chunk in chunks:
            chunk.zero_grad_buffer()
        optimizer.zero_grad()
        nothing: Any = [_endless() for _ in chunks]
        losses = get_forward_backward_func()(
            forward_step_func=functools.partial(_forward, config, script, chunks),
            data_iterator=nothing if len(chunks) > 1 else nothing[0],
            model=chunks if len(chunks) > 1 else chunks[0],
            num_microbatches=micro,
            seq_length=config["seq_len"],
            micro_batch_size=config["micro_batch"],
            forward_only=False,
        )
    there_and_back, watch.peak = watch.peak, watch.now
    with watch.in_phase("step"):
        optimizer.step()
    del losses
    watch.phase = "after"
    return {"forward_backward": there_and_back, "optimizer": watch.peak, "left": watch.now}


def _endless() -> Any:
    while True:
        yield None


def _forward(
    config: dict[str, Any],
    script: Any,
    chunks: list[Any],
    iterator: Any,
    model: Any,
    return_schedule_plan: bool = False,
) -> tuple[Any, Any]:
    """Runs a forward pass, or returns its plan (`return_schedule_plan`: see worker/train.py). In the latter case,
    `model` is the innermost module of a chunk."""
    from watch import watch

    inner = _innermost(model)
    chunk = next(i for i, one in enumerate(chunks) if _innermost(one) is inner)
    watch.in_chunk(chunk)
    batch = script.batch(config, inner.pre_process, inner.post_process)
    forward = model.build_schedule_plan if return_schedule_plan else model
    output = forward(batch.tokens, batch.positions, batch.mask, labels=batch.labels)
    if not return_schedule_plan and output.requires_grad:  # the hook runs at the start of the chunk's backward pass
        output.register_hook(lambda _: watch.in_chunk(chunk))
    return output, functools.partial(_loss, batch.loss_mask)


def _innermost(model: Any) -> Any:
    while hasattr(model, "module"):
        model = model.module
    return model


def _loss(mask: Any, output: Any) -> tuple[Any, Any, Any]:
    """The loss as in Megatron-LM's pretrain_gpt.py."""
    import torch

    losses, mask = output.view(-1).float(), mask.view(-1).float()
    loss = torch.sum(losses * mask)
    count = mask.sum().clone().detach().to(torch.int)
    report = torch.cat([loss.clone().detach().view(1), count.view(1)])
    return loss, count, {"lm loss": report}


def _group_names() -> dict[str, str]:
    """Returns torch's name of each process group with several ranks → Megatron's name."""
    from megatron.core import parallel_state

    getters = {
        "tp": "get_tensor_model_parallel_group",
        "pp": "get_pipeline_model_parallel_group",
        "cp": "get_context_parallel_group",
        "ep": "get_expert_model_parallel_group",
        "etp": "get_expert_tensor_parallel_group",
        "tp+ep": "get_expert_tensor_and_model_parallel_group",
        "embedding": "get_embedding_group",
        "model": "get_model_parallel_group",
        "dp+cp": "get_data_parallel_group",
        "expert dp": "get_expert_data_parallel_group",  # in a dense model: the data parallel group
    }
    found: dict[str, str] = {}
    for name, getter in getters.items():
        try:
            more = {"with_context_parallel": True} if name == "dp+cp" else {}
            group = getattr(parallel_state, getter)(**more)
        except (AssertionError, AttributeError, TypeError):
            continue
        if isinstance(group, list):
            group = group[0] if group else None
        if group is not None and hasattr(group, "group_name"):
            found.setdefault(group.group_name, name)
    return found


def main(folder: Path) -> int:
    first = rank_questions.of(folder)[0]
    os.environ.update(OMP_NUM_THREADS="1", TORCHDYNAMO_DISABLE="1", NVTE_ALLOW_NONDETERMINISTIC_ALGO="0")
    os.environ.update(CUDA_DEVICE_MAX_CONNECTIONS="1")
    load(first["stand_ins"], first.get("te_version", "2.3.0"))
    return rank_questions.answer_all(folder, answer)


if __name__ == "__main__":
    leash.die_with(os.getppid())
    sys.exit(main(Path(sys.argv[1])))
