import math

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from profile_bench import configuration

from autoscout.running.equivalence import TOLERANCES, Losses, Reference, judge
from kb.records import Measurement, Status

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
        assert (Losses(dtype).compare(REFERENCE, shifted(losses=sign * share * losses)) == "") == (share < 1)
        assert (Losses(dtype).compare(REFERENCE, shifted(norms=sign * share * norms)) == "") == (share < 1)


def test_evidence_names_both_series_and_the_deviation() -> None:
    evidence = Losses("fp32").compare(REFERENCE, shifted(norms=0.5))
    assert evidence == (
        "gradient norms deviate by 0.5 (allowed 0.001): expected [1.7, 1.6, 1.3], found [2.55, 2.4, 1.95]"
    )


@pytest.mark.parametrize("bad", [[math.nan] * 3, [6.2, math.inf, 6.0], []], ids=["nan", "inf", "missing"])
def test_numbers_that_are_none_are_wrong(bad: list[float]) -> None:
    for field in ("losses", "grad_norms"):
        judged = judge(Losses("bf16"), REFERENCE, msgspec.structs.replace(REFERENCE, **{field: bad}))
        assert judged.status == "wrong"
        assert judged.evidence


def test_failures_stay_what_they_are() -> None:
    failed = msgspec.structs.replace(REFERENCE, status="oom", losses=[], evidence="out of memory")
    assert judge(Losses("fp32"), REFERENCE, failed) is failed
    assert judge(Losses("fp32"), REFERENCE, REFERENCE) is REFERENCE


@pytest.mark.parametrize("length", [0, 1, 2])
def test_a_shorter_series_is_wrong(length: int) -> None:
    for field in ("losses", "grad_norms"):
        short = msgspec.structs.replace(REFERENCE, **{field: getattr(REFERENCE, field)[:length]})
        assert "are missing" in judge(Losses("fp32"), REFERENCE, short).evidence


# ---- Reference: runs named after what they compute, on configurations that tp tells apart ------------------

DEFAULT = 1


def run(tp: int, group: int, status: Status = "ok") -> Measurement:
    """A run of configuration `tp`; all of the same `group` computed the same."""
    return msgspec.structs.replace(shifted(losses=group / 10), configuration=configuration(tp=tp), status=status)


def verdicts(*runs: Measurement) -> tuple[list[str], int | None]:
    """(statuses, tp of the reference in the end)"""
    reference = Reference(Losses("fp32"), configuration(tp=DEFAULT).id)
    statuses = [reference.judge(one).status for one in runs]
    held = reference.measurement
    return statuses, None if held is None else int(held.configuration.knobs["tp"])


def test_the_first_run_becomes_the_reference() -> None:
    assert verdicts() == ([], None)
    assert verdicts(run(2, 0, status="oom")) == (["oom"], None)
    assert verdicts(run(2, 0), run(3, 0)) == (["ok", "ok"], 2)


@pytest.mark.parametrize("bad", [[math.nan] * 3, [6.2, 6.1], []], ids=["nan", "prefix", "missing"])
def test_numbers_that_are_none_become_no_reference(bad: list[float]) -> None:
    for field in ("losses", "grad_norms"):
        first = msgspec.structs.replace(run(2, 0), **{field: bad})
        assert verdicts(first) == (["wrong"], None)
        assert verdicts(run(2, 0), first) == (["ok", "wrong"], 2)
        default = msgspec.structs.replace(run(DEFAULT, 0), **{field: bad})
        assert verdicts(run(2, 0), default) == (["ok", "wrong"], 2)


def test_what_disagrees_with_the_default_is_wrong() -> None:
    assert verdicts(run(DEFAULT, 0), run(2, 1), run(3, 1)) == (["ok", "wrong", "wrong"], DEFAULT)


def test_what_disagrees_with_a_supported_reference_is_wrong() -> None:
    assert verdicts(run(2, 0), run(3, 0), run(4, 1), run(5, 1)) == (["ok", "ok", "wrong", "wrong"], 2)
    assert verdicts(run(2, 0), run(4, 1), run(3, 0), run(5, 1)) == (["ok", "wrong", "ok", "wrong"], 2)


def test_two_that_agree_replace_an_unsupported_reference() -> None:
    statuses, reference = verdicts(run(2, 1), run(3, 0), run(4, 2), run(5, 0), run(6, 1), run(2, 1), run(7, 0))
    assert statuses == ["ok", "wrong", "wrong", "ok", "wrong", "wrong", "ok"]
    assert reference == 3


def test_a_repeat_speaks_for_nothing() -> None:
    assert verdicts(run(2, 1), run(3, 0), run(3, 0)) == (["ok", "wrong", "wrong"], 2)
    assert verdicts(run(2, 1), run(2, 1), run(3, 0), run(4, 0)) == (["ok", "ok", "wrong", "ok"], 3)


def test_the_default_replaces_what_disagrees_with_it() -> None:
    assert verdicts(run(2, 1), run(DEFAULT, 0), run(3, 1)) == (["ok", "ok", "wrong"], DEFAULT)
    assert verdicts(run(2, 1), run(3, 1), run(DEFAULT, 0), run(4, 1)) == (["ok", "ok", "ok", "wrong"], DEFAULT)
    assert verdicts(run(2, 0), run(DEFAULT, 0), run(4, 1)) == (["ok", "ok", "wrong"], 2)
    assert verdicts(run(DEFAULT, 0), run(DEFAULT, 1)) == (["ok", "wrong"], DEFAULT)


def test_what_an_earlier_session_found_wrong_is_judged_anew() -> None:
    reference = Reference(Losses("fp32"), configuration(tp=DEFAULT).id)
    recorded = msgspec.structs.replace(run(2, 0), status="wrong", evidence="another reference")
    assert reference.judge(recorded) is recorded
    again = reference.rejudge(recorded)
    assert (again.status, again.evidence, reference.measurement) == ("ok", "", again)
    assert reference.rejudge(run(3, 1)).status == "wrong"
    failed = run(4, 0, status="oom")
    assert reference.rejudge(failed) is failed
    diverged = msgspec.structs.replace(run(5, 0), status="wrong", losses=[6.2], grad_norms=[1.7])
    assert "are missing" in reference.rejudge(diverged).evidence
