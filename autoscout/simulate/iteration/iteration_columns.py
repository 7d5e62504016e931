"""The columns of an RL iteration, in addition to those of its training."""

from typing import Any

import numpy as np

from autoscout.simulate.training.inputs import READ as TRAINED

# Values of absent columns. `answers`: answers per iteration, `group` of them per prompt, each of at most `longest`
# tokens. `updates`: optimizer steps in each of the `passes` over the answers. `old`, `reference`: number of passes for
# log-probabilities, with `probe_mbs` and `reference_mbs` answers at once. `padded`: sequences are padded to the longest
# of a micro batch (1), of a rank's answers (2), or not at all (0). `fill`: tokens to which a micro batch is filled (0:
# it has `mbs` samples). `lag`: how many updates old answers may be. Columns `roll_…` belong to the engine: an empty
# `roll_engine` is the trainer's own `generate`, and with `roll_gpus` = 0 it shares the trainer's devices.
DEFAULTS: dict[str, Any] = {
    "answers": np.nan, "group": 1.0, "longest": np.nan, "updates": 1.0, "passes": 1.0, "old": 1.0, "reference": 0.0,
    "padded": 0.0, "fill": 0.0, "probe_mbs": "mbs", "reference_mbs": "probe_mbs", "lag": 0.0, "roll_gpus": 0.0,
    "roll_engine": "", "roll_version": "", "roll_tp": 1.0, "roll_share": 0.9, "roll_seqs": 256.0,
    "roll_tokens": 8192.0, "roll_eager": 0.0,
}  # fmt: skip
READ = (*TRAINED, *DEFAULTS)
