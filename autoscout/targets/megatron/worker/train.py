"""Runs one rank of an experiment: trains with Megatron-core for a few iterations and writes the measurements.

    train.py EXPERIMENT.json [--leash]      with RANK, WORLD_SIZE, LOCAL_RANK, MASTER_ADDR, MASTER_PORT set

The training loop is ours, or that of the user's own Megatron-LM if the experiment names one (megatron_lm.py). Writes
rank-R.log, and rank-R.json (measurements) or rank-R.error.json (failure), next to EXPERIMENT.json. Runs in the target's
interpreter with only torch and megatron-core. With `--leash`, exits when its stdin closes."""

import contextlib
import functools
import importlib.metadata
import itertools
import json
import os
import platform
import resource
import sys
import time
import traceback
from pathlib import Path
from typing import Any

# Adds the folder shared by all targets' workers: the target's interpreter does not have our packages.
sys.path.insert(0, str(Path(__file__).parents[3] / "running" / "worker"))

import energy
import leash
from course import Course

_CONTEXT_GIB = 0.6  # device memory that a CUDA context needs
_phase = "import"
_courses: list[Course] = []  # the runs of this process; the last one is the current run
_entered: dict[str, float] = {}  # monotonic start time of each phase
_before: dict[str, float] = {}  # GiB free and in total on this rank's device, before its first allocation


def main(experiment: Path) -> int:
    """Runs this rank; returns its exit code. Never raises: an exception becomes rank-R.error.json."""
    rank = os.environ["RANK"]
    _enter("import")
    try:
        config = json.loads(experiment.read_text())
        _adopt(config["environment"])
        result = _run(config)
    except BaseException as error:
        traceback.print_exc()
        _write(experiment.with_name(f"rank-{rank}.error.json"), _describe(error))
        return 1
    _write(experiment.with_name(f"rank-{rank}.json"), result)
    return 0


def _adopt(variables: dict[str, str]) -> None:
    """Sets the experiment's environment variables. GPU indices are relative to the GPUs visible to this process."""
    given = os.environ.get("CUDA_VISIBLE_DEVICES")
    os.environ.update(variables)
    chosen = variables.get("CUDA_VISIBLE_DEVICES")
    if given and chosen:
        names = given.split(",")
        os.environ["CUDA_VISIBLE_DEVICES"] = ",".join(names[int(index)] for index in chosen.split(","))


@functools.cache
def load(device: str) -> None:
    """Imports torch and Megatron, patched for this device."""
    import cpu_shim

    if device == "cpu":
        cpu_shim.before_megatron()
    import building  # noqa: F401 - imports everything used of Megatron

    with contextlib.suppress(ImportError):
        import megatron.core.models.mimo  # noqa: F401 - else the optimizer of each rank imports it (since 0.19)

    if device == "cpu":
        cpu_shim.after_megatron()
    cpu_shim.without_transformer_engine()


def _run(config: dict[str, Any]) -> dict[str, Any]:
    course = Course(config, _global_mean)
    _courses.append(course)
    if config.get("checkout"):
        import megatron_lm

        device, built = megatron_lm.trained(config, course, _enter, _look_at_memory, _forget_peak_memory)
    else:
        load(config["device"])
        device, built = _trained(config, course)
    import torch

    return {
        **course.result(),
        **_peak_memory(device),
        **_of_the_start(),
        "threads": len(os.listdir("/proc/self/task")),
        **built,
        "device": "cpu" if device.type == "cpu" else torch.cuda.get_device_name(device),
        "host": platform.node(),
        "index": _index(device),
        "versions": _versions(),
        "time": time.time(),  # noqa: TID251 - a timestamp
        "took_s": time.monotonic() - next(iter(_entered.values())),
    }


def _trained(config: dict[str, Any], course: Course) -> tuple[Any, dict[str, int]]:
    """Runs our own training loop; returns (device, numbers of parameters and buckets by name)."""
    import building
    import configs

    _enter("groups")
    config = configs.read(config)
    _look_at_memory(building.device_of(config))
    device = building.make_groups(config)
    _enter("config")
    shape = building.transformer_config(config)
    _enter("build")
    if shape.tp_comm_overlap:
        building.start_user_buffers(config, shape)
    chunks, optimizer = building.build(config, shape, device)
    _forget_peak_memory(device)
    _enter("train")
    graphs = building.recorder(config, shape, chunks, optimizer)
    sharded = bool(config["given"].get("use_megatron_fsdp"))  # Megatron-FSDP does not use DDP's buffers
    buffers = [] if sharded else [b for chunk in chunks for b in chunk.buffers + chunk.expert_parallel_buffers]
    recorded_at = config["given"]["cuda_graph_warmup_steps"] if graphs else -1
    course.on(device, recorded_at + 1)
    while not course.over:
        if course.steps == recorded_at:
            building.record(graphs, chunks, bool(config["given"].get("overlap_param_gather")))
        course.begin()
        course.end(*_iteration(config, chunks, optimizer, device, course.steps, course.of_experts))
    return device, {
        "parameters": sum(parameter.numel() for chunk in chunks for parameter in chunk.parameters()),
        "buckets": sum(len(buffer.buckets) for buffer in buffers),
    }


