"""Runs one experiment with a user's own command: starts the command, reads its output, ends it once enough iterations
are measured, and returns the metrics or the failure."""

import math
import sys
from collections.abc import Callable
from pathlib import Path

import msgspec

from autoscout.job.metrics import DEVICES, counts_devices
from autoscout.line.containers import mounted
from autoscout.line.launch_line import Line
from autoscout.running import early, every_host, processes, results
from autoscout.running import outcome as failing
from autoscout.running.cluster.choosing import chooser
from autoscout.running.cluster.devices import device_kind, used_nodes
from autoscout.running.cluster.placement import Placement
from autoscout.running.interpreter import context_of
from autoscout.running.roster import Roster
from autoscout.running.supervised import Ended
from autoscout.running.warm_run import WarmScript
from autoscout.running.worker import ending
from autoscout.targets.command import measurement, phases, surroundings
from autoscout.targets.command.arguments import Place, Started, command_of, export_place, not_on_hosts, started
from autoscout.targets.command.failures import aborted_at_exit, classify, despite, died_of, nearest_lines
from autoscout.targets.command.preset import metrics_of, preset_of
from autoscout.targets.command.watched_run import RESULT, OutputReader, at_the_end, launched, prepare
from autoscout.targets.foretold import Doubts
from kb import dates
from kb.records import AutoscoutError, Configuration, Job, Measurement, Status


