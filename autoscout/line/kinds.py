"""What each argument of a program's parser is to a job, as data: arguments/PROGRAM.csv, a row an argument.

`knob` changes speed or memory and not what is trained; `model` and `workload` are a job's own; `numerics` changes what
is computed and not how long it takes; `launcher` and `machine` say where it runs; `neutral` are logs, checkpoints and
the schedule of learning, which a measured run does without; `refused` makes another model or task than a job can say.
`measured` says where our own training loop, which has no more of Megatron-LM, gets it: by the `job` or a knob, `always`
from the line (it costs memory and time and keeps the losses of layouts comparable), or at the `end` alone (losses then
depend on how the batch is split, or diverge). `usual` is the program's default, and `values` are those that a job can
say. `since` and `until` are the first and last release whose parser has it, empty where the oldest and the newest that
were asked have it.
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
        """Whether an argument with these words is anything but the program's default."""
        said = " ".join(words)
        return not self.usual or not (said == self.usual or _number(said) == _number(self.usual) is not None)


@functools.cache
def arguments(program: str) -> Mapping[str, Argument]:
    """The arguments of a program's parser by their names, as --hidden-size."""
    text = (importlib.resources.files("autoscout.line") / "arguments" / f"{program}.csv").read_text()
    return {
        row["argument"]: msgspec.convert({**row, "values": row["values"].split()}, Argument)
        for row in csv.DictReader(text.splitlines())
    }


def refused(program: str, said: Mapping[str, Sequence[str]]) -> Iterator[str]:
    """Arguments of a line, each with its words, that make another model or task than a job can say."""
    known = arguments(program)
    for name, words in said.items():
        found = known.get(name)
        if found is None or not found.changes(words):
            continue
        if found.kind == "refused" or (found.values and " ".join(words) not in found.values):
            yield " ".join([name, *words])


def unknown(program: str, said: Iterable[str]) -> list[str]:
    """Arguments of a line that no release of the program has."""
    return [name for name in said if name not in arguments(program)]


def unnamed(title: str, strange: Sequence[str], fate: str) -> list[str]:
    """A sentence for arguments that no known release has. `fate`: what experiments and exports do with them."""
    if not strange:
        return []
    return [
        f"no known {title} has {listed(strange)}: {fate}; if it changes neither the model nor the speed, say so: "
        f"launch.neutral = {[*strange]}"
    ]


def _number(text: str) -> float | None:
    try:
        return float(text)
    except ValueError:
        return None
