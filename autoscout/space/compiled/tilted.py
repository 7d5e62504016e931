"""Non-uniform samples of a diagram: towards some values of each knob, or towards rare structures."""

from collections.abc import Mapping

import numpy as np

from autoscout.space.compiled.diagram import Diagram


def tilted(diagram: Diagram, weight: Mapping[int, np.ndarray], n: int, rng: np.random.Generator) -> np.ndarray:
    """(n, knobs) codes of valid configurations, each drawn in proportion to the product of its knobs' weights (knob
    index → positive floats by code + 1; a knob without weights is free)."""
    ways: list[np.ndarray] = []
    below = np.ones(1)
    for level in reversed(diagram.levels):
        way = below[level.to]
        if level.knob in weight:
            way = way * weight[level.knob][level.code + 1]
        below = np.add.reduceat(way, level.first[:-1])
        scale = below.max()  # over hundreds of levels the sums would leave the range of floats
        ways.append(way / scale)
        below /= scale
    return _walked(diagram, ways[::-1], n, rng)


def varied(diagram: Diagram, n: int, rng: np.random.Generator) -> np.ndarray:
    """(n, knobs) codes: every edge of a state is equally likely, so that structures with few points come as often as
    those with many."""
    return _walked(diagram, [np.ones(len(level.code)) for level in diagram.levels], n, rng)


def _walked(diagram: Diagram, ways: list[np.ndarray], n: int, rng: np.random.Generator) -> np.ndarray:
    """Draws edges: each in proportion to its `ways`, compared with those of the state's other edges."""
    out = np.zeros((n, len(diagram.radix)), dtype=np.int16)
    at = np.zeros(n, dtype=np.int64)
    for level, way in zip(diagram.levels, ways, strict=True):
        up_to = np.cumsum(way)
        before = np.concatenate([[0.0], up_to])[level.first]
        here = before[at] + rng.random(n) * (before[at + 1] - before[at])
        edge = np.clip(np.searchsorted(up_to, here, side="right"), level.first[at], level.first[at + 1] - 1)
        out[:, level.knob] = level.code[edge]
        at = level.to[edge]
    return out
