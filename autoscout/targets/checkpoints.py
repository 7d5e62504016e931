"""Whether a training run can continue under another configuration: how its checkpoint depends on the layout, as data.

The rules of an engine are entries of its preset (line/frameworks/*.toml), read from its source.
"""

from collections.abc import Callable, Sequence

from kb.records import Strict, Value

FlagValue = Callable[[str], Value | list[str] | None]  # flag → its value in a launch; None: not given


class CheckpointRule(Strict, frozen=True, kw_only=True):
    """If one of `flags` differs between two launches, `says` tells what happens to the checkpoint. `beside`: the rule
    applies only if this flag is given, too."""

    flags: list[str]
    says: str
    beside: str = ""
    source: str = ""


def carried_over(rules: Sequence[CheckpointRule], now: FlagValue, new: FlagValue) -> str:
    """The sentence of the first rule that applies; "" if nothing is known of the engine's checkpoints."""
    for rule in rules:
        applies = not rule.beside or new(rule.beside) not in (None, False)
        if applies and any(_value(now(flag)) != _value(new(flag)) for flag in rule.flags):
            return rule.says
    return "loads as it is: no flag that it depends on differs" if rules else ""


def _value(value: Value | list[str] | None) -> Value | list[str] | None:
    return None if value is False else value
