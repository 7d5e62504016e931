"""The correctness guard: a configuration must compute what the reference computes, not only be fast.

All layouts of a job start from the same weights and see the same batches (worker/weights.py and
worker/batches.py), so their first losses and gradient norms may differ by rounding only.
"""

import math

import msgspec

from kb.records import Measurement

# Largest relative deviations (losses, gradient norms). About 100 correct layouts of dense and MoE models on
# CPUs stay within 6e-6 and 1.2e-4 in fp32, and 3e-5 and 5e-3 in bf16. Interleaving that mixes up messages is
# off by 7e-3 and more. Expert gradients that are not summed over tensor-parallel ranks are off by 1e-4 to 9e-4
# and 3e-3 to 3e-2: seen in fp32, but in bf16 they can hide in the rounding, so the space must exclude them.
TOLERANCES = {"fp32": (1e-4, 1e-3), "bf16": (1e-3, 5e-2)}


def compare(reference: Measurement, measured: Measurement, dtype: str) -> str:
    """ "" when the first losses and gradient norms agree within the tolerance of `dtype`, else why not."""
    losses, norms = TOLERANCES[dtype]
    return _compare("losses", reference.losses, measured.losses, losses) or _compare(
        "gradient norms", reference.grad_norms, measured.grad_norms, norms
    )


def judge(reference: Measurement, measured: Measurement, dtype: str) -> Measurement:
    """The measurement, with status "wrong" and the evidence when it is ok but does not agree."""
    if measured.status != "ok":
        return measured
    evidence = compare(reference, measured, dtype)
    return msgspec.structs.replace(measured, status="wrong", evidence=evidence) if evidence else measured


def _compare(what: str, expected: list[float], found: list[float], tolerance: float) -> str:
    if not found or len(found) < len(expected):
        return f"{what} are missing: expected {_series(expected)}, found {_series(found)}"
    if not all(math.isfinite(value) for value in found):
        return f"{what} are not finite: expected {_series(expected)}, found {_series(found)}"
    deviation = max(
        abs(value - wanted) / max(abs(wanted), 1e-12) for wanted, value in zip(expected, found, strict=False)
    )
    if deviation <= tolerance:
        return ""
    return (
        f"{what} deviate by {deviation:.2g} (allowed {tolerance:g}): "
        f"expected {_series(expected)}, found {_series(found)}"
    )


def _series(values: list[float]) -> str:
    return "[" + ", ".join(f"{value:.5g}" for value in values) + "]"
