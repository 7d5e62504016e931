"""What the serving model predicts of a server that a preset starts: its knobs and flags by that model's names."""

import shlex
from collections.abc import Mapping
from typing import Any

import msgspec
import numpy as np

from autoscout.simulate.member import Columns, Prediction
from autoscout.simulate.serving.simulator import ServingSimulator, rows_of
from autoscout.space.language.expression import Expression
from autoscout.targets.command.flags import said
from autoscout.targets.command.preset import preset_of
from autoscout.targets.command.under_load import canonical
from kb.records import Job

# Within the names of flags: what they do to speed depends on what a line does not say.
_NOT_SAID = {"spec": "how often its guesses are accepted", "quantization": "which kernels it takes"}


class OfEngine(ServingSimulator):
    """The serving model of another engine than vLLM. `names`: knobs by the model's names; `line`: what else it is told,
    of the engine and by its line; `unknown`: of which configurations it says nothing; `why`: "" or why of none."""

    def __init__(self, metric: str, names: Mapping[str, str], line: Mapping[str, Any], unknown: str, why: str) -> None:
        super().__init__(metric)
        self.names, self.line, self.unknown, self.why = names, line, Expression(unknown), why

    def applies(self, columns: Columns) -> str:
        return self.why or super().applies(self._named(columns))

    def predict(self, columns: Columns) -> Prediction:
        named = self._named(columns)
        found = super().predict(named)
        asked = {name: named.get(name, False) for name in self.unknown.names}  # a knob may be closed
        unknown, _ = self.unknown.on(asked, rows_of(named))
        return msgspec.structs.replace(found, value=np.where(np.asarray(unknown, dtype=bool), np.nan, found.value))

    def _named(self, columns: Columns) -> dict[str, Any]:
        renamed = {self.names[name]: values for name, values in columns.items() if name in self.names}
        return {**columns, **self.line, **renamed}


def simulators(job: Job, metric: str) -> list[OfEngine]:
    """[] for a preset whose engine is not modelled, and without a model's shape."""
    preset = preset_of(job)
    served = preset.served
    if served is None or not served.engine or not job.model.layers:
        return []
    words = canonical(shlex.split(job.launch.current), served)
    names = {knob.name: served.predicted[knob.sets] for knob in preset.knob if knob.sets in served.predicted}
    told = {name: value for flag, name in served.predicted.items() if (value := said(words, flag)) is not None}
    if "ep" in told:  # 1 splits nothing
        told["ep"] = told["ep"] != 1
    open_ = ((word, what) for word in words for part, what in _NOT_SAID.items() if word[:2] == "--" and part in word)
    why = next((f"of {word} the serving model does not know {what}" for word, what in open_), "")
    return [OfEngine(metric, names, {**served.engine, **told}, served.unknown, why)]
