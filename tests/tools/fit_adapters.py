"""Fits four memory constants of plain PyTorch trainers that do not follow from their code (in
autoscout/simulate/training/rank_memory.py), on litgpt's LoRA and QLoRA rows, and again leaving one model out.

    python tests/tools/fit_adapters.py [FOLDER]     FOLDER: ../shared/data, or another with the same files
"""

import sys
from pathlib import Path

import numpy as np
from scipy.optimize import least_squares
from training_accuracy import memories

from autoscout.simulate.training import rank_memory
from autoscout.simulate.training.memory import Memory
from autoscout.simulate.validation.training_tables import columns_of, peak_gib

CONSTANTS = ("EAGER_LOGITS", "EAGER_STREAM", "QUANTISED_INPUT", "QUANTISED")


def main() -> None:
    folder = Path(sys.argv[1]) if len(sys.argv) > 1 else Path("../shared/data")
    rows = next(rows for name, rows in memories(folder).items() if name.startswith("litgpt"))
    peak = peak_gib(rows)
    rows, peak = [r for r, p in zip(rows, peak, strict=True) if np.isfinite(p)], peak[np.isfinite(peak)]
    # The peak is linear in the four constants.
    fixed = peaks(rows, np.zeros(4))
    parts = np.array([peaks(rows, one) - fixed for one in np.eye(4)]).T
    found = fit(fixed, parts, peak)
    print(
        f"{len(rows)} rows: " + ", ".join(f"{name} {value:.2f}" for name, value in zip(CONSTANTS, found, strict=True))
    )
    print(f"MAPE {np.abs((fixed + parts @ found) / peak - 1).mean():.1%}")
    models = np.array([f"{layers:g} {wide:g}" for layers, wide in zip(*shapes(rows), strict=True)])
    held_out = np.empty(len(peak))
    for model in np.unique(models):
        here = models == model
        held_out[here] = fixed[here] + parts[here] @ fit(fixed[~here], parts[~here], peak[~here])
    print(f"leaving one of {len(np.unique(models))} models out: {np.abs(held_out / peak - 1).mean():.1%}")


def shapes(rows: list[dict[str, str]]) -> tuple[np.ndarray, np.ndarray]:
    columns = columns_of(rows)
    return columns["layers"], columns["hidden"]


def peaks(rows: list[dict[str, str]], values: np.ndarray) -> np.ndarray:
    before = [getattr(rank_memory, name) for name in CONSTANTS]
    try:
        for name, value in zip(CONSTANTS, values, strict=True):
            setattr(rank_memory, name, float(value))
        return Memory().predict(columns_of(rows)).value
    finally:
        for name, value in zip(CONSTANTS, before, strict=True):
            setattr(rank_memory, name, value)


def fit(fixed: np.ndarray, parts: np.ndarray, peak: np.ndarray) -> np.ndarray:
    """The constants with the smallest log errors."""
    start = np.array([10.0, 4.0, 2.0, 0.7])
    return least_squares(
        lambda p: np.log(fixed + parts @ p) - np.log(peak), start, bounds=(0, 60), loss="soft_l1", f_scale=0.05
    ).x


if __name__ == "__main__":
    main()
