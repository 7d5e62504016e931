"""The launch of a session's best configuration, as text."""

from kb.records import AutoscoutError
from tui.draw.panels import gain
from tui.session.state import State


def command(state: State) -> str:
    """The launch command of the best configuration so far; "" if there is none yet."""
    winner = state.winner
    if state.job is None or winner is None:
        return ""
    from autoscout.deploy.export import launch, written

    name = state.confirmed.name if state.confirmed else state.best.name if state.best else ""
    try:
        return written(state.job, launch(state.job, winner, name, gain(state)), "command")
    except AutoscoutError as error:
        return str(error)
