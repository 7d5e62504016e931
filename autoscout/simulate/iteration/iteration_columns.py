"""The columns of an RL iteration, beside those of its training."""

from typing import Any

import numpy as np

from autoscout.simulate.training.inputs import READ as TRAINED

# What stands for those that are absent. `answers` of an iteration, `group` of them to a prompt, `longest` tokens of
# one; `updates`, optimizer steps of each of the `passes` over them. `old`, `reference`: passes for log-probabilities,
# of `probe_mbs` and `reference_mbs` answers at once. `padded`: sequences are as long as the longest of a micro batch
# (1) or of a rank's answers (2), or have no padding (0). `fill`: tokens of a micro batch that is filled up (0: it has
# `mbs` samples). `lag`: updates by which answers may be older. `roll_…` is of the engine: `roll_engine` "" stands for
# the trainer's own `generate`; `roll_gpus` 0: it shares the trainer's devices.
DEFAULTS: dict[str, Any] = {
    "answers": np.nan, "group": 1.0, "longest": np.nan, "updates": 1.0, "passes": 1.0, "old": 1.0, "reference": 0.0,
    "padded": 0.0, "fill": 0.0, "probe_mbs": "mbs", "reference_mbs": "probe_mbs", "lag": 0.0, "roll_gpus": 0.0,
    "roll_engine": "", "roll_version": "", "roll_tp": 1.0, "roll_share": 0.9, "roll_seqs": 256.0,
    "roll_tokens": 8192.0, "roll_eager": 0.0,
}  # fmt: skip
READ = (*TRAINED, *DEFAULTS)
