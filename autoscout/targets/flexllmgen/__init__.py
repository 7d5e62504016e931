"""FlexLLMGen's offloading policies: generation with a model larger than GPU memory. Evaluated on its cost model."""

from collections.abc import Iterator
from typing import TYPE_CHECKING

from autoscout.targets.target import Target
from kb.records import DESIGNED, Configuration, Job

if TYPE_CHECKING:
    from autoscout.running.interfaces import Profiler
    from autoscout.simulate.member import Member
    from autoscout.space.graph import Space
    from autoscout.targets.launch import Launch


class FlexLLMGen(Target):
    name = "flexllmgen"
    tasks = ("serve",)
    about = f"offloaded generation with FlexLLMGen, {DESIGNED}"
    needs_model = True
    designs = True
    proven = f"{DESIGNED}: its own cost model and its linear program; no GPU was there"

    def metrics(self, job: Job) -> tuple[str, ...]:
        return ("output_tokens_per_s", "block_s", "prefill_s", "gpu_gib", "cpu_gib", "disk_gib")

    def problems(self, job: Job) -> Iterator[str]:
        for name in ("input_len", "output_len"):
            if not isinstance(getattr(job.traffic, name), int) or getattr(job.traffic, name) < 2:
                yield f"traffic.{name} of a policy is one number of tokens, at least 2: its blocks are padded"
        if job.devices != 1:
            yield f"a policy is of one GPU, and the cluster has {job.devices}; give one node with count = 1"

    def recipes(self, space: "Space") -> Iterator[Configuration]:
        from autoscout.targets.flexllmgen.policies import in_host_memory
        from autoscout.targets.recipes import first, stated

        yield first(space, stated(space), in_host_memory(space))

    def profiler(self, job: Job) -> "Profiler":
        from autoscout.targets.flexllmgen.policies import PolicyProfiler

        return PolicyProfiler(job)

    def launch(self, job: Job, configuration: Configuration) -> "Launch":
        from autoscout.targets.flexllmgen.policies import launch

        return launch(job, configuration)

    def simulators(self, job: Job) -> "list[Member]":
        from autoscout.targets.flexllmgen.policies import CostModel

        return [CostModel(job)]
