"""Determines whether a training run can resume from its checkpoint with a different configuration.

The rules for an engine are entries of its preset (line/frameworks/*.toml), based on the engine's source."""

from collections.abc import Callable, Sequence

from kb.records import Strict, Value

FlagValue = Callable[[str], Value | list[str] | None]  # returns a flag's value in a launch, None if it is not set


class CheckpointRule(Strict, frozen=True, kw_only=True):
    """If one of `flags` differs between two launches, the sentence `says` describes the effect on the checkpoint.
    `beside`: the rule applies only if this additional flag is set."""

    flags: list[str]
    says: str
    beside: str = ""
    source: str = ""


def carried_over(rules: Sequence[CheckpointRule], now: FlagValue, new: FlagValue) -> str:
    """Returns the sentence of the first rule that applies if a run changes from the launch `now` to the launch `new`;
    "" if there are no rules for the engine."""
    for rule in rules:
        applies = not rule.beside or new(rule.beside) not in (None, False)
        if applies and any(_value(now(flag)) != _value(new(flag)) for flag in rule.flags):
            return rule.says
    return "loads unchanged: no flag on which a checkpoint depends differs" if rules else ""


def _value(value: Value | list[str] | None) -> Value | list[str] | None:
    return None if value is False else value
