"""Tokens by expert in a shadow run: there are no values to route by, so every expert gets its share, and the experts of
this rank `imbalance` times it."""

from typing import Any

from watch import watch


class Numbers(list[int]):
    """Where Megatron-core holds split sizes as an array of numbers."""

    def tolist(self) -> list[int]:
        return list(self)

    def ravel(self) -> "Numbers":
        return self

    @property
    def T(self) -> "Numbers":
        return self


def spread(experts: int, topk: int, imbalance: float) -> None:
    """Replaces what would read the routing's values."""
    import torch
    from megatron.core.transformer.moe import moe_utils, token_dispatcher

    watch.selected = topk / experts

    def counted(self: Any, point: Any, tokens_per_expert: Any = None) -> Numbers:
        share = self.routing_map.size(0) * topk // experts
        local = self.num_local_experts
        got = int(share * imbalance)
        self.input_splits = Numbers([share * local] * self.ep_size)
        self.output_splits = Numbers([got * local] * self.ep_size)
        self.output_splits_tp = Numbers([got * local * self.ep_size] * self.tp_size)
        self.num_out_tokens = self.routing_map.size(0) * topk
        self.num_global_tokens_per_local_expert = Numbers([got] * (self.tp_size * self.ep_size * local))
        return Numbers([got * self.ep_size * self.tp_size] * local)

    def sorted_chunks(input: Any, split_sizes: Any, sorted_idxs: Any, probs: Any = None, fused: bool = False) -> Any:
        sizes = split_sizes.tolist()
        out = torch.cat(list(torch.split(input, sizes, dim=0)), dim=0)
        return out, None if probs is None else torch.cat(list(torch.split(probs, sizes, dim=0)), dim=0)

    token_dispatcher.MoEAlltoAllTokenDispatcher._maybe_dtoh_and_synchronize = counted
    moe_utils.sort_chunks_by_idxs = token_dispatcher.sort_chunks_by_idxs = sorted_chunks
    _gathered(experts, topk, imbalance)


def _gathered(experts: int, topk: int, imbalance: float) -> None:
    from megatron.core.transformer.moe import token_dispatcher

    kind = token_dispatcher.MoEAllGatherTokenDispatcher
    after = kind.dispatch_postprocess

    def dispatched(self: Any, hidden_states: Any, probs: Any) -> Any:
        tokens = hidden_states.shape[0] * topk / experts * imbalance
        watch.selected *= imbalance
        try:
            hidden, _, probs = after(self, hidden_states, probs)
        finally:
            watch.selected /= imbalance
        return hidden, Numbers([int(tokens)] * self.num_local_experts), probs

    kind.dispatch_postprocess = dispatched
