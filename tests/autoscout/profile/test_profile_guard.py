import math

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from profile_bench import configuration

from autoscout.profile.guard import TOLERANCES, compare, judge
from kb.records import Measurement

REFERENCE = Measurement(
    configuration=configuration(),
    name="mbs2",
    context="here",
    status="ok",
    losses=[6.2, 6.1, 6.0],
    grad_norms=[1.7, 1.6, 1.3],
)


def shifted(losses: float = 0.0, norms: float = 0.0) -> Measurement:
    return msgspec.structs.replace(
        REFERENCE,
        losses=[value * (1 + losses) for value in REFERENCE.losses],
        grad_norms=[value * (1 + norms) for value in REFERENCE.grad_norms],
    )


@pytest.mark.parametrize("dtype", ["fp32", "bf16"])
@given(sign=st.sampled_from([-1, 1]), share=st.floats(0, 3))
def test_deviations_count_from_the_tolerance_on(dtype: str, sign: int, share: float) -> None:
    losses, norms = TOLERANCES[dtype]
    if abs(share - 1) > 1e-3:
        assert (compare(REFERENCE, shifted(losses=sign * share * losses), dtype) == "") == (share < 1)
        assert (compare(REFERENCE, shifted(norms=sign * share * norms), dtype) == "") == (share < 1)


def test_evidence_names_both_series_and_the_deviation() -> None:
    evidence = compare(REFERENCE, shifted(norms=0.5), "fp32")
    assert evidence == (
        "gradient norms deviate by 0.5 (allowed 0.001): expected [1.7, 1.6, 1.3], found [2.55, 2.4, 1.95]"
    )


@pytest.mark.parametrize("bad", [[math.nan] * 3, [6.2, math.inf, 6.0], []], ids=["nan", "inf", "missing"])
def test_numbers_that_are_none_are_wrong(bad: list[float]) -> None:
    for field in ("losses", "grad_norms"):
        judged = judge(REFERENCE, msgspec.structs.replace(REFERENCE, **{field: bad}), "bf16")
        assert judged.status == "wrong"
        assert judged.evidence


def test_failures_stay_what_they_are() -> None:
    failed = msgspec.structs.replace(REFERENCE, status="oom", losses=[], evidence="out of memory")
    assert judge(REFERENCE, failed, "fp32") is failed
    assert judge(REFERENCE, REFERENCE, "fp32") is REFERENCE
