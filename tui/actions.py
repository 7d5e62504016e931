"""The list of all screens and of all actions with their keys, effects, screens, safeguards and equivalent commands. Key
bindings, help, the palette and the table in docs/tui.md are generated from it."""

from collections.abc import Iterator
from typing import NamedTuple

from textual.binding import Binding

SCREENS = {
    "tune": "Tune",
    "arms": "Arms",
    "checks": "Checks",
    "cluster": "Devices",
    "experiments": "Runs",
    "compare": "Compare",
    "knowledge": "KB",
    "launch": "Launch",
    "why": "Why",
}
_RUNS = ("experiments",)
_UNTYPED = ("tune", "arms", "checks", "cluster", "launch", "why")  # screens without text input


class Action(NamedTuple):
    keys: str  # Textual's names of the keys
    does: str  # name of the method action_… without that prefix, with its arguments
    says: str
    shown: str = ""  # the keys as displayed; "": like `keys`
    on: tuple[str, ...] = ()  # screens on which the action is available; (): all
    harm: str = ""  # safeguard against mistakes; "" if the action does not affect the session
    verb: str = ""  # equivalent command line
    footer: str = ""  # label in the footer; "": not shown


ACTIONS = (
    *(
        Action(str(i), f"show('{key}')", f"screen {name}", footer=name, verb="autoscout watch SESSION")
        for i, (key, name) in enumerate(SCREENS.items(), start=1)
    ),
    Action(
        "escape", "leave", "end the running query; leave the box, so that letters act as keys", "esc", footer="keys"
    ),
    Action("q", "quit", "close; the session continues", footer="close"),
    Action("question_mark", "explain", "what this screen shows, and its keys", "?", footer="help"),
    Action("slash", "filter", "filter the experiments", "/", footer="filter"),
    Action("j", "move(1)", "down"),
    Action("k", "move(-1)", "up"),
    Action("n", "turn(1)", "next page", on=("experiments", "knowledge")),
    Action("b", "turn(-1)", "page back", on=("experiments", "knowledge")),
    Action("enter", "unfold", "all knobs, in full", on=("why",)),
    Action("m", "mark", "mark an experiment to compare", on=_RUNS),
    Action("c", "cycle", "next view", on=("compare", "cluster"), verb="autoscout sessions, autoscout why SESSION"),
    Action("y", "copy", "copy the best configuration's command", footer="copy", verb="autoscout export SESSION"),
    Action("left_square_bracket,h", "step(-1)", "one event back in time", "["),
    Action("right_square_bracket,l", "step(1)", "one event forward", "]"),
    Action("left_curly_bracket", "step(-20)", "20 events back", "{"),
    Action("right_curly_bracket", "step(20)", "20 events forward", "}"),
    Action("space", "play", "play the session from its beginning", footer="play"),
    Action("f", "switch", "go to the switch from simulating to profiling"),
    Action("home,g", "rewind", "go to the beginning", "g"),
    Action("end,G", "live", "to now", "G"),
    Action("t", "next_theme", "dark, light, colour-blind safe"),
    Action("ctrl+l", "redraw", "redraw the screen, for example after another program wrote to the terminal"),
    Action(
        "p",
        "pause",
        "pause, or continue",
        on=_UNTYPED,
        harm="the same key continues",
        verb="autoscout steer SESSION pause, go",
    ),
    Action(
        "v",
        "validate",
        "run the configuration that the simulators predict to be best, to check them",
        on=_UNTYPED,
        harm="asks first",
        verb="autoscout steer SESSION validate",
    ),
    Action(
        "S",
        "stop",
        "stop; the finalists are still re-measured",
        on=_UNTYPED,
        harm="asks first",
        verb="autoscout stop SESSION",
    ),
    Action(
        "r",
        "retry",
        "run the experiment under the cursor again",
        on=_RUNS,
        harm="asks first",
        verb="autoscout steer SESSION retry KNOB=VALUE",
    ),
    Action(
        "P",
        "narrow('pin')",
        "pin one of its knob values",
        on=_RUNS,
        harm="asks which",
        verb="autoscout steer SESSION pin KNOB=VALUE",
    ),
    Action(
        "x",
        "narrow('exclude')",
        "exclude one of its knob values",
        on=_RUNS,
        harm="asks which",
        verb="autoscout steer SESSION exclude KNOB=VALUE",
    ),
    Action(
        "colon",
        "order",
        "any order: try, pin, exclude, budget, profile, pause …, or a screen's name",
        ":",
        harm="takes effect only after you type it and press enter",
        verb="autoscout steer SESSION ORDER",
    ),
)
HOME = (
    Action("n", "new", "a new job: from a config.json, a model's name, or the command that you run today",
           footer="new job", verb="autoscout init"),
    Action("enter", "open", "open the session, or check and start the job", footer="open",
           verb="autoscout watch SESSION, autoscout tune JOB.toml"),
    Action("tab", "app.focus_next", "sessions, jobs", footer="other list"),
    Action("j", "move(1)", "down"),
    Action("k", "move(-1)", "up"),
    Action("question_mark", "explain", "what this screen shows, and its keys", "?", footer="help"),
    Action("t", "next_theme", "dark, light, colour-blind safe"),
    Action("ctrl+l", "redraw", "redraw the screen, for example after another program wrote to the terminal"),
    Action("q", "quit", "close; sessions continue", footer="close"),
)  # fmt: skip
WIZARD = (
    Action("tab", "app.focus_next", "next answer", footer="next"),
    Action("ctrl+s", "start", "write the job file and start a session on it",
           harm="only if the check finds no problem", footer="start", verb="autoscout tune JOB.toml"),
    Action("escape", "back", "back, without starting anything", "esc", footer="back"),
)  # fmt: skip


def _binding(action: Action) -> Binding:
    """A Textual binding. The action for redrawing is also available in modals and text inputs, since output of other
    programs may spoil the terminal at any time."""
    urgent = action.does == "redraw"
    return Binding(action.keys, action.does, action.footer or action.says, show=bool(action.footer), priority=urgent)


HOME_BINDINGS = tuple(map(_binding, HOME))
WIZARD_BINDINGS = tuple(map(_binding, WIZARD))
BINDINGS = tuple(map(_binding, ACTIONS))
_BY_ACTION = {a.does: a for a in ACTIONS}


def keys_of(action: Action) -> str:
    return action.shown or action.keys


def acts(does: str, screen: str) -> bool:
    """Whether an action is available on a screen; actions that are not in the list always are."""
    found = _BY_ACTION.get(does)
    return found is None or not found.on or screen in found.on


def of_screen(screen: str) -> Iterator[Action]:
    """The actions of a screen, except those that switch to another screen."""
    return (a for a in ACTIONS if acts(a.does, screen) and not a.does.startswith("show("))


def table() -> str:
    """The Markdown table of actions in docs/tui.md."""
    rows = [
        "| key | what it does (also in the palette) | where | safeguard | verb |",
        "|---|---|---|---|---|",
    ]
    places = [(a, ", ".join(SCREENS[s] for s in a.on) or "every screen of a session") for a in ACTIONS]
    places += [(a, "Home") for a in HOME] + [(a, "a new job") for a in WIZARD]
    for a, where in places:
        verb = f"`{a.verb}`" if a.verb else ""
        rows.append(f"| `{keys_of(a)}` | {a.says} | {where} | {a.harm} | {verb} |")
    return "\n".join(rows) + "\n"
