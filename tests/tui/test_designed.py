"""A session of designs: no screen calls measured what a model said."""

import msgspec
import pytest
from tui_samples import configuration, decided, experiment, measured, started

from kb import journal as j
from kb.records import DESIGNED
from tui.draw import checking, comparing, panels
from tui.draw.running import ended
from tui.draw.runs import describe, experiment_row
from tui.screens.launch_screen import evidence
from tui.session.eta import to_confirm
from tui.session.headlines import verdict
from tui.session.standing import standing
from tui.session.state import fold

MODEL = {"recommended": DESIGNED, "model": "d7d534c0e6c0"}


def designed(environment: dict[str, str]):
    first = msgspec.structs.replace(started(), environment=environment)
    default, better, nearly = configuration(tp=2), configuration(tp=4), configuration(tp=4, mbs=2)
    events: list[j.AnyEvent] = [first, decided(1, "DEFAULT", default, first.at)]
    for i, (c, seconds) in enumerate(((default, 2.0), (better, 1.0), (nearly, 1.1)), start=1):
        events += experiment(i, measured(c, seconds), first.at + i)
    check = j.Checked(
        name="tp4", predicted=1.0, measured=1.1, mape=0.1, epsilon=0.15, weights={}, step=1, at=first.at + 5
    )
    return fold([*events, check])


def shown(state) -> str:
    parts = [
        panels.headline(state, standing(state, None), 120, False),
        panels.curve(state, 80, 12, False),
        panels.trust(state, 60, 8, False),
        checking.checks(state, 60, 12, False),
        checking.check_list(state, 100, 10, False),
        comparing.side_by_side(state, [], 120),
        comparing.effects(state, 60, 10, False),
        describe(state, state.runs[-1], [], False),
        evidence(state),
    ]
    return "\n".join(part.plain for part in parts)


@pytest.mark.parametrize(("environment", "words"), [(MODEL, ("designed",)), ({"torch": "2.13.0"}, ("measured",))])
def test_screens_say_what_became_of_a_configuration(environment, words):
    said = shown(designed(environment))
    assert all(word in said for word in words)
    assert ("measured" in said) == (words == ("measured",))
    assert ("every experiment is real" in said) == (words == ("measured",))


def test_the_table_names_a_configuration_by_what_differs_from_the_reference():
    state = designed(MODEL)
    assert [experiment_row(state, i, False)[-1] for i in range(3)] == ["the reference", "tp 4", "tp 4, mbs 2"]


def test_the_result_of_designs_claims_no_interval_whatever_a_session_of_before_wrote():
    state = designed(MODEL)
    winner, rival = state.runs[1], state.runs[2]
    state.apply(
        j.Confirmed(
            winner=winner.configuration,
            name=winner.name,
            value=1.0,
            default_name=state.runs[0].name,
            default_value=2.0,
            gain=2.0,
            low=1.99,
            high=2.01,
            pairs=2,
            rival_name=rival.name,
            behind=1.1,
            behind_low=1.09,
            behind_high=1.11,
            verdict="faster",
            sentence="+100.0% (95 % interval +99.0% to +101.0%; 2 rounds)",
        )
    )
    said = ended(state, 120).plain.splitlines()
    assert said[:2] == [verdict(state), "tp 4"]
    assert said[-1] == "next: tp 4, mbs 2, 1.100× its cost"
    assert "2.0 × as fast as the expert default" in said[0]
    assert "nothing was measured" in said[0]
    assert "interval" not in "\n".join([*said, evidence(state).plain])


def test_nothing_of_designs_is_expected_to_run_again():
    assert to_confirm(designed(MODEL)) == 0
    assert to_confirm(designed({})) > 0
