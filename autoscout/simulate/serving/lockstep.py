"""Data parallel engines of an MoE model run their steps in lockstep, because they exchange tokens for the experts.
While one engine computes a prompt, the other engines wait for its work outside the experts. Engines that balance their
prompts (held_back.py) compute them in the same steps and rarely wait.

The time of the experts (steps.py) assumes that all engines have as many tokens as this one. The waits are derived, not
fitted; they improve the predictions of MLPerf's runs of DeepSeek-R1, which no constant was fitted to."""

from dataclasses import replace

import numpy as np

from autoscout.simulate.serving.engine_shapes import EngineShapes
from autoscout.simulate.serving.steps import Array, decode_step_s, prefill_step_s


def alone_s(e: EngineShapes, tokens: Array, pairs: Array, decodes: Array, context: Array, budget: Array) -> np.ndarray:
    """(n,) seconds that `tokens` of a prompt add to a step, excluding experts and their token exchange."""
    by_itself = replace(e, meeting=np.ones_like(e.meeting))

    def more(of: EngineShapes) -> np.ndarray:
        mixed = prefill_step_s(of, 1.0, tokens, pairs, decodes, context, budget)
        return mixed - decode_step_s(of, decodes, context) * of.per_step

    lone = more(by_itself)
    of_each = (more(e) - lone) / np.maximum(e.meeting - 1, 1.0)  # seconds that another engine adds to the experts
    return np.where(e.meeting > 1, np.maximum(lone - np.maximum(of_each, 0.0), 0.0), 0.0)


def waits_s(e: EngineShapes, prompt_s: Array, share: Array, turn: Array) -> np.ndarray:
    """(n,) mean seconds that a step without a prompt waits for other engines. `prompt_s`: seconds that a prompt adds to
    a step; `share`: share of steps with a prompt if prompts were never delayed. One step in `turn` may contain
    prompts."""
    without = np.maximum(1 - np.clip(share, 0.0, 1.0), 1e-12) ** turn  # P(no prompt on an engine)
    others = 1 - without ** (e.meeting - 1)
    return prompt_s * without * others / (turn - 1 + without)
