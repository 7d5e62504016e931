"""Classifies each argument of a program's parser, as data: arguments/PROGRAM.csv has one row per argument.

`kind` is one of these: A `knob` changes speed or memory but not what is trained. `model` and `workload` arguments
describe the job itself. `numerics` arguments change computed values but not the run time. `launcher` and `machine`
arguments state where the job runs. `neutral` arguments (logs, checkpoints, learning-rate schedules) are omitted in
experiments. A `refused` argument selects a model or task that a job cannot describe.

`measured` applies to Megatron-LM, whose experiments run in our own training loop. The column is the source of the
argument's value in experiments. `job`: the job or a knob. `always`: the launch line, because the argument costs memory
or time, and losses of different layouts stay comparable. `end`: the launch line, but only in the final confirmation,
because the argument makes losses diverge or depend on how the batch is split.

`usual` is the program's default. `values` are the values that a job can express. `since` is the first release whose
parser has the argument, `until` the last one; both are empty if unlimited."""

import csv
import functools
import importlib.resources
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Literal

import msgspec

from autoscout.job.words import listed

Kind = Literal["knob", "model", "workload", "numerics", "launcher", "machine", "neutral", "refused"]


class Argument(msgspec.Struct, frozen=True):
    """A row of arguments/PROGRAM.csv. `usual` is empty for a switch and for an argument without a default."""

    kind: Kind
    usual: str
    values: tuple[str, ...]
    since: str
    until: str
    measured: Literal["", "job", "always", "end"] = ""

    def changes(self, words: Sequence[str]) -> bool:
        """Whether an argument with these values differs from the program's default."""
        text = " ".join(words)
        return not self.usual or not (text == self.usual or _number(text) == _number(self.usual) is not None)


@functools.cache
def arguments(program: str) -> Mapping[str, Argument]:
    """Returns the classified arguments of a program's parser, by names such as --hidden-size."""
    text = (importlib.resources.files("autoscout.line") / "arguments" / f"{program}.csv").read_text()
    return {
        row["argument"]: msgspec.convert({**row, "values": row["values"].split()}, Argument)
        for row in csv.DictReader(text.splitlines())
    }


def refused(program: str, given: Mapping[str, Sequence[str]]) -> Iterator[str]:
    """Yields each argument of a line, with its values, that selects a model or task that a job cannot describe."""
    known = arguments(program)
    for name, words in given.items():
        found = known.get(name)
        if found is None or not found.changes(words):
            continue
        if found.kind == "refused" or (found.values and " ".join(words) not in found.values):
            yield " ".join([name, *words])


def unknown(program: str, given: Iterable[str]) -> list[str]:
    """Returns the arguments of a launch line that no release of the program has."""
    return [name for name in given if name not in arguments(program)]


def unnamed(title: str, strange: Sequence[str], fate: str) -> list[str]:
    """Returns a list with a note about arguments that no known release has; [] if there are none. `fate`: what
    experiments and exports do with such arguments."""
    if not strange:
        return []
    return [
        f"no known version of {title} has {listed(strange)}, which is {fate}; if it changes neither the model nor "
        f"the speed, write launch.neutral = {[*strange]}"
    ]


def _number(text: str) -> float | None:
    try:
        return float(text)
    except ValueError:
        return None
