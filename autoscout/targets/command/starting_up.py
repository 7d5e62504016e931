"""Checks the conditions that a program asserts at its start ([[starts]] of a framework)."""

import re
from collections.abc import Iterator

from autoscout.line.launch_line import Line
from autoscout.space.language.expression import Expression
from autoscout.targets.command.preset import Preset


def not_starting(line: Line, known: Preset, gpus: int) -> Iterator[str]:
    """Yields a sentence for each condition that the line breaks. `gpus`: total of all nodes, 0 if unknown. Omitted
    settings have the program's default. Conditions on shell variables are not checked."""
    for start in known.starts if gpus else ():
        given = {name: line.value(sets) for name, (sets, _) in start.names.items()}
        values = {name: start.names[name][1] if value is None else value for name, value in given.items()}
        values |= {"gpus": gpus}
        unread = any(type(value) is not int for value in values.values())
        if unread or (start.unless and re.search(start.unless, str(line))) or Expression(start.holds)(values):
            continue
        own = {start.names[name][0].rstrip("="): values[name] for name, value in given.items() if value is None}
        why = f"; the line does not give {', '.join(f'{name}, which is then {value}' for name, value in own.items())}"
        yield f"launch.current does not start: {start.reason.format_map(values)}{why * bool(own)}"