def _iteration(
    config: dict[str, Any], chunks: list[Any], optimizer: Any, device: Any, number: int, of_experts: list[float]
) -> tuple[float, float, list[Any], float, dict[str, float]]:
    """Returns (seconds of the slowest rank, seconds of this rank, this rank's [sum, count] of token losses, gradient
    norm, part of the step → seconds). If the first step is warm-up, the experts' gradient norm is added to
    `of_experts`."""
    import batches
    import experts
    import samples
    import step_clock
    import torch

    data = (samples if config.get("lengths") else batches).micro_batches(config, number, device)
    torch.distributed.barrier()
    _finish(device)
    start = time.perf_counter()
    step_clock.begin(device)
    losses = passes(config, chunks, optimizer, data)
    if number == 0 and config["warmup"] and config["given"].get("num_moe_experts"):
        of_experts.append(experts.gradient_norm(chunks, bool(config["given"].get("use_distributed_optimizer"))))
    _, grad_norm, _ = optimizer.step()
    step_clock.mark()
    _finish(device)
    own = time.perf_counter() - start
    seconds = torch.tensor([own], device=device, dtype=torch.float64)
    torch.distributed.all_reduce(seconds, op=torch.distributed.ReduceOp.MAX)
    return seconds.item(), own, losses, grad_norm, step_clock.seconds()


def passes(config: dict[str, Any], chunks: list[Any], optimizer: Any, data: list[Any]) -> list[Any]:
    """Runs forward and backward passes of these micro batches by Megatron's schedule, starting with zero gradients.
    Returns [sum, count] of token losses per micro batch."""
    from megatron.core.pipeline_parallel import get_forward_backward_func

    rows, length = data[0].tokens.shape
    for chunk in chunks:
        chunk.zero_grad_buffer()
    optimizer.zero_grad()
    iterators = [iter(data) for _ in chunks]
    return get_forward_backward_func()(
        forward_step_func=_forward,
        data_iterator=iterators if len(chunks) > 1 else iterators[0],
        model=chunks if len(chunks) > 1 else chunks[0],
        num_microbatches=len(data),
        seq_length=length * (config["given"].get("context_parallel_size") or 1),
        micro_batch_size=rows,
        forward_only=False,
    )


def _forward(iterator: Any, model: Any, return_schedule_plan: bool = False) -> tuple[Any, Any]:
    """Runs a forward pass, or returns its plan (`return_schedule_plan`) for a schedule that overlaps it with a backward
    pass."""
    import torch

    batch = next(iterator)
    some = {"packed_seq_params": batch.packed} if getattr(batch, "packed", None) else {}
    hidden, mask = getattr(batch, "hidden", None), getattr(batch, "mask", None)
    forward = model.build_schedule_plan if return_schedule_plan else model
    output = forward(batch.tokens, batch.positions, hidden, labels=batch.labels, **some)

    def loss(token_losses: Any) -> tuple[Any, Any, Any]:
        token_losses = token_losses.float()
        total = token_losses.sum() if mask is None else (token_losses * mask).sum()
        count = torch.tensor(token_losses.numel(), dtype=torch.int, device=total.device)
        count = count if mask is None else mask.sum().int()
        return total, count, torch.stack([total.detach(), count.float()])

    return output, loss


def _global_mean(losses: list[Any], device: Any) -> float:
    """Returns the mean loss of the global batch on every rank. (Copies on tensor parallel ranks cancel out.)"""
    import torch

    total = torch.zeros(2, device=device, dtype=torch.float64)
    for sum_and_count in losses:
        total += sum_and_count
    torch.distributed.all_reduce(total)
    return (total[0] / total[1]).item()


def _index(device: Any) -> int:
    """Returns the index of this rank's device on its host, in the driver's order; for a CPU rank, the local rank."""
    local = int(os.environ.get("LOCAL_RANK", "0"))
    if device.type == "cpu":
        return local
    import torch

    index = energy.index(f"GPU-{torch.cuda.get_device_properties(device).uuid}")
    if index is not None:
        return index
    visible = os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",")
    index = device.index if device.index is not None else local
    return int(visible[index]) if index < len(visible) and visible[index].isdigit() else index


