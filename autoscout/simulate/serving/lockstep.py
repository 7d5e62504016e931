"""Data parallel engines of a mixture of experts step together, since their tokens meet in its experts: while one reads
a prompt, the others wait for what it alone computes. Engines that balance their prompts (held_back.py) read them in the
same steps, so that they wait seldom, and never where each has some.

The experts' own time is priced with the tokens of all engines in either case (steps.py), as if their prompts came
together. By reasoning; MLPerf's runs of DeepSeek-R1, by which nothing of it was chosen, are predicted better with it.
"""

from dataclasses import replace

import numpy as np

from autoscout.simulate.serving.engine_shapes import EngineShapes
from autoscout.simulate.serving.steps import Array, decode_step_s, prefill_step_s


def alone_s(e: EngineShapes, tokens: Array, pairs: Array, decodes: Array, context: Array, budget: Array) -> np.ndarray:
    """(n,) seconds of a step with a prompt, beyond one without, but for the experts and their exchange."""
    by_itself = replace(e, meeting=np.ones_like(e.meeting))

    def more(of: EngineShapes) -> np.ndarray:
        mixed = prefill_step_s(of, 1.0, tokens, pairs, decodes, context, budget)
        return mixed - decode_step_s(of, decodes, context) * of.per_step

    lone = more(by_itself)
    of_each = (more(e) - lone) / np.maximum(e.meeting - 1, 1.0)  # what another engine's prompt adds to experts
    return np.where(e.meeting > 1, np.maximum(lone - np.maximum(of_each, 0.0), 0.0), 0.0)


def waits_s(e: EngineShapes, prompt_s: Array, share: Array, turn: Array) -> np.ndarray:
    """(n,) mean seconds that a step without a prompt waits for other engines', of which a `share` of the steps would
    have one if each were read at once. One in `turn` steps has some, of all engines together."""
    without = np.maximum(1 - np.clip(share, 0.0, 1.0), 1e-12) ** turn  # the chance that an engine has none in a turn
    others = 1 - without ** (e.meeting - 1)
    return prompt_s * without * others / (turn - 1 + without)
