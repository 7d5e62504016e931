"""The quality floor: the user's own check command, with its score and a limit.

An 8-bit KV cache or quantized weights change results by design, so the equivalence check is of little use for them; the
user's command measures how much quality is lost. It runs once for each combination of values of such knobs."""

import json
import os
import re
import shlex
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec

from autoscout.running import results, supervised
from autoscout.running.equivalence import QUALITY
from autoscout.space.language.template import filled
from autoscout.targets.launch import words
from autoscout.targets.target import target_of
from kb.records import Configuration, Job, Measurement, content_hash


class Quality:
    """The quality check of one session. `folder`: the session's folder, in which results are stored."""

    def __init__(self, job: Job, reference: Configuration, folder: Path) -> None:
        self._job, self._reference, self._folder = job, reference, folder / "guard"

    def wanted(self, measurement: Measurement) -> bool:
        """Whether to run the check: the measurement succeeded with changed `guard.knobs`, and has no score yet."""
        asks = self._job.guard.command and self._job.launch.launcher != "replay" and QUALITY not in measurement.metrics
        return bool(asks) and measurement.status == "ok" and bool(self._lossy(measurement))

    def judged(self, measurement: Measurement, stopping: Callable[[], bool]) -> Measurement:
        """Runs the check and adds its score as a metric, which equivalence.Floor compares with the limits; status
        "error" if the check prints no number. Errors: AutoscoutError (exit 2) for an unknown placeholder, (exit 1) if
        the folder cannot be written."""
        number, problem = self._known(measurement, stopping)
        if number is None:
            return msgspec.structs.replace(measurement, status="error", evidence=f"guard.command {problem}")
        return msgspec.structs.replace(measurement, metrics={**measurement.metrics, QUALITY: number})

    def _lossy(self, measurement: Measurement) -> dict[str, Any]:
        """The values of `guard.knobs` that differ from the reference's."""
        knobs, theirs = measurement.configuration.knobs, self._reference.knobs
        return {n: knobs[n] for n in self._job.guard.knobs if n in knobs and knobs[n] != theirs.get(n)}

    def _known(self, measurement: Measurement, stopping: Callable[[], bool]) -> tuple[float | None, str]:
        """(score or None, why there is none). Stored for later measurements, unless the check was interrupted."""
        folder = self._folder / content_hash(self._lossy(measurement))
        kept = folder / "said.json"
        if kept.is_file():
            return tuple(json.loads(kept.read_text()))
        with results.writing(folder):
            folder.mkdir(parents=True, exist_ok=True)
        limit_s = self._job.guard.timeout_s
        line = self._line(measurement.configuration)
        cwd = Path(self._job.launch.path or ".")
        ended = supervised.run(
            ["bash", "-c", line], os.environ, cwd, folder, limit_s, stopping, lambda output: None, lambda: ""
        )
        log = folder / "output.log"
        found = re.findall(self._job.guard.pattern, log.read_text(errors="replace"), re.MULTILINE)
        if found and ended.code == 0:
            answer = float(found[-1][-1] if isinstance(found[-1], tuple) else found[-1]), ""
        else:
            how = f"did not end within {limit_s:g} s" if ended.timed_out else f"ended with exit code {ended.code}"
            answer = None, f"printed no number that matches guard.pattern, and {how} (log: {log})"
        if not ended.stopped:
            with results.writing(kept):
                kept.write_text(json.dumps(answer))
        return answer

    def _line(self, configuration: Configuration) -> str:
        names: dict[str, Any] = {**configuration.knobs, "model": self._job.launch.model_path}
        flags = ""
        if "{flags}" in self._job.guard.command:
            launch = target_of(self._job).launch(self._job, configuration)
            flags = shlex.join(word for pair in words(launch) for word in pair)
        names["flags"] = flags
        return filled(
            self._job.guard.command,
            names,
            "guard.command",
            quoted=lambda text: text if flags and text == flags else shlex.quote(text),
        )
