"""A first estimate of the peak memory of one rank, to choose an expert default that fits.

Weights, gradients and Adam (Megatron's mixed precision: bf16 weight + fp32 gradient + fp32 master weight and
two moments), sharded as tp, pp, ep and the distributed optimizer do; activations per layer after Korthikanti
et al., "Reducing Activation Recomputation in Large Transformer Models" (equations 2-6), with as many micro
batches in flight as there are pipeline stages.
"""

from collections.abc import Mapping
from typing import Any

from kb.records import Configuration


def estimate_gib(attributes: Mapping[str, Any], configuration: Configuration) -> float:
    a, k = attributes, configuration.knobs
    tp, pp, cp = int(k.get("tp", 1)), int(k.get("pp", 1)), int(k.get("cp", 1))
    dp, ep, etp = int(k.get("dp", 1)), int(k.get("ep", 1)), int(k.get("etp", 1))
    dense = a["params"] - a["expert_params"]
    weights = dense / (tp * pp) + a["expert_params"] / (ep * etp * pp)
    state = 12 * weights / (dp * cp if k.get("distopt") else 1)
    static = weights * (a["dtype_bytes"] + 4) + state

    tokens = a["seq_len"] / cp * int(k["mbs"])
    sequence = tp if k.get("sp") else 1
    half = a["dtype_bytes"] / 2
    per_layer = half * tokens * a["hidden"] * (10 / sequence + 24 / tp)
    scores = 0.0 if a["te"] else half * 5 * a["heads"] * a["seq_len"] / cp * tokens / tp
    if k.get("ar") == "full":
        per_layer, scores = half * 2 * tokens * a["hidden"] / sequence, 0.0
    elif k.get("ar") == "selective":
        scores = 0.0
    activations = (per_layer + scores) * a["layers"]  # layers/pp of them, for pp micro batches in flight
    logits = tokens * a["vocab"] / tp * (4 + a["dtype_bytes"])
    return (static + activations + logits) / 2**30