class CommandProfiler:
    """Runs the command once per experiment. `mapping`: converts a configuration to a command. `judged`: the target's
    own check of a measurement, given the run's folder."""

    def __init__(
        self,
        job: Job,
        mapping: Callable[[Job, Configuration, Place], Started] = started,
        judged: Callable[[Measurement, Path], Measurement] = lambda found, folder: found,
    ) -> None:
        self._job, self._mapping, self._judged = job, mapping, judged
        self._environment: dict[str, str] = {}
        self._stopping = False
        self._bar: early.Bar | None = None
        self._warm = WarmScript() if job.launch.launcher == "warm" else None
        self._final = False
        self._given: dict[str, str] = {}
        self._roster = Roster(chooser(job)) if job.cluster.hosts else None
        self._doubts: Doubts | None = None

    def on(self, placement: Placement) -> None:
        """Sets the hosts and devices of the next runs. Without hosts, the devices are this machine's GPUs by index."""
        if self._roster is not None:
            self._roster.placement = placement
        else:
            self._given = {"CUDA_VISIBLE_DEVICES": ",".join(device.index for device in placement.hosts[0].devices)}

    def environment(self) -> dict[str, str]:
        """Returns versions and devices, cached. Errors: AutoscoutError (exit 2) for a command that cannot be run."""
        if not self._environment:
            if not command_of(self._job):
                raise AutoscoutError('there is nothing to run: give launch.command, for example "torchrun train.py"', 2)
            if problem := not_on_hosts(self._job):
                raise AutoscoutError(problem, 2)
            self._environment = surroundings.describe(self._job, self._example())
            if self._roster is not None:
                hosts = self._roster.chosen(self._job.devices).hosts
                self._environment["hosts"] = " + ".join(str(len(host.devices)) for host in hosts)
        return self._environment

    def aim(self, bar: early.Bar | None) -> None:
        """Sets the cost above which the next run cannot win and is ended early (running/early.py); None: no limit."""
        self._bar = bar if self._job.launch.end_early else None

    def run(self, configuration: Configuration, name: str, folder: Path) -> Measurement:
        """Runs an experiment in `folder`. A failure is returned as a measurement, with the status "killed" after
        interrupt(). Errors: AutoscoutError if no experiment is possible or the folder cannot be written."""
        try:
            return self._run(configuration, name, folder.resolve())
        finally:
            self._stopping, self._bar = False, None

    def confirming(self, final: bool) -> None:
        """Sets whether the next runs are for the final confirmation, which never uses the warm interpreter."""
        self._final = final

    def adopt(self, folder: Path) -> Measurement | None:
        try:
            return msgspec.json.decode((folder / "measured.json").read_bytes(), type=Measurement)
        except (OSError, msgspec.DecodeError):
            return None

    def interrupt(self) -> None:
        self._stopping = True

    def close(self) -> None:
        if self._warm is not None:
            self._warm.close()

    def _doubted(self, configuration: Configuration, name: str) -> Measurement | None:
        """Returns the failure that a shadow run predicts; None if the configuration has to be measured."""
        if not preset_of(self._job).trained:
            return None
        if self._doubts is None:
            from autoscout.targets.command.doubted_runs import doubts

            self._doubts = doubts(self._job)
        return self._doubts.foretold(configuration, name, lambda: self._stopping)

    def _example(self) -> Started:
        """Returns the reference configuration's command; its environment is recorded with the session."""
        from autoscout.targets.jobs import JobSpace

        place = Place(folder="{folder}", port="29500", iterations="1")
        return self._mapping(self._job, JobSpace.of_job(self._job).reference, place)

    def _run(self, configuration: Configuration, name: str, folder: Path) -> Measurement:
        job, about = self._job, self.environment()
        prepare(folder)
        phases.forget(folder)
        iterations = _iterations(job) * phases.updates(job, configuration)
        place = Place(folder=str(folder), port=str(processes.free_port()), iterations=str(iterations))
        if self._roster is not None:
            place = _anywhere(place)
        run = self._mapping(job, configuration, place)
        clock = phases.variables(preset_of(job), run.environment)
        run = msgspec.structs.replace(run, environment={**self._given, **run.environment, **clock})
        began = dates.now()
        kills = failing.oom_kills()
        begin = None
        if failed := self._doubted(configuration, name):
            return msgspec.structs.replace(failed, context=context_of(job, about), environment=about)
        if self._warm is not None and self._final:
            about = {**about, "launcher": "auto"}
        elif self._warm is not None:
            begin = self._warm.begin
            cwd, variables = Path(job.launch.path or "."), surroundings.variables(job, run)
            python = surroundings.python_of(job, run)
            self._warm.get_ready(python, run.line, variables, cwd, lambda: self._stopping)
        reader = OutputReader(job, folder, self._bar)
        used = used_nodes(job, configuration)
        devices = sum(node.count for node in used)
        if self._roster is not None:
            self._roster.nodes = used if len({node.device for node in job.cluster.nodes}) > 1 else ()
            run = _on_hosts(job, run, folder, self._roster.chosen(devices))
        ended = launched(job, run, folder, job.launch.timeout_s, lambda: self._stopping, reader, begin)
        cost = dates.now() - began
        host, theirs = _failed_first(folder)
        found = self._measured(configuration, name, folder, reader, ended, failing.oom_kills() - kills + theirs)
        if clock and found.status == "ok":
            found = phases.of_all_ranks(found, folder, job)
        if found.status == "ok" and counts_devices(job):
            found = msgspec.structs.replace(found, metrics={**found.metrics, DEVICES: float(devices)})
        if host and found.status != "ok":
            found = msgspec.structs.replace(found, evidence=f"{host}: {found.evidence}")
        if self._roster is not None and (lost := folder / every_host.LOST).is_file():
            host, why = lost.read_text().split("\t", 1)
            found = Measurement(
                configuration=configuration,
                name=name,
                context="",
                status="infrastructure",
                evidence=f"a host failed: {self._roster.note(host, why)}",
                conditions={failing.HOST_LOST: 1.0},
            )
        found = msgspec.structs.replace(
            found,
            context=context_of(job, about),
            environment=about,
            cost_s=cost,
            device_s=cost * devices,
            at=began + cost,
        )
        found = self._judged(found, folder)
        if found.status != "killed":
            with results.writing(folder):
                (folder / "measured.json").write_bytes(msgspec.json.encode(found))
        return found

    def _measured(
        self, configuration: Configuration, name: str, folder: Path, reader: OutputReader, ended: Ended, kills: int
    ) -> Measurement:
        job, log = self._job, folder / "output.log"
        found = measurement.readings(job, reader.values())
        missing = [metric for metric in measurement.wanted(job)[:1] if metric not in found.metrics]
        plain = Measurement(configuration=configuration, name=name, context="", status="ok")
        measured = msgspec.structs.replace(
            plain,
            metrics={**found.metrics, **_of_the_run(reader, ended)},
            iterations_s=found.iterations_s,
            losses=_finite(found.losses),
            grad_norms=_finite(found.grad_norms),
            conditions=_conditions(reader),
        )
        aborted = "" if missing else self._aborted(reader, ended, log)
        known_enough = ended.code == 0 or ended.why or aborted or (ended.timed_out and len(reader.costs()) >= 2)
        if known_enough and not missing:
            if died := self._died(reader, ended, log) or despite(log, preset_of(job).failure):
                return msgspec.structs.replace(plain, status=died[0], evidence=died[1], losses=measured.losses)
            if broken := reader.not_finite():
                return msgspec.structs.replace(measured, status="wrong", evidence=broken)
            if reader.hopeless:
                return msgspec.structs.replace(measured, fidelity="short", evidence=ended.why)
            if aborted:
                return msgspec.structs.replace(
                    measured, evidence=f"the command aborted during its exit, after everything was measured: {aborted}"
                )
            if ended.left:
                note = f"the command left {ended.left} processes running, which AutoScout ended"
                return msgspec.structs.replace(measured, evidence=note)
            return msgspec.structs.replace(measured, evidence=measurement.uneven(job, found.iterations_s))
        lacking = _lacking(job, missing[0], reader, log) if missing else "the command did not end with exit code 0"
        stepped = reader.first_at is not None
        known = preset_of(job).failure
        status, evidence = classify(ended, log, known, job.launch.timeout_s, kills, lacking, stepped)
        return msgspec.structs.replace(plain, status=status, evidence=evidence, losses=measured.losses)

    def _aborted(self, reader: OutputReader, ended: Ended, log: Path) -> str:
        """Returns the error message of a run that reported all metrics and then aborted at its exit; "" if it did not
        abort."""
        launch, sources = self._job.launch, metrics_of(self._job)
        if not at_the_end(sources.values()) and len(reader.costs()) < launch.iterations:
            return ""
        return aborted_at_exit(ended, log, preset_of(self._job).failure)

    def _died(self, reader: OutputReader, ended: Ended, log: Path) -> tuple[Status, str] | None:
        """Returns (status, evidence) of a run that failed despite exit code 0, such as `python train.py | tee log`: it
        reported too few iterations and printed an exception after its last iteration. Else None."""
        wanted, costs = self._job.launch.iterations, reader.costs()
        if ended.code != 0 or not costs or len(costs) >= wanted:
            return None
        after = f"but after {len(costs)} of {wanted} iterations it printed: "
        return died_of(log, reader.patterns(), preset_of(self._job).failure, after)


