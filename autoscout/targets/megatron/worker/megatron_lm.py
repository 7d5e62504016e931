"""Trains with the user's own Megatron-LM: its script, arguments, data, loop and optimizer, with the exported flags. Our
additions are the initial weights (weights.py: equal in all layouts), the timing of each step, and the end of the run
once enough is measured."""

import importlib
import os
import runpy
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

_SCRIPT = "pretrain_gpt.py"


class _Enough(BaseException):
    """Raised to leave the script's loop. It is not an Exception, so the script does not catch it."""


def trained(
    config: dict[str, Any],
    course: Any,
    enter: Callable[[str], None],
    look_at_memory: Callable[[Any], None],
    forget_peak_memory: Callable[[Any], None],
) -> tuple[Any, dict[str, int]]:
    """Returns (this rank's device, numbers of parameters and buckets). `course`: a course.Course. `enter`: called at
    the start of each phase. Errors: exceptions of the script; ValueError for rejected arguments; RuntimeError for an
    early end."""
    script = Path(config["checkout"]) / _SCRIPT
    sys.path.insert(0, str(script.parent))
    if config["device"] == "cpu":
        import cpu_shim

        cpu_shim.for_a_script()
    import torch

    device = torch.device("cpu")
    if config["device"] == "cuda":
        device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
        torch.cuda.set_device(device)
    look_at_memory(device)
    training = importlib.import_module("megatron.training.training")
    built: dict[str, int] = {}
    _fill_weights(training, config, enter, built)
    course.mean = of_the_last_stage
    _clock_steps(training, course, enter, device, forget_peak_memory)
    sys.argv = [str(script), *_words(config["arguments"])]
    enter("config")
    try:
        runpy.run_path(str(script), run_name="__main__")
    except _Enough:
        return device, built
    except SystemExit as error:  # argparse has printed the reason to stderr
        raise ValueError(
            f"{_SCRIPT} refused its arguments; the end of the log shows which (exit code {error.code})"
        ) from error
    raise RuntimeError(f"{_SCRIPT} ended before enough iterations were trained")


def _fill_weights(training: Any, config: dict[str, Any], enter: Callable[[str], None], built: dict[str, int]) -> None:
    """Makes each model chunk get our weights after its creation, and adds the chunk's size to `built`."""
    import weights

    plain = training.get_model

    def get_model(provider: Any, *arguments: Any, **more: Any) -> Any:
        enter("build")

        def provide(*given: Any, **named: Any) -> Any:
            chunk = provider(*given, **named)
            shape = chunk.config
            weights.fill(chunk, shape.num_layers, shape.gated_linear_unit, chunk.share_embeddings_and_output_weights)
            return chunk

        chunks = plain(provide, *arguments, **more)
        sharded = config["arguments"].get("--use-megatron-fsdp")  # Megatron-FSDP does not use DDP's buffers
        buffers = [] if sharded else [b for chunk in chunks for b in chunk.buffers + chunk.expert_parallel_buffers]
        built["parameters"] = sum(parameter.numel() for chunk in chunks for parameter in chunk.parameters())
        built["buckets"] = sum(len(buffer.buckets) for buffer in buffers)
        return chunks

    training.get_model = get_model


def _clock_steps(
    training: Any, course: Any, enter: Callable[[str], None], device: Any, forget_peak_memory: Callable[[Any], None]
) -> None:
    import step_clock
    import torch

    plain = training.train_step
    norms: list[float] = []

    def train_step(*given: Any, **named: Any) -> Any:
        if not norms:
            enter("train")
            forget_peak_memory(device)
            course.on(device)
            chunks = named.get("model") or given[2]
            _watch(named.get("optimizer") or given[3], norms, course.of_experts, chunks)
            _watch_gradients(chunks[0])
        course.begin()
        torch.distributed.barrier()
        _finish(device)
        start = time.perf_counter()
        step_clock.begin(device)
        found = plain(*given, **named)
        step_clock.mark()
        _finish(device)
        own = time.perf_counter() - start
        seconds = torch.tensor([own], device=device, dtype=torch.float64)
        torch.distributed.all_reduce(seconds, op=torch.distributed.ReduceOp.MAX)
        course.end(seconds.item(), own, found[0], norms[-1], step_clock.seconds())
        if course.over:
            raise _Enough
        return found

    training.train_step = train_step


def _watch(optimizer: Any, norms: list[float], of_experts: list[float], chunks: list[Any]) -> None:
    """Records the gradient norm at every step, and at the first step also the experts' gradient norm."""
    import experts

    plain = optimizer.step
    has_experts = any(".experts." in name for chunk in chunks for name, _ in chunk.named_parameters())

    def step(*given: Any, **named: Any) -> Any:
        if has_experts and not norms:
            sharded = bool(chunks[0].ddp_config.use_distributed_optimizer)
            of_experts.append(experts.gradient_norm(chunks, sharded))
        found = plain(*given, **named)
        norms.append(float(found[1]))
        return found

    optimizer.step = step


def _watch_gradients(chunk: Any) -> None:
    """Marks when the schedule finishes the exchange of gradients, if the script has such a hook."""
    import step_clock

    config = chunk.config
    if config.finalize_model_grads_func is not None:
        config.finalize_model_grads_func = step_clock.around(config.finalize_model_grads_func)


def of_the_last_stage(losses: dict[str, Any], device: Any) -> float:
    """Returns the loss of the last pipeline stage; other stages have none. Uses a sum over ranks, because gloo's
    maximum loses NaN (findings/torch-gloo-maximum-of-nan.sh)."""
    import torch

    own = [float(losses["lm loss"]), 1.0] if "lm loss" in losses else [0.0, 0.0]
    found = torch.tensor(own, device=device, dtype=torch.float64)
    torch.distributed.all_reduce(found)
    return (found[0] / found[1]).item()


def _finish(device: Any) -> None:
    if device.type == "cuda":
        import torch

        torch.cuda.synchronize(device)


def _words(flags: dict[str, Any]) -> list[str]:
    found: list[str] = []
    for flag, value in flags.items():
        values = [] if value is True else value if isinstance(value, list) else [value]
        found += [flag, *map(str, values)]
    return found
