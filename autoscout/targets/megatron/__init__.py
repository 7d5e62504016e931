"""The target Megatron-core: experiments train with our worker, and exports are command lines of Megatron-LM."""

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
    from autoscout.simulate.shadow.traced import Shadow
    from autoscout.space.graph import Space
    from autoscout.space.knob import Catalog, KnobEntry, RuleEntry
    from autoscout.targets.audited import Audit
    from autoscout.targets.found import Reader
    from autoscout.targets.launch import Launch
    from autoscout.targets.seams import SeamFit
    from autoscout.targets.tracing import ShadowAsked


class Megatron(Target):
    name = "megatron"
    tasks = ("pretrain", "finetune")
    about = "training with Megatron-core"
    needs_model = True
    asked_for = True
    proven = (
        "megatron-core 0.16.1: torch 2.13.0, CPU ranks over gloo; torch 2.11.0 and Transformer Engine 2.11.0, one H100"
    )
    packages = ("torch", "megatron-core")
    how = "pip install torch megatron-core==0.16.1, or name an interpreter that has them in launch.python"

    def problems(self, job: Job) -> Iterator[str]:
        if job.model.experts and job.model.bias:
            yield (
                "model.bias = true with experts fails or trains incorrectly in Megatron-core 0.16.1; set "
                "model.bias = false"
            )
        from autoscout.targets.megatron import finetuning

        yield from finetuning.finetuning_problems(job)
        if job.launch.current:
            from autoscout.targets.megatron.training_line import training_line_problems

            yield from training_line_problems(job)

    def notes_on_job(self, job: Job) -> list[str]:
        from autoscout.job.device_names import capability_of
        from autoscout.running.cluster.devices import device_kind
        from autoscout.targets.current_launch import for_a_shell, line_of
        from autoscout.targets.jobs import JobSpace
        from autoscout.targets.megatron.persons import unmeasured
        from autoscout.targets.megatron.training_line import launched

        notes = [*for_a_shell(line_of(job)), *unmeasured(job, ("knob", "numerics"))]
        old = sorted({node.device for node in job.cluster.nodes if 0 < capability_of(node.device) < 8})
        if old and job.model.dtype == "bf16":
            notes.append(
                f"{listed(old)}: the tensor cores have no bf16, and jobs cannot ask for fp16; predictions assume the "
                "speed of fp16, but a run in bf16 is several times slower"
            )
        if device_kind(job) == "cuda" and not job.launch.transformer_engine:
            notes.append(
                "on GPUs only runs with Transformer Engine are measured: write transformer_engine = true under "
                "[launch]; predictions for a job without it assume attention and losses without fused kernels"
            )
        if device_kind(job) == "cuda" and job.model.dtype == "fp32":
            notes.append(
                "model.dtype = 'fp32': on GPUs, fp32 is several times slower than bf16; remove model.dtype to use bf16"
            )
        return [*notes, *(launched(JobSpace.of_job(job), job)[1] if job.launch.current else [])]

    def catalog(self, job: Job) -> "Catalog":
        from autoscout.targets.megatron.unequal import with_depths
        from autoscout.targets.megatron.within_nodes import within_nodes

        return within_nodes(with_depths(super().catalog(job), job), job)

    def adapted(self, catalog: "Catalog", job: Job) -> "Catalog":
        from autoscout.targets.megatron import releases

        return releases.adapted(catalog, job)

    def notes(self, catalog: "Catalog", job: Job) -> list[str]:
        from autoscout.targets.megatron import releases

        return releases.notes(catalog, job)

    def refuses_knob(self, knob: "KnobEntry") -> str:
        from autoscout.targets.megatron.arguments import CLASSES

        if knob.sets.startswith((*CLASSES, "--", "env:")):
            return ""
        ways = ", ".join(f"{name}…" for name in CLASSES)
        return (
            f"sets = '{knob.sets}', but Megatron-core accepts your own knobs only as {ways}, as a flag (--…) or "
            "as a variable (env:…)"
        )

    def recognises(self, line: "Line") -> dict[str, Any] | None:
        from autoscout.targets.megatron.from_line import job_of_line

        return job_of_line(line)

    def model_of_line(self, line: "Line") -> tuple[dict[str, Any], list[str]]:
        from autoscout.targets.megatron.from_line import model_of_line

        return model_of_line(line)

    def device_rules(self, kinds: Sequence[str]) -> "list[RuleEntry]":
        from autoscout.space.knob import RuleEntry

        groups = RuleEntry(
            id="H2",
            holds=" and ".join(f"{kind} % tp == 0" for kind in kinds),
            reason="a tensor parallel group of {tp} would contain two kinds of device",
            source="all ranks of a group wait for the slowest one after every layer",
            checked="ours",
        )
        return [groups]

    def recipes(self, space: "Space") -> Iterator[Configuration]:
        from autoscout.targets.megatron.expert import portfolio
        from autoscout.targets.megatron.training_line import launched

        job: Job | None = getattr(space, "job", None)
        if job is not None and job.launch.current:
            yield launched(space, job)[0]
        yield from portfolio(space)

    def profiler(self, job: Job) -> "Profiler":
        from autoscout.targets.megatron.profiler import profiler

        return profiler(job)

    def fit(self, job: Job, environment: dict[str, str]) -> "SeamFit | None":
        from autoscout.targets.megatron.engine_seams import PACKAGE, fit

        return fit(job, environment[PACKAGE]) if PACKAGE in environment else None

    def ready(self, job: Job, environment: dict[str, str]) -> str:
        from autoscout.targets.megatron.engine_seams import PACKAGE, ready

        return ready(job, environment[PACKAGE]) if PACKAGE in environment else ""

    def audit(self, job: Job | None) -> "Audit":
        from autoscout.targets.megatron.engine_audit import audit

        return audit(job)

    def equivalence(self, job: Job) -> "Check":
        from autoscout.running.equivalence import Losses

        return Losses(job.model.dtype, job.model.hidden, job.model.layers)

    def probe_line(self, job: Job, configuration: Configuration, experiment: Path) -> str:
        from autoscout.running.cluster.devices import device_kind, used_nodes
        from autoscout.running.interpreter import target_python
        from autoscout.running.torchrun import on_nodes, torchrun_command
        from autoscout.targets.megatron.arguments import world_size
        from autoscout.targets.megatron.profiler import RANK

        python, ranks = target_python(job), [node.count for node in used_nodes(job, configuration)]
        if len(ranks) == 1 or device_kind(job) == "cpu":
            return shlex.join(torchrun_command(python, RANK, experiment, world_size(configuration)))
        return "\n".join(on_nodes(python, RANK, experiment, ranks))

    def shadow(self, asked: "ShadowAsked") -> "Shadow":
        from autoscout.targets.megatron.shadow import remember, shadow
        from autoscout.targets.megatron.shadow_parts import from_parts

        if asked.limit_s <= 0:
            try:
                return shadow(asked)
            except AutoscoutError:
                return from_parts(asked)
        found = from_parts(asked) if asked.parts else shadow(asked)
        remember(asked, found)
        return found

    def one_device(self, asked: "ShadowAsked") -> "Shadow":
        from autoscout.targets.megatron.one_device import one_device

        return one_device(asked)

    def launch(self, job: Job, configuration: Configuration) -> "Launch":
        from autoscout.running import power
        from autoscout.running.cluster.devices import device_kind, used_nodes
        from autoscout.targets.launch import Launch
        from autoscout.targets.megatron import arguments, bridge, finetuning, persons
        from kb import door

        finetuning.exportable(job)
        theirs = persons.persons_flags(job)
        # With packing, a sequence contains several samples. The user's data file is not packed, so the launch cannot
        # use it.
        if configuration.knobs.get("packing"):
            theirs.pop("--data-path", None)
        flags = {**arguments.flags(job, configuration), **theirs}
        flags |= persons.vocabulary(job, theirs.get("--tokenizer-type"))
        files = {}
        if arguments.USER_BUFFERS in flags:
            files["tp_comm_overlap.yaml"] = arguments.user_buffers(flags[arguments.USER_BUFFERS])
            flags[arguments.USER_BUFFERS] = "tp_comm_overlap.yaml"
        used = used_nodes(job, configuration)
        devices = [node.count for node in used]
        program, folder = [arguments.SCRIPT], job.launch.path
        missing = arguments.missing(flags, bool(job.launch.current), bool(job.launch.path))
        if job.model.lora:
            program = bridge.PROGRAM + bridge.overrides(job, flags, bool(configuration.knobs.get("packing")))
            flags, missing, folder = {}, bridge.MISSING, ""
        missing = missing + finetuning.missing(job, configuration)
        variables = arguments.variables(job, configuration)
        if len(devices) > 1:  # the network interface differs by host
            variables.pop("GLOO_SOCKET_IFNAME", None)
        return Launch(
            job=job.name,
            name="",
            evidence="",
            program=program,
            arguments=flags,
            environment=variables,
            devices=devices,
            kinds=[door.plain(node.device) for node in used],
            ranks=devices,
            files=files,
            missing=[*missing, *persons.unmeasured(job, ("knob",)), *power.advice(configuration)],
            folder=folder,
            on_gpus=device_kind(job) == "cuda",
        )

    def formats(self) -> "Mapping[str, Callable[[Launch], str]]":
        from autoscout.targets import spread

        return {"hostfile": spread.hostfile, "jobset": spread.jobset, "ray": spread.ray}

    def check(self, job: Job, launch: "Launch", form: str) -> float:
        from autoscout.targets.megatron.two_steps import check

        return check(job, launch, form)

    def soak(self, job: Job, launch: "Launch", form: str) -> float:
        raise AutoscoutError(
            "--soak is not possible here, because AutoScout's own training loop writes no checkpoint and does not read "
            "your data; use --check, which runs two iterations, or tune the script itself with target = 'command'",
            2,
        )

    def as_measured(self, launch: "Launch", environment: dict[str, str]) -> "Launch":
        import msgspec

        from autoscout.targets.megatron import arguments

        if not launch.arguments:  # a recipe of Megatron-Bridge, which has no flags to check
            return launch
        return msgspec.structs.replace(launch, arguments=arguments.as_installed(launch.arguments, environment))

    def checkpoint(self, job: Job, now: Configuration, new: Configuration) -> str:
        from autoscout.targets.checkpoints import carried_over
        from autoscout.targets.command.preset import preset
        from autoscout.targets.megatron import arguments

        before, after = arguments.flags(job, now), arguments.flags(job, new)
        return carried_over(preset("megatron-lm").checkpoint, before.get, after.get)

    def columns(self) -> "Mapping[str, str]":
        return {
            "num_virtual_stages_per_pipeline_rank": "vpp",
            "decoder_first_pipeline_num_layers": "first_layers",
            "decoder_last_pipeline_num_layers": "last_layers",
            "moe_token_dispatcher_type": "dispatcher",
            "cp_comm_type": "cp_comm",
        }

    def readers(self) -> "Mapping[str, Reader]":
        from autoscout.targets.megatron.importer import READER

        return {"megatron": READER}