def _failed_first(folder: Path) -> tuple[str, int]:
    """Returns (name of the host that failed first or "", number of out-of-memory kills by this host's kernel)."""
    path = folder / every_host.FAILED
    if not path.is_file():
        return "", 0
    host, kills = path.read_text().split("\t")
    return host, int(kills)


def over_hosts(
    job: Job, configuration: Configuration, mapping: Callable[[Job, Configuration, Place], Started], folder: Path
) -> Started:
    """Returns the command that starts a user's training on all hosts of the job, with output in `folder`. Errors:
    AutoscoutError for too few hosts."""
    place = _anywhere(msgspec.structs.replace(export_place(job), folder=str(folder)))
    run = mapping(job, configuration, place)
    for name, content in run.files.items():
        with results.writing(Path(name)):
            Path(name).write_text(content)
    devices = sum(node.count for node in used_nodes(job, configuration))
    return _on_hosts(job, run, folder, chooser(job)(devices, frozenset()))


def _anywhere(place: Place) -> Place:
    """Returns the place with placeholders that each host fills in."""
    there = {"node": every_host.NODE, "head": every_host.HEAD, "ranks": every_host.RANKS, "port": every_host.PORT}
    return msgspec.structs.replace(place, **there)


def _on_hosts(job: Job, run: Started, folder: Path, placement: Placement) -> Started:
    """Returns the command wrapped so that it starts on every host."""
    spec = every_host.Spec(
        hosts=job.cluster.hosts,
        placement=placement,
        python=[job.launch.python or sys.executable],
        command=[*(mounted(run.line, str(folder)) if run.files else run.line).words],
        variables={"PYTHONUNBUFFERED": "1", **run.environment, RESULT: str(folder / "result.json")},
        cwd=job.launch.path,
        folder=str(folder),
        files=run.files,
        visible=device_kind(job) == "cuda",
        by_kind=run.by_kind,
    )
    path = folder / "hosts.json"
    with results.writing(path):
        path.write_bytes(msgspec.json.encode(spec))
    return msgspec.structs.replace(run, line=Line((sys.executable, "-m", every_host.__name__, str(path))))


def _iterations(job: Job) -> int:
    """Returns the number of iterations to run: warm-up, measured iterations, and (if times are reported per iteration)
    spare iterations for a longer warm-up."""
    spare = 0 if at_the_end(metrics_of(job).values()) else ending.MOST_WARM
    return job.launch.warmup + job.launch.iterations + spare


def _conditions(reader: OutputReader) -> dict[str, float]:
    costs = reader.costs()
    warm = {"warmup_iterations": float(reader.warm_up())} if len(costs) > 1 else {}
    return {**warm, **early.conditions(costs, bool(reader.hopeless))}


def _of_the_run(reader: OutputReader, ended: Ended) -> dict[str, float]:
    """Returns metrics that need no pattern: `start_output_s` and `start_s`, the seconds from the start to the first
    output and to the first reported iteration, and `peak_rss_gib`, the peak host memory."""
    found = {}
    if ended.first_output_s is not None:
        found["start_output_s"] = ended.first_output_s
    if reader.first_at is not None:
        found["start_s"] = reader.first_at - reader.began
    if ended.peak_rss_gib:
        found["peak_rss_gib"] = ended.peak_rss_gib
    return found


def _lacking(job: Job, metric: str, reader: OutputReader, log: Path) -> str:
    if reader.problem:
        return reader.problem
    sources = metrics_of(job)
    if not sources:
        return (
            f"the output does not contain {metric}: set a pattern in launch.metrics, or let the script write it "
            f"to the file ${RESULT}"
        )
    values = reader.values()
    for name, source in sources.items():
        pattern = source if isinstance(source, str) else source.pattern or source.between or source.counter
        if pattern and not values.get(name):
            return f"no line matches launch.metrics.{name}{nearest_lines(log, pattern)}"
    return f"{metric} was not printed: {', '.join(f'{len(v)} × {n}' for n, v in values.items())}"


def _finite(values: list[float]) -> list[float]:
    return [value for value in values if math.isfinite(value)]
