"""The data parallel engines of a mixture of experts step together, since they exchange tokens for the experts: while
one reads a prompt, the others wait for its work outside the experts. Engines that balance their prompts (held_back.py)
read them in the same steps and rarely wait.

In both cases the time of the experts is priced with the tokens of all engines (steps.py), as if their prompts came
together. This is derived, not fitted; it improves the predictions for MLPerf's runs of DeepSeek-R1, which were not used
to choose any value here.
"""

from dataclasses import replace

import numpy as np

from autoscout.simulate.serving.engine_shapes import EngineShapes
from autoscout.simulate.serving.steps import Array, decode_step_s, prefill_step_s


def alone_s(e: EngineShapes, tokens: Array, pairs: Array, decodes: Array, context: Array, budget: Array) -> np.ndarray:
    """(n,) seconds that a step with a prompt takes longer than one without, except for experts and their exchange."""
    by_itself = replace(e, meeting=np.ones_like(e.meeting))

    def more(of: EngineShapes) -> np.ndarray:
        mixed = prefill_step_s(of, 1.0, tokens, pairs, decodes, context, budget)
        return mixed - decode_step_s(of, decodes, context) * of.per_step

    lone = more(by_itself)
    of_each = (more(e) - lone) / np.maximum(e.meeting - 1, 1.0)  # what another engine's prompt adds to the experts
    return np.where(e.meeting > 1, np.maximum(lone - np.maximum(of_each, 0.0), 0.0), 0.0)


def waits_s(e: EngineShapes, prompt_s: Array, share: Array, turn: Array) -> np.ndarray:
    """(n,) mean seconds that a step without a prompt waits for other engines. `share`: the share of steps that would
    have a prompt if each prompt were read at once. Only one step in `turn` may have prompts, on all engines alike."""
    without = np.maximum(1 - np.clip(share, 0.0, 1.0), 1e-12) ** turn  # P(an engine has no prompt in a turn)
    others = 1 - without ** (e.meeting - 1)
    return prompt_s * without * others / (turn - 1 + without)
