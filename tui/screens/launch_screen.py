"""The screen "launch": the best configuration, its differences from the default, and the command that runs it."""

import sys

from rich.text import Text
from textual.app import ComposeResult

from tui.draw import panels
from tui.draw.winning_launch import command
from tui.screens.pane import Pane
from tui.session.state import State
from tui.text import clauses
from tui.widgets.panel import Panel


class LaunchPane(Pane):
    help = {
        "best against default": "the settings that the best configuration changes",
        "evidence": "the verdict, and the measurements behind it",
        "run it": "the launch of the best configuration; y copies it, also over SSH, and writes it to a file",
    }

    def compose(self) -> ComposeResult:
        yield Panel("best against default", lambda w, h: panels.changes(self.state, w, h, self.ascii), "launch-changes")
        yield Panel("evidence", lambda w, h: evidence(self.state), "launch-evidence")
        run_it = Panel("run it", lambda w, h: Text(command(self.state)), "launch-command")
        run_it.takes_long = lambda: "autoscout.deploy.export" not in sys.modules  # the first call imports all launchers
        yield run_it


def evidence(state: State) -> Text:
    if state.job is None or state.best_value is None:
        return Text(f"nothing {state.seen} yet", style="dim")
    text = Text(panels.gain(state))
    c = state.confirmed
    if state.seen == "designed":  # a design cannot be launched, but older sessions may have recorded a command
        return text
    if c is not None and c.sentence:
        text.append("\n" + "\n".join(clauses(c.sentence)))
    elif c is not None and c.behind is not None and c.rival_name:
        sure = c.behind_low is not None and c.behind_low > 1
        text.append(
            f"\nnext best {c.rival_name}: {c.behind:.3f}× the best one's cost" + ("" if sure else ", within the noise")
        )
    if c is None:
        text.append("\nnot re-measured yet: the session does this at its end", style="dim")
    return text
