"""Batches of fine-tuning samples with different lengths: either padded, one per sequence, or packed.

All layouts train on the same samples in a step, so that losses are comparable. With packing, these samples fill fewer
sequences."""

import math
from typing import Any, NamedTuple

import torch
from megatron.core import parallel_state
from megatron.core.packed_seq_params import PackedSeqParams
from own_part import own_part


class Samples(NamedTuple):
    """A micro batch of tensors [micro batch, sequence]. `mask`: 0 for tokens without a loss. `hidden`: attention mask,
    true where a token must not attend, [micro batch, 1, sequence, sequence], None if causal. `packed`: the samples'
    boundaries for fused attention, which gets all sequences in one row."""

    tokens: torch.Tensor
    labels: torch.Tensor
    positions: torch.Tensor
    mask: torch.Tensor
    hidden: torch.Tensor | None = None
    packed: PackedSeqParams | None = None


def micro_batches(config: dict[str, Any], iteration: int, device: torch.device) -> list[Samples]:
    """Returns this data parallel rank's samples of `iteration`. All ranks have the same number of micro batches."""
    texts = [_sample(config, iteration, number) for number in range(config["samples"])]
    rows = packed(texts, config["seq_len"]) if config["packed"] else [[text] for text in texts]
    ranks, rank = parallel_state.get_data_parallel_world_size(), parallel_state.get_data_parallel_rank()
    size = config["micro_batch"]
    number = math.ceil(len(rows) / (size * ranks))
    if config["given"].get("virtual_pipeline_model_parallel_size"):
        stages = parallel_state.get_pipeline_model_parallel_world_size()
        number = math.ceil(number / stages) * stages
    mine = rows[rank::ranks]
    mine += [[] for _ in range(number * size - len(mine))]
    return [_micro_batch(config, mine[start : start + size], device) for start in range(0, len(mine), size)]


def packed(texts: list[torch.Tensor], length: int) -> list[list[torch.Tensor]]:
    """Packs samples into sequences (best fit decreasing): longest first, each into the fullest sequence with room."""
    rows: list[list[torch.Tensor]] = []
    room: list[int] = []
    for text in sorted(texts, key=len, reverse=True):
        need = len(text) - 1
        fitting = [i for i, left in enumerate(room) if left >= need]
        if not fitting:
            rows.append([])
            room.append(length)
            fitting = [len(rows) - 1]
        fullest = min(fitting, key=lambda i: room[i])
        rows[fullest].append(text)
        room[fullest] -= need
    return rows


def _micro_batch(config: dict[str, Any], rows: list[list[torch.Tensor]], device: torch.device) -> Samples:
    length = config["seq_len"]
    tokens, labels, positions = (torch.zeros(len(rows), length, dtype=torch.int64) for _ in range(3))
    mask, owner = torch.zeros(len(rows), length), torch.full((len(rows), length), -1)
    ends = [0]
    for i, row in enumerate(rows):
        at = 0
        for number, text in enumerate(row):
            here = slice(at, at + len(text) - 1)
            tokens[i, here], labels[i, here] = text[:-1], text[1:]
            positions[i, here] = torch.arange(len(text) - 1)
            mask[i, here], owner[i, here] = 1.0, number
            at = here.stop
            ends.append(i * length + at)
        if at < length:
            positions[i, at:] = torch.arange(length - at)
            ends.append((i + 1) * length)
    if not config["packed"]:
        whole = {"tokens": tokens, "labels": labels, "positions": positions, "mask": mask}
        mine = {name: value.to(device) for name, value in own_part(whole).items()}
        return Samples(mine["tokens"], mine["labels"], mine["positions"], mine["mask"])
    batch = Samples(tokens.to(device), labels.to(device), positions.to(device), mask.to(device))
    if config["given"]["transformer_impl"] == "transformer_engine":
        return _in_one_row(batch, ends, device)
    apart = owner[:, None, :, None] != owner[:, None, None, :]
    return batch._replace(hidden=(apart | torch.ones(length, length).triu(1).bool()).to(device))


def _in_one_row(batch: Samples, ends: list[int], device: torch.device) -> Samples:
    """Converts a batch to Transformer Engine's packed format: all sequences in one row, with the end of each sample."""
    bounds = torch.tensor(ends, dtype=torch.int32, device=device)
    longest = int((bounds[1:] - bounds[:-1]).max())
    params = PackedSeqParams(
        qkv_format="thd", cu_seqlens_q=bounds, cu_seqlens_kv=bounds, max_seqlen_q=longest, max_seqlen_kv=longest
    )
    return Samples(
        batch.tokens.reshape(1, -1),
        batch.labels.reshape(1, -1),
        batch.positions.reshape(1, -1),
        batch.mask.reshape(1, -1),
        packed=params,
    )


def _sample(config: dict[str, Any], iteration: int, number: int) -> torch.Tensor:
    """Returns a sample's tokens, followed by one more token, which is the target of the last position."""
    generator = torch.Generator().manual_seed(iteration * config["samples"] + number)
    lengths = config["lengths"]
    length = lengths[int(torch.randint(len(lengths), (1,), generator=generator))]
    uniform = torch.rand(min(length, config["seq_len"]) + 1, generator=generator)
    return (uniform**3 * config["vocab"]).long()
