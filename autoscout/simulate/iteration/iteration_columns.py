"""The columns that the RL iteration model reads, in addition to those of the training model."""

from typing import Any

import numpy as np

from autoscout.simulate.training.inputs import READ as TRAINED

# Defaults of absent columns (a string names another column). `answers`: answers per iteration; `group`: answers per
# prompt; `longest`: token limit of an answer. `passes`: passes over the answers; `updates`: optimizer steps per pass.
# `old`, `reference`: number of log-probability passes of the old policy and of the reference model, with micro batches
# of `probe_mbs` and `reference_mbs` answers. `padded`: sequences are padded to the longest of the micro batch (1), to
# the longest of the rank (2), or not (0). `fill`: tokens per micro batch (0: it has `mbs` samples instead). `lag`: age
# limit of answers, in policy updates. `roll_…`: settings of the rollout engine; if `roll_engine` is empty, the
# trainer's own `generate` produces the answers; with 0 `roll_gpus`, it shares the trainer's devices. `graphs`: lengths
# of answers differ, so no trainer replays its layers as CUDA graphs. On CPU ranks: `threads`: threads of a rank;
# `…_calls`, `…_layer_calls`: the framework's Python, alone and for each layer, 0: unknown; `micro_collectives`: small
# messages of each micro batch (cpu_ranks.py).
DEFAULTS: dict[str, Any] = {
    "answers": np.nan, "group": 1.0, "longest": np.nan, "updates": 1.0, "passes": 1.0, "old": 1.0, "reference": 0.0,
    "padded": 0.0, "fill": 0.0, "probe_mbs": "mbs", "reference_mbs": "probe_mbs", "lag": 0.0, "roll_gpus": 0.0,
    "roll_engine": "", "roll_version": "", "roll_tp": 1.0, "roll_share": 0.9, "roll_seqs": 256.0,
    "roll_tokens": 8192.0, "roll_eager": 0.0, "graphs": 0.0, "threads": 1.0, "micro_collectives": 0.0,
    **{f"{what}{of}_calls": 0.0 for what in ("token", "pass", "micro", "again") for of in ("", "_layer")},
}  # fmt: skip
READ = (*TRAINED, *DEFAULTS)
