"""Runs a worker script that predicts configurations without running them (a shadow), in one process under the target's
interpreter and with a time limit. Questions (configurations) and answers (predictions) are passed in files."""

import json
import os
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from autoscout.running import supervised
from kb.records import AutoscoutError


def shadows_of(
    script: Path,
    asked: list[dict[str, Any]],
    python: list[str],
    limit_s: float,
    environment: Mapping[str, str],
    stopping: Callable[[], bool] = lambda: False,
) -> list[dict[str, Any] | None]:
    """The worker script's answer to each question in `asked`; None for questions that are not answered at the time
    limit, when the script's process tree is ended. Errors: AutoscoutError if the script ends by itself before it has
    answered all questions, if it is interrupted, or if temporary files cannot be written."""
    try:
        holder = tempfile.TemporaryDirectory(prefix="autoscout-shadow-")
    except OSError as error:
        raise AutoscoutError(
            f"{tempfile.gettempdir()}: cannot write the temporary files of a shadow run ({error.strerror}); free "
            "some space, or set TMPDIR"
        ) from error
    with holder as place:
        folder = Path(place)
        for number, question in enumerate(asked):
            (folder / f"question-{number}.json").write_text(json.dumps(question))
        program = os.path.abspath(python[0]) if os.sep in python[0] else python[0]  # the worker runs in another folder
        ended = supervised.run(
            [program, *python[1:], str(script), place],
            environment,
            folder,
            folder,
            limit_s,
            stopping,
            lambda output: None,
            lambda: "",
        )
        found = [_answer(folder / f"answer-{number}.json") for number in range(len(asked))]
        if ended.stopped:
            raise AutoscoutError("interrupted", 130)
        if (
            not ended.timed_out
            and (lost := next((i for i, rank in enumerate(found) if rank is None), None)) is not None
        ):
            lines = (folder / "output.log").read_text(errors="replace").strip().splitlines()
            why = ended.problem or (lines[-1][:300] if lines else f"exit code {ended.code}")
            whose = f"the run of rank {asked[lost]['rank']}" if "rank" in asked[lost] else "the run"
            raise AutoscoutError(f"{whose} ended without a result: {why}")
    return found


def _answer(path: Path) -> dict[str, Any] | None:
    try:
        return json.loads(path.read_text())
    except (OSError, ValueError):
        return None