def _enter(phase: str) -> None:
    global _phase
    _phase = phase
    _entered[phase] = time.monotonic()


def _of_the_start() -> dict[str, float]:
    """Returns start_PHASE_s → seconds before the first iteration. (A fork of a warm process has no imports left.)"""
    return {f"start_{a}_s": _entered[b] - _entered[a] for a, b in itertools.pairwise(_entered)}


def _finish(device: Any) -> None:
    if device.type == "cuda":
        import torch

        torch.cuda.synchronize(device)


def _forget_peak_memory(device: Any) -> None:
    """Resets the peak, because building temporarily allocates unsharded tensors, which training does not need."""
    if device.type == "cuda":
        import torch

        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats(device)
        return
    with contextlib.suppress(OSError):  # some containers forbid this; the peak then includes building
        Path("/proc/self/clear_refs").write_text("5")


def _look_at_memory(device: Any) -> None:
    """Records free memory before this process's first allocation, to exclude memory that other processes use."""
    if device.type == "cuda":
        import torch

        free, total = torch.cuda.mem_get_info(device)
        _before.update(free_gib=free / 2**30, total_gib=total / 2**30)


def _memory_at_failure() -> dict[str, float]:
    """Returns RankError's `memory`; {} on CPUs. The peak is missing if the device no longer responds."""
    if not _before:
        return {}
    import torch

    try:
        return {**_before, "reserved_gib": torch.cuda.max_memory_reserved() / 2**30}
    except RuntimeError:
        return _before


def _peak_memory(device: Any) -> dict[str, float]:
    if device.type == "cuda":
        import torch

        free, total = torch.cuda.mem_get_info(device)
        now, most = torch.cuda.memory_reserved(device), torch.cuda.max_memory_reserved(device)
        outside = _outside_the_allocator(
            total / 2**30, free / 2**30, now / 2**30, _before.get("free_gib", total / 2**30)
        )
        return {
            "peak_memory_gib": most / 2**30 + outside,
            "reserved_memory_gib": most / 2**30,
            "allocated_memory_gib": torch.cuda.max_memory_allocated(device) / 2**30,
        }
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmHWM:"):
            return {"peak_memory_gib": int(line.split()[1]) / 2**20}
    return {"peak_memory_gib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20}


def _outside_the_allocator(total: float, free: float, reserved: float, free_before: float) -> float:
    """Returns the GiB that the CUDA context, NCCL and libraries use: memory outside the allocator, minus the memory of
    other processes. `free_before` was measured after this process had created its CUDA context (about half a GiB)."""
    others = max(0.0, total - free_before - _CONTEXT_GIB)
    return max(0.0, total - free - reserved - others)


def _versions() -> dict[str, str]:
    import torch

    versions = {"python": platform.python_version(), "torch": torch.__version__}
    for package in ("megatron-core", "transformer-engine"):
        try:
            versions[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            continue
    if torch.version.cuda:
        versions["cuda"] = torch.version.cuda
        versions["nccl"] = ".".join(str(part) for part in torch.cuda.nccl.version())
    return versions


def _describe(error: BaseException) -> dict[str, Any]:
    frames = traceback.extract_tb(error.__traceback__)
    return {
        "type": type(error).__name__,
        "message": str(error),
        "traceback": "".join(traceback.format_exception(error))[-4000:],
        "in_megatron": any("/megatron/core/" in frame.filename for frame in frames),
        "phase": _phase,
        "steps": _courses[-1].steps if _courses else 0,
        "time": time.time(),  # noqa: TID251 - a timestamp
        "memory": _memory_at_failure(),
    }


def _write(path: Path, content: dict[str, Any]) -> None:
    part = path.with_name(path.name + ".part")
    with open(part, "w") as file:
        json.dump(content, file)
        file.flush()
        os.fsync(file.fileno())
    os.replace(part, path)


def run_and_exit(experiment: Path) -> None:
    """Runs with all output in rank-R.log, and exits without cleanup."""
    path = experiment.with_name(f"rank-{os.environ['RANK']}.log")
    try:
        log = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    except OSError:
        os._exit(os.EX_CANTCREAT)
    os.dup2(log, 1)
    os.dup2(log, 2)
    code = main(experiment)
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)  # communication libraries can hang at exit, and the result is on disk


if __name__ == "__main__":
    leash.die_with(os.getppid())
    if "--leash" in sys.argv:
        leash.die_with_stdin()
    run_and_exit(Path(sys.argv[1]).resolve())
