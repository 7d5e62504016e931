"""Fronts, boxes and the expected gain of hypervolume, against their definitions."""

import itertools

import numpy as np
import pytest

from autoscout.search.hypervolume import boxes, expected_gain, front, reference


def dominated(points: np.ndarray, samples: np.ndarray) -> np.ndarray:
    """(s,) whether each sample is dominated by a point."""
    return np.array([bool((points <= sample).all(axis=1).any()) for sample in samples])


def test_a_front_is_what_nothing_dominates():
    points = np.array([[1.0, 4.0], [2.0, 2.0], [2.0, 3.0], [4.0, 1.0], [2.0, 2.0], [5.0, 5.0]])
    assert front(points).tolist() == [[1.0, 4.0], [2.0, 2.0], [4.0, 1.0]]


def test_the_reference_is_a_tenth_of_the_range_beyond_the_worst():
    assert reference(np.array([[1.0, 4.0], [4.0, 2.0], [3.0, 9.0]])) == pytest.approx([4.3, 9.7])
    assert reference(np.array([[1.0, 1.0]])) == pytest.approx([1.1, 1.1])


@pytest.mark.parametrize("objectives", [2, 3, 4])
def test_boxes_are_disjoint_and_cover_what_is_not_dominated(objectives):
    rng = np.random.default_rng(objectives)
    points, beyond = rng.random((7, objectives)), np.full(objectives, 1.1)
    lower, upper = boxes(front(points), beyond)
    samples = rng.uniform(-0.3, 1.1, (4000, objectives))
    inside = ((lower[None] <= samples[:, None]) & (samples[:, None] < upper[None])).all(axis=2).sum(axis=1)
    assert (inside == ~dominated(points, samples)).all()


def improvement(y: np.ndarray, points: np.ndarray, beyond: np.ndarray) -> float:
    """The volume that y adds: a grid of all coordinates is exact."""
    axes = [np.unique([*points[:, j], y[j], beyond[j]]) for j in range(len(y))]
    axes = [a[a <= b] for a, b in zip(axes, beyond, strict=True)]
    total = 0.0
    for cell in itertools.product(*(itertools.pairwise(a) for a in axes)):
        low, high = np.array([c[0] for c in cell]), np.array([c[1] for c in cell])
        if (y <= low).all() and not (points <= low).all(axis=1).any():
            total += float(np.prod(high - low))
    return total


@pytest.mark.parametrize("objectives", [2, 3])
def test_the_expected_gain_is_the_mean_over_draws(objectives):
    rng = np.random.default_rng(objectives)
    points, beyond = rng.random((4, objectives)), np.full(objectives, 1.1)
    mean, deviation = rng.random((3, objectives)), rng.uniform(0.05, 0.4, (3, objectives))
    found = expected_gain(mean, deviation, points, beyond)
    for m, d, each in zip(mean, deviation, found, strict=True):
        drawn = [improvement(y, points, beyond) for y in m + d * rng.standard_normal((1500, objectives))]
        assert each == pytest.approx(np.mean(drawn), abs=4 * np.std(drawn) / np.sqrt(len(drawn)))


def test_what_is_sure_adds_exactly_its_volume():
    points, beyond = np.array([[1.0, 3.0], [3.0, 1.0]]), np.array([4.0, 4.0])
    sure = np.full((3, 2), 1e-9)
    found = expected_gain(np.array([[2.0, 2.0], [3.5, 3.5], [0.5, 0.5]]), sure, points, beyond)
    assert found == pytest.approx([1.0, 0.0, 3.5 * 3.5 - 5.0], abs=1e-6)
