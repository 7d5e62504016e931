"""A ds_config with lists, which tests change."""

from typing import Any

OPTIMIZER = {"type": "AdamW", "params": {"lr": 1e-4, "betas": [0.9, 0.95]}}
CONFIG: dict[str, Any] = {
    "train_batch_size": 16,
    "train_micro_batch_size_per_gpu": [1, 2, 4, 8],
    "optimizer": OPTIMIZER,
    "zero_optimization": {"stage": [0, 1, 2, 3], "reduce_bucket_size": [50000, 5000000]},
}
