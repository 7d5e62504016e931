"""The part of a batch that this context-parallel rank trains on."""

import inspect
from typing import Any

from megatron.core import parallel_state
from megatron.core.utils import get_batch_on_this_cp_rank


def own_part(batch: dict[str, Any]) -> dict[str, Any]:
    """Returns the batch, [micro batch, sequence], reduced to this rank's part of the sequence by Megatron's own
    function.

    Since Megatron-core 0.18, that function requires is_hybrid_cp, and without cp_group it splits the sequence among all
    ranks of the job. In 0.17, it splits the sequence among the context parallel ranks by default. In 0.15, it has
    neither argument."""
    offered = {"cp_group": parallel_state.get_context_parallel_group(), "is_hybrid_cp": False}
    taken = inspect.signature(get_batch_on_this_cp_rank).parameters
    return get_batch_on_this_cp_rank(batch, **{name: value for name, value in offered.items() if name in taken})
