"""Synthetic batches that do not depend on the parallel layout: sample i of iteration k is the same in every layout."""

from typing import Any, NamedTuple

import torch
from megatron.core import parallel_state
from own_part import own_part


class MicroBatch(NamedTuple):
    """int64 tensors of shape [micro batch, sequence of this context parallel rank]."""

    tokens: torch.Tensor
    labels: torch.Tensor
    positions: torch.Tensor


def micro_batches(config: dict[str, Any], iteration: int, device: torch.device) -> list[MicroBatch]:
    """Returns this data parallel rank's share of the global batch of `iteration`, split into micro batches."""
    share = config["global_batch"] // parallel_state.get_data_parallel_world_size()
    first = share * parallel_state.get_data_parallel_rank()
    batches = []
    for start in range(first, first + share, config["micro_batch"]):
        samples = range(start, start + config["micro_batch"])
        text = torch.stack([_sample(config, iteration, number) for number in samples])
        batch = {
            "tokens": text[:, :-1].contiguous(),
            "labels": text[:, 1:].contiguous(),
            "positions": torch.arange(text.size(1) - 1).repeat(text.size(0), 1),
        }
        batches.append(MicroBatch(**{name: value.to(device) for name, value in own_part(batch).items()}))
    return batches


def _sample(config: dict[str, Any], iteration: int, number: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(iteration * config["global_batch"] + number)
    uniform = torch.rand(config["seq_len"] + 1, generator=generator)
    # A few tokens are frequent and many are rare. A model learns this distribution within a few iterations.
    return (uniform**3 * config["vocab"]).long()
