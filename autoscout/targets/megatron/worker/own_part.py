"""The part of a batch that this context-parallel rank trains on."""

import inspect
from typing import Any

from megatron.core import parallel_state
from megatron.core.utils import get_batch_on_this_cp_rank


def own_part(batch: dict[str, Any]) -> dict[str, Any]:
    """Returns the batch, [micro batch, sequence], reduced to this rank's part of the sequence by Megatron's own
    function.

    Since 0.18, is_hybrid_cp is required, and without cp_group the sequence is split among all ranks of the job. In 0.17
    it is split among the context parallel ranks, and 0.15 has neither argument."""
    offered = {"cp_group": parallel_state.get_context_parallel_group(), "is_hybrid_cp": False}
    taken = inspect.signature(get_batch_on_this_cp_rank).parameters
    return get_batch_on_this_cp_rank(batch, **{name: value for name, value in offered.items() if name in taken})
