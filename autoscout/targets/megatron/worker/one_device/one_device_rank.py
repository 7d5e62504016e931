"""Times one rank of a Megatron job of any world size on one device: with real kernels, but without other ranks.

    python one_device_rank.py FOLDER        answers FOLDER/question-N.json in FOLDER/answer-N.json, each in a fork

A question has the input of worker/train.py (including `arguments`, Megatron-LM's flags, and `device`), `world`, `rank`,
and two numbers of micro batches, `few` and `many`. Steps with each number are timed `repeats` times after a warm-up;
the two times give the seconds per micro batch and the fixed time of a step. Communication takes no time (loopback.py).
An answer is {"verdict": "starts" | "refused", …}, with seconds and bytes."""

import os
import statistics
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

_phase = "import"


def _answer(question: dict[str, Any]) -> dict[str, Any]:
    try:
        if question["device"] != "cpu":
            _load(question["device"])
        return {"verdict": "starts", **_timed(question)}
    except Exception as error:
        return rank_questions.refusal(error, _phase)


def _timed(question: dict[str, Any]) -> dict[str, Any]:
    global _phase
    import building
    import configs
    import torch
    import train
    from megatron.core import parallel_state, tensor_parallel

    _phase = "groups"
    config = configs.read(question)
    rank, world = question["rank"], question["world"]
    os.environ.update(RANK=str(rank), WORLD_SIZE=str(world), LOCAL_RANK="0")
    device = building.device_of(config)
    store: Any = vars(torch.distributed)["HashStore"]  # missing in torch.distributed's public names
    torch.distributed.init_process_group("fake", rank=rank, world_size=world, store=store())
    parallel_state.initialize_model_parallel(**configs.groups(config["given"]), create_gloo_process_groups=False)
    tensor_parallel.model_parallel_cuda_manual_seed(1234)
    _phase = "config"
    config["global_batch"] = question["many"] * config["micro_batch"] * parallel_state.get_data_parallel_world_size()
    shape = building.transformer_config(config)
    _phase = "build"
    chunks, optimizer = building.build(config, shape, device)
    train._forget_peak_memory(device)
    _phase = "train"
    import batches

    data = [_of_this_shard(batch, config["vocab"]) for batch in batches.micro_batches(config, 0, device)]
    few, many = question["few"], question["many"]
    seen: dict[int, list[tuple[float, float]]] = {few: [], many: []}
    # alternating, so that falling clock rates affect both numbers equally
    for number in (few, many, *[few, many] * question["repeats"]):
        seen[number].append(_step(config, data[:number], chunks, optimizer, device))
    measured = {number: [there for there, _ in times[1:]] for number, times in seen.items()}
    middle = {number: statistics.median(times) for number, times in measured.items()}
    micro_batch = (middle[many] - middle[few]) / (many - few)
    spread = max(statistics.stdev(times) / statistics.fmean(times) for times in measured.values())
    return {
        "micro_batch_s": micro_batch,
        "once_s": max(0.0, middle[few] - few * micro_batch),
        "optimizer_s": statistics.median([end for times in seen.values() for _, end in times[1:]]),
        "spread": spread,
        "parameters": sum(parameter.numel() for chunk in chunks for parameter in chunk.parameters()),
        "device": "cpu" if device.type == "cpu" else torch.cuda.get_device_name(device),
        "torch": torch.__version__,
        **_memory(device),
    }


def _of_this_shard(batch: Any, vocab: int) -> Any:
    """Returns the batch with tokens replaced by tokens in this rank's part of the vocabulary. Tokens outside of this
    part would have zero embeddings, since no other rank exists to send them, and the norm would multiply gradients of
    zeros by hundreds."""
    from megatron.core import parallel_state

    ranks = parallel_state.get_tensor_model_parallel_world_size()
    first = parallel_state.get_tensor_model_parallel_rank() * (vocab // ranks)
    return batch._replace(tokens=first + batch.tokens % (vocab // ranks))


def _step(
    config: dict[str, Any], data: list[Any], chunks: list[Any], optimizer: Any, device: Any
) -> tuple[float, float]:
    """Returns (seconds of forward and backward passes, seconds of the optimizer step)."""
    import train

    train._finish(device)
    start = time.perf_counter()
    train.passes(config, chunks, optimizer, data)
    train._finish(device)
    between = time.perf_counter()
    optimizer.step()
    train._finish(device)
    return between - start, time.perf_counter() - between


def _memory(device: Any) -> dict[str, int]:
    """Returns peak memory in bytes; {} on a CPU, where torch does not count the memory of tensors."""
    if device.type == "cpu":
        return {}
    import torch

    return {
        "allocated": torch.cuda.max_memory_allocated(device),
        "reserved": torch.cuda.max_memory_reserved(device),
    }


def _load(device: str) -> None:
    import loopback
    import train

    loopback.install()
    train.load(device)


def main(folder: Path) -> int:
    os.environ.setdefault("CUDA_DEVICE_MAX_CONNECTIONS", "1")
    # on GPUs, each fork imports Megatron itself, since imports may initialize CUDA
    if rank_questions.of(folder)[0]["device"] == "cpu":
        _load("cpu")
    return rank_questions.answer_all(folder, _answer)


if __name__ == "__main__":
    leash.die_with(os.getppid())
    sys.exit(main(Path(sys.argv[1])))
