"""A whole cluster as knobs: devices, network, collectives and layout. Evaluated on cost models."""

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from autoscout.targets.target import Target, shipped
from kb.records import DESIGNED, Configuration, Job

if TYPE_CHECKING:
    from autoscout.running.interfaces import Profiler
    from autoscout.simulate.member import Member
    from autoscout.space.graph import Space
    from autoscout.space.knob import Catalog


class Stack(Target):
    name = "stack"
    tasks = ("pretrain", "serve")
    about = f"whole clusters, {DESIGNED}: network, collectives and devices as knobs"
    needs_model = True
    designs = True
    proven = f"{DESIGNED}: held against closed forms and published simulator logs (docs/full-stack.md)"

    def metrics(self, job: Job) -> tuple[str, ...]:
        from autoscout.simulate.stack.designs import METRICS

        return METRICS

    def problems(self, job: Job) -> Iterator[str]:
        from autoscout.targets.stack.tailored import problems

        yield from problems(job)

    def catalog(self, job: Job) -> "Catalog":
        from autoscout.targets.stack.tailored import tailored

        return tailored(shipped(self.name), job)

    def recipes(self, space: "Space") -> Iterator[Configuration]:
        from autoscout.targets.stack.expert import advised

        yield from advised(space)

    def profiler(self, job: Job) -> "Profiler":
        from autoscout.targets.stack.profiler import StackProfiler

        return StackProfiler(job)

    def simulators(self, job: Job) -> "list[Member]":
        from autoscout.simulate.stack.stack_member import ClosedForm
        from autoscout.simulate.stack.workloads import workloads

        return [ClosedForm(job.objective, workloads(job))]

    def described_by(self, files: list[Path]) -> dict[str, Any] | None:
        from autoscout.targets.stack.importer import job_of

        return job_of(files)
