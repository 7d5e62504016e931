import math

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from profile_bench import configuration

from autoscout.running.equivalence import Losses, Reference, judge
from kb.records import Measurement, Status
from tests.tools import guard_table

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


def moved(series: list[float], step: int, by: float) -> list[float]:
    return [value * (1 + by) if number == step else value for number, value in enumerate(series)]


@pytest.mark.parametrize("dtype", ["fp32", "bf16"])
@given(sign=st.sampled_from([-1, 1]), share=st.floats(0, 3), step=st.integers(0, 2))
def test_deviations_count_from_the_tolerance_of_their_step_on(dtype: str, sign: int, share: float, step: int) -> None:
    check = Losses(dtype)
    for field, tolerances in (("losses", check.losses), ("grad_norms", check.norms)):
        by = sign * share * tolerances[step > 0]
        measured = msgspec.structs.replace(REFERENCE, **{field: moved(getattr(REFERENCE, field), step, by)})
        if abs(share - 1) > 1e-3:
            assert (check.compare(REFERENCE, measured) == "") == (share < 1)


def test_rounding_grows_with_width_and_depth_in_bf16_only() -> None:
    assert Losses("bf16", 4096, 32).losses[0] == pytest.approx(4 * Losses("bf16", 1024, 8).losses[0])
    assert Losses("bf16", 64, 2).losses == Losses("bf16").losses
    assert Losses("fp32", 4096, 32).norms == Losses("fp32").norms


def test_the_norm_of_the_experts_comes_after_those_of_all() -> None:
    reference = msgspec.structs.replace(REFERENCE, grad_norms=[*REFERENCE.grad_norms, 0.3])
    measured = msgspec.structs.replace(reference, grad_norms=moved(reference.grad_norms, 3, -0.3))
    assert "gradient norms deviate by 0.3 in step 1" in Losses("bf16").compare(reference, measured)


def test_evidence_names_both_series_and_the_deviation() -> None:
    evidence = Losses("fp32").compare(REFERENCE, shifted(norms=0.5))
    assert evidence == (
        "gradient norms deviate by 0.5 in step 1 (allowed 0.0002): expected [1.7, 1.6, 1.3], found [2.55, 2.4, 1.95]"
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


def test_recorded_runs_are_told_apart_by_a_factor_of_three() -> None:
    """Of tests/tools/guard_table.py: correct layouts up to 4096 wide, and traps of the rules."""
    correct, traps = [], []
    for reference, *others in guard_table.groups().values():
        for row in others:
            share = max(share for _, share in guard_table.shares(reference, row).values())
            (traps if row.trap else correct).append((share, row))
    assert len(correct) >= 60
    assert {row.hidden for _, row in correct if row.dtype == "fp32"} >= {256, 1024, 1536, 2048, 4096}
    assert {row.hidden for _, row in correct if row.dtype == "bf16"} >= {256, 1024, 1536, 2048}
    assert max(correct)[0] < 1 / 3, max(correct)
    assert {(row.dtype, row.trap) for _, row in traps} == {(d, t) for d in ("fp32", "bf16") for t in ("P9", "M18")}
    assert min(traps)[0] > 3, min(traps)


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
