"""Non-uniform samples from a diagram, which favour some values or rare structures."""

from collections.abc import Mapping

import numpy as np

from autoscout.space.compiled.diagram import Diagram


def tilted(diagram: Diagram, weight: Mapping[int, np.ndarray], n: int, rng: np.random.Generator) -> np.ndarray:
    """Draws valid configurations in proportion to the product of their values' weights. Returns codes (n, knobs).
    `weight`: knob index → positive floats by code + 1. Knobs without an entry have equal weights."""
    ways: list[np.ndarray] = []
    below = np.ones(1)
    for level in reversed(diagram.levels):
        way = below[level.to]
        if level.knob in weight:
            way = way * weight[level.knob][level.code + 1]
        below = np.add.reduceat(way, level.first[:-1])
        scale = below.max()  # rescale, since sums over hundreds of levels would overflow
        ways.append(way / scale)
        below /= scale
    return _walked(diagram, ways[::-1], n, rng)


def varied(diagram: Diagram, n: int, rng: np.random.Generator) -> np.ndarray:
    """Draws configurations with equal probability for each edge of a state, so that structures with few points occur as
    often as structures with many points. Returns codes (n, knobs)."""
    return _walked(diagram, [np.ones(len(level.code)) for level in diagram.levels], n, rng)


def _walked(diagram: Diagram, ways: list[np.ndarray], n: int, rng: np.random.Generator) -> np.ndarray:
    """Draws paths through the diagram; at each state, an edge is drawn in proportion to its `ways`."""
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
