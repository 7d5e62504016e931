"""How long a pipeline takes (Narayanan et al. 2021, "Efficient Large-Scale Language Model Training", section 2.2)."""

import numpy as np

Array = np.ndarray


def idle(slowest: Array, path: Array, chunks: Array) -> Array:
    """Seconds of a step in which the slowest stage waits; the step is m × `slowest` longer.

    `slowest`: forward and backward of a micro batch on the slowest stage; `path`: the same summed over all stages.
    1F1B is a permutation flow shop with equal jobs: the first micro batch passes all stages once, forwards and
    backwards, and the slowest stage needs `slowest` for each of the m − 1 others. With equal stages that is the
    paper's (m + p − 1) t. Interleaving divides the idle part by the chunks of a stage: m t + (p − 1) t / v.
    """
    return (path - slowest) / chunks
