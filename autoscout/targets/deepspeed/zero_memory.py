"""Memory of a rank by ZeRO stage: the formulas of DeepSpeed's autotuner.

With Adam, weights take 4 bytes per parameter (2 in half precision), gradients the same, and optimizer states 8 (16 with
master weights). Stage 1 shards the optimizer states over the ranks, stage 2 also the gradients, stage 3 also the
weights."""


def needed_bytes(params: int, stage: int, ranks: int, half: bool = False, mp_size: int = 1) -> float:
    """Returns the bytes of model states per rank, without activations."""
    weights = gradients = params * (2.0 if half else 4.0)
    state = params * (16.0 if half else 8.0)
    return (
        weights / (ranks if stage >= 3 else 1)
        + gradients / (ranks if stage >= 2 else 1)
        + state / (ranks if stage >= 1 else 1)
    ) / mp_size


def largest_micro_batch(memory: float, needed: float, activation: float) -> int:
    """The largest micro batch that should fit, with `activation` bytes per sample; 0 if the model does not fit."""
    if memory <= needed + activation:
        return 0
    return int((memory - needed) // activation) if activation > 0 else 2**30


def stages_that_fit(params: int, activation: float, memory: float, ranks: int, half: bool = False) -> list[int]:
    """Returns the stages to try, in order. Lower stages come first, since they communicate less."""
    return [s for s in range(4) if memory > needed_bytes(params, s, ranks, half) + activation]
