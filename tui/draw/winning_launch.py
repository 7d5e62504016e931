"""The launch of a configuration, as text."""

from kb.records import AutoscoutError, Configuration, Job
from tui.draw.panels import gain
from tui.session.state import State


def command(state: State) -> str:
    """The launch command of the best configuration so far; "" if there is none yet."""
    winner = state.winner
    if state.job is None or winner is None:
        return ""
    name = state.confirmed.name if state.confirmed else state.best.name if state.best else ""
    return command_of(state.job, winner, name, gain(state))


def command_of(job: Job, configuration: Configuration, name: str, evidence: str) -> str:
    """The launch command of a configuration, or the reason why it has none."""
    from autoscout.deploy.export import launch, written

    try:
        return written(job, launch(job, configuration, name, evidence), "command")
    except AutoscoutError as error:
        return str(error)
