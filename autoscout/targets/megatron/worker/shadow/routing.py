"""Numbers of tokens per expert in a shadow run. There are no values to route by, so each expert gets an equal share. If
experts are distributed over several ranks, this rank's experts get `imbalance` times an equal share."""

from typing import Any

from watch import watch


class Numbers(list[int]):
    """A list that supports the array methods that Megatron-core calls on split sizes."""

    def tolist(self) -> list[int]:
        return list(self)

    def ravel(self) -> "Numbers":
        return self

    @property
    def T(self) -> "Numbers":
        return self


def spread(experts: int, topk: int, imbalance: float) -> None:
    """Replaces the functions that would read the router's values."""
    import torch
    from megatron.core.transformer.moe import moe_utils, token_dispatcher

    watch.selected = topk / experts

    def counted(self: Any, point: Any, tokens_per_expert: Any = None) -> Numbers:
        total = self.routing_map.size(0) * topk
        shares = _shared_out(total, experts)
        local = self.num_local_experts
        tilt = imbalance if self.ep_size > 1 else 1.0
        got = [int(shares[i] * tilt) for i in self.local_expert_indices]
        self.input_splits = Numbers([sum(shares[i : i + local]) for i in range(0, experts, local)])
        self.output_splits = Numbers([sum(got)] * self.ep_size)
        self.output_splits_tp = Numbers([sum(got) * self.ep_size] * self.tp_size)
        self.num_out_tokens = total
        self.num_global_tokens_per_local_expert = Numbers(got * (self.tp_size * self.ep_size))
        return Numbers([n * self.ep_size * self.tp_size for n in got])

    def sorted_chunks(input: Any, split_sizes: Any, sorted_idxs: Any, probs: Any = None, fused: bool = False) -> Any:
        sizes = split_sizes.tolist()
        out = torch.cat(list(torch.split(input, sizes, dim=0)), dim=0)
        return out, None if probs is None else torch.cat(list(torch.split(probs, sizes, dim=0)), dim=0)

    token_dispatcher.MoEAlltoAllTokenDispatcher._maybe_dtoh_and_synchronize = counted
    moe_utils.sort_chunks_by_idxs = token_dispatcher.sort_chunks_by_idxs = sorted_chunks
    _gathered(imbalance)


def _shared_out(total: int, experts: int) -> list[int]:
    whole, more = divmod(total, experts)
    return [whole + (i < more) for i in range(experts)]


def _gathered(imbalance: float) -> None:
    from megatron.core.transformer.moe import token_dispatcher

    kind = token_dispatcher.MoEAllGatherTokenDispatcher
    after = kind.dispatch_postprocess

    def dispatched(self: Any, hidden_states: Any, probs: Any) -> Any:
        balanced = watch.selected
        watch.selected *= imbalance if self.ep_size > 1 else 1.0
        try:
            hidden, _, probs = after(self, hidden_states, probs)
        finally:
            watch.selected = balanced
        return hidden, Numbers(_shared_out(hidden.shape[0], self.num_local_experts)), probs

    kind.dispatch_postprocess = dispatched
