"""What each argument of a program's parser means to a job, as data: arguments/PROGRAM.csv, one row per argument.

`knob` changes speed or memory but not what is trained. `model` and `workload` describe the job itself. `numerics`
changes what is computed but not how long it takes. `launcher` and `machine` say where it runs. `neutral` arguments
(logs, checkpoints, learning-rate schedules) are left out of a measured run. `refused` makes a model or task that a job
cannot describe.

`measured` tells where our own training loop, which supports no other arguments of Megatron-LM, gets the value: from the
`job` or a knob; `always` from the line (it costs memory and time, and losses of layouts stay comparable); or from the
line only at the `end` (it makes losses depend on how the batch is split, or diverge). `usual` is the program's default.
`values` are those that a job can express. `since` and `until` are the first and last release whose parser has the
argument; empty if the oldest or newest release that we asked has it.
"""

import csv
import functools
import importlib.resources
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Literal

import msgspec

from autoscout.job.words import listed

Kind = Literal["knob", "model", "workload", "numerics", "launcher", "machine", "neutral", "refused"]


class Argument(msgspec.Struct, frozen=True):
    """`usual` is empty for a switch and for an argument without a default."""

    kind: Kind
    usual: str
    values: tuple[str, ...]
    since: str
    until: str
    measured: Literal["", "job", "always", "end"] = ""

    def changes(self, words: Sequence[str]) -> bool:
        """Whether an argument with these words differs from the program's default."""
        text = " ".join(words)
        return not self.usual or not (text == self.usual or _number(text) == _number(self.usual) is not None)


@functools.cache
def arguments(program: str) -> Mapping[str, Argument]:
    """The arguments of a program's parser by their names, as --hidden-size."""
    text = (importlib.resources.files("autoscout.line") / "arguments" / f"{program}.csv").read_text()
    return {
        row["argument"]: msgspec.convert({**row, "values": row["values"].split()}, Argument)
        for row in csv.DictReader(text.splitlines())
    }


def refused(program: str, given: Mapping[str, Sequence[str]]) -> Iterator[str]:
    """The arguments in a line, each with its words, that make a model or task which a job cannot describe."""
    known = arguments(program)
    for name, words in given.items():
        found = known.get(name)
        if found is None or not found.changes(words):
            continue
        if found.kind == "refused" or (found.values and " ".join(words) not in found.values):
            yield " ".join([name, *words])


def unknown(program: str, given: Iterable[str]) -> list[str]:
    """Arguments of a line that no release of the program has."""
    return [name for name in given if name not in arguments(program)]


def unnamed(title: str, strange: Sequence[str], fate: str) -> list[str]:
    """A sentence about arguments that no known release has. `fate`: what experiments and exports do with them."""
    if not strange:
        return []
    return [
        f"no known version of {title} has {listed(strange)}: {fate}; if it changes neither the model nor the speed, "
        f"declare it: launch.neutral = {[*strange]}"
    ]


def _number(text: str) -> float | None:
    try:
        return float(text)
    except ValueError:
        return None
