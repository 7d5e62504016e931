"""From (job, configuration) to what a person runs: `vllm serve` with the engine's own arguments."""

from autoscout.cluster import devices
from autoscout.running import power
from autoscout.targets.launch import Launch
from autoscout.targets.vllm import arguments
from kb.records import Configuration, Job

MODEL = "MODEL"  # where the job has random weights only
NO_IMAGE = "IMAGE"
_IMAGE = "vllm/vllm-openai"


def launch(job: Job, configuration: Configuration) -> Launch:
    from autoscout.targets.jobs import catalog_of

    on_gpus = all(node.device != "cpu" for node in job.cluster.nodes)
    spread = arguments.placement(job, configuration)
    used = [node.count for node in devices.used_nodes(job, configuration)] if spread else []
    missing = [] if job.launch.model_path else [f"the model in place of {MODEL}"]
    if not on_gpus:
        missing.append(f"for Kubernetes an image with vLLM for CPUs in place of {NO_IMAGE}")
    if len(used) > 1:
        missing.append(f"a Ray cluster of {len(used)} nodes (`ray start` on each, which the Slurm script does)")
    missing += power.advice(configuration)
    return Launch(
        job=job.name,
        name="",
        evidence="",
        program=["vllm", "serve", job.launch.model_path or MODEL],
        arguments={**arguments.flags(arguments.engine_arguments(job, configuration))},
        environment=arguments.environment_variables(job),
        devices=used or [arguments.world_size(configuration)],
        missing=missing,
        image=f"{_IMAGE}:v{catalog_of(job).version}" if on_gpus else NO_IMAGE,
        on_gpus=on_gpus,
    )
