"""Memory of a rank by ZeRO stage: the formulas of DeepSpeed's autotuner.

Adam: weights and gradients 4 bytes a parameter (2 in half precision), the optimizer's state 8 (16: with the master
weights). From stage 1 on the state, from 2 on the gradients, from 3 on the weights are divided by the ranks.
"""


def needed_bytes(params: int, stage: int, ranks: int, half: bool = False, mp_size: int = 1) -> float:
    """Of a rank, before any activation."""
    weights = gradients = params * (2.0 if half else 4.0)
    state = params * (16.0 if half else 8.0)
    return (
        weights / (ranks if stage >= 3 else 1)
        + gradients / (ranks if stage >= 2 else 1)
        + state / (ranks if stage >= 1 else 1)
    ) / mp_size


def largest_micro_batch(memory: float, needed: float, activation: float) -> int:
    """What fits by calculation: `activation` bytes a sample; 0 if the model itself does not."""
    if memory <= needed + activation:
        return 0
    return int((memory - needed) // activation) if activation > 0 else 2**30


def stages_that_fit(params: int, activation: float, memory: float, ranks: int, half: bool = False) -> list[int]:
    """In the order of trying: stage 0 first, which communicates least."""
    return [s for s in range(4) if memory > needed_bytes(params, s, ranks, half) + activation]
