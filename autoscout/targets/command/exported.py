"""Exports a configuration of a user's own command, and runs the short or long check that the export works.
Configurations are converted as in experiments (arguments.py), without the settings that only measurements need: the
command runs as many iterations as the user's own, and rendered files are in autoscout-run/ in its working directory."""

import functools
import tempfile
from collections.abc import Callable
from pathlib import Path

import msgspec

from autoscout.line.launch_line import Line
from autoscout.running import processes
from autoscout.running.cluster.devices import device_kind, used_nodes
from autoscout.running.supervised import Ended
from autoscout.targets.command import measurement, phases, under_load
from autoscout.targets.command.arguments import (
    EXPORT_FOLDER,
    EXPORT_PORT,
    ITERATIONS,
    Place,
    Started,
    command_of,
    export_place,
    kinds_by_knob,
    names_of,
    spoken,
    started,
    today,
    while_measured,
)
from autoscout.targets.command.failures import classify
from autoscout.targets.command.preset import preset_of
from autoscout.targets.command.rendered import NESTED, put_into
from autoscout.targets.command.watched_run import OutputReader, launched, prepare
from autoscout.targets.current_launch import command_line, left_to_a_shell
from autoscout.targets.launch import PLACES, Launch
from kb.records import AutoscoutError, Configuration, Job, Value


def exported(
    job: Job, configuration: Configuration, mapping: Callable[[Job, Configuration, Place], Started] = started
) -> Launch:
    """Returns the exported launch. `mapping`: the function that converted configurations to commands in experiments.
    Errors: AutoscoutError (exit 2)."""
    if not command_of(job):
        raise AutoscoutError(
            f"{job.name} has no launch to export: your own script measured it; `autoscout best` shows the winner's "
            f"knobs",
            2,
        )
    run = mapping(job, configuration, export_place(job))
    words = [word.replace(ITERATIONS, "ITERATIONS") for word in run.words]
    used = used_nodes(job, configuration)
    environment = run.environment
    placeholders = spoken(job)
    missing = ["ITERATIONS, the number of iterations to train"] if words != run.words else []
    line = command_line(job)
    if job.cluster.hosts:
        missing.append(PLACES)
    for name in kinds_by_knob(job):
        by_kind = run.by_kind.items()
        values = [f"{each[f'@{name}@']} on {kind}" for kind, each in by_kind if f"@{name}@" in each]
        missing.append(f"{name.upper()}: on each host the value for its kind of device: {', '.join(values)}")
        words = [word.replace(f"@{name}@", name.upper()) for word in words]
        environment = {key: value.replace(f"@{name}@", name.upper()) for key, value in environment.items()}
    if "port" in placeholders:
        missing.append(f"a different port if {EXPORT_PORT} is in use")
    if "folder" in placeholders and not run.files:
        missing.append(f"your output folder instead of {EXPORT_FOLDER}")
    return Launch(
        job=job.name,
        name="",
        evidence="",
        program=words,
        arguments={},
        environment=environment,
        devices=[node.count for node in used],
        files=run.files,
        missing=missing,
        variables=[] if line.for_shell else left_to_a_shell(line),
        folder=job.launch.path,
        on_gpus=device_kind(job) == "cuda",
        port=_port(job, run.line),
    )


def _port(job: Job, line: Line) -> int:
    """Returns the port of a line's server; 0 if the line starts no server."""
    served = preset_of(job).served
    if served is None:
        return 0
    port = line.value(served.port)
    return port if isinstance(port, int) else served.usual_port


