"""Encodes rows of codes as integers, for sorting and for finding equal rows."""

from collections.abc import Sequence

import numpy as np


def packed(codes: np.ndarray, radices: Sequence[int]) -> tuple[np.ndarray, int]:
    """Encodes each row of codes (≥ −1) as one integer. Returns (integers, their exclusive upper bound)."""
    key, size = np.zeros(len(codes), dtype=np.int64), 1
    for column, radix in enumerate(radices):
        if size * radix >= 2**62:
            key, size = np.unique(key, return_inverse=True)[1].reshape(-1), len(codes)
        key = key * radix + (codes[:, column] + np.int64(1))
        size *= radix
    return key, size


def distinct(key: np.ndarray, size: int) -> tuple[np.ndarray, np.ndarray]:
    """Returns (each key's index among the sorted distinct keys, a position of each distinct key). All keys are below
    `size`."""
    if size > 4 * len(key) + 100_000:
        _, place, which = np.unique(key, return_index=True, return_inverse=True)
        return which.reshape(-1), place
    place = np.full(size, -1, dtype=np.int64)
    place[key] = np.arange(len(key))
    seen = place >= 0
    return (np.cumsum(seen) - 1)[key], place[seen]