def tried(job: Job, launch: Launch, form: str, iterations: int) -> float:
    """Runs an exported launch until it has reported `iterations` iterations; returns the elapsed seconds. A long check
    also adds the preset's flags for checkpoints and evaluations. Errors: AutoscoutError (exit 2) for an export format
    that cannot be started here, (exit 1) if the run fails."""
    if form not in ("command", "json", "yaml"):
        raise AutoscoutError(f"--check cannot start --format {form} on this machine; use it with --format command", 2)
    with tempfile.TemporaryDirectory(prefix="autoscout-check-") as name:
        folder = Path(name).resolve()
        prepare(folder)
        run = Started(
            line=_started_here(job, launch, str(folder), iterations),
            environment={**launch.environment, **phases.variables(preset_of(job), launch.environment)},
            files=put_into(
                {file.replace(EXPORT_FOLDER, str(folder), 1): content for file, content in launch.files.items()},
                _extra(job, str(folder), iterations) if launch.files and job.launch.script else {},
            ),
        )
        wanted = msgspec.structs.replace(job.launch, warmup=1, measure_s=float("inf"), iterations=iterations)
        reader = _Until(msgspec.structs.replace(job, launch=wanted), folder, None)
        limit = job.launch.timeout_s * max(1.0, iterations / (job.launch.iterations + job.launch.warmup))
        ended = launched(job, run, folder, limit, lambda: False, reader)
        reported = reader.reported
        if reported >= iterations or (ended.code == 0 and reported):
            if iterations > 2 and _saves(job, run, folder) and not any(folder.glob("checkpoint/**/*")):
                raise AutoscoutError(f"the exported launch ran {reported} iterations here, but wrote no checkpoint")
            return ended.seconds
        raise AutoscoutError(_why(job, ended, folder, limit, reported, iterations))


class _Until(OutputReader):
    """Ends a run after enough values of the objective. A run that reports only a final summary is not ended early."""

    @property
    def reported(self) -> int:
        """Returns the number of reported values of the objective, including warm-up; 1 for a final summary."""
        if costs := self.costs():
            return len(costs) + self.warm_up()
        return int(self._job.objective.metric in measurement.readings(self._job, self.values()).metrics)

    def enough(self) -> str:
        super().enough()
        return f"{self.reported} iterations" if self.reported >= self._job.launch.iterations else ""


def _started_here(job: Job, launch: Launch, folder: str, iterations: int) -> Line:
    """Returns the exported line with its placeholders filled in for this machine, and with its files in `folder`."""
    port = str(processes.free_port()) if "port" in spoken(job) else EXPORT_PORT
    places = {EXPORT_FOLDER: folder, "ITERATIONS": str(iterations + 1), EXPORT_PORT: port}
    line = Line(tuple(functools.reduce(lambda text, place: text.replace(*place), places.items(), word)
                      for word in launch.program))  # fmt: skip
    if line.words[:2] == ("bash", "-c") or not job.launch.script:
        return line
    preset = preset_of(job)
    if preset.served is not None:
        place = Place(folder=folder, port=str(processes.free_port()), iterations="")
        return under_load.script(job, line, preset, names_of(job, Configuration(launch.configuration), {}, place))
    for flag, value in _extra(job, folder, iterations).items():
        if not flag.startswith(NESTED):
            line = line.with_(flag, value)
    return line


def _extra(job: Job, folder: str, iterations: int) -> dict[str, Value]:
    """Returns the settings that a check adds: for the long check, the preset's `soak` (checkpoints, evaluations); for
    the short one, the settings that only experiments have."""
    preset = preset_of(job)
    extra = preset.soak if iterations > 2 else while_measured(today(job), preset)
    places = {"{iterations}": str(iterations + 1), "{folder}": folder}
    texts = {sets: value for sets, value in extra.items() if isinstance(value, str)}
    filled = {
        s: functools.reduce(lambda text, place: text.replace(*place), places.items(), t) for s, t in texts.items()
    }
    return {**extra, **filled}


def _saves(job: Job, run: Started, folder: Path) -> bool:
    """Whether a long check makes the command write a checkpoint."""
    wanted = any("{folder}/checkpoint" in str(value) for value in preset_of(job).soak.values())
    return wanted and any(f"{folder}/checkpoint" in text for text in (*run.words, *run.files.values()))


def _why(job: Job, ended: Ended, folder: Path, limit: float, reported: int, iterations: int) -> str:
    log = folder / "output.log"
    lacking = f"it reported {reported} of {iterations} iterations"
    _, evidence = classify(ended, log, preset_of(job).failure, limit, 0, lacking, reported > 0)
    last = log.read_text(errors="replace").strip().rpartition("\n")[2] if log.is_file() else ""
    return f"the exported launch does not work here: {evidence.partition(' (log:')[0]}; its last line: {last[:200]}"
