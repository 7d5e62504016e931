"""The target for a user's own command, which is measured and exported as the user launches it."""

from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from autoscout.job.words import listed
from autoscout.targets.target import Target
from kb.records import AutoscoutError, Configuration, Job, Value

if TYPE_CHECKING:
    from pathlib import Path
    from types import ModuleType

    from autoscout.line.launch_line import Line
    from autoscout.running.equivalence import Check
    from autoscout.running.interfaces import Profiler
    from autoscout.simulate.member import Member
    from autoscout.simulate.shadow.served import ServingShadow
    from autoscout.simulate.shadow.traced import Shadow
    from autoscout.space.graph import Space
    from autoscout.space.knob import Catalog, KnobEntry
    from autoscout.targets.command.preset import Preset
    from autoscout.targets.launch import Launch
    from autoscout.targets.model_of_server import ServedModel
    from autoscout.targets.seams import SeamFit
    from autoscout.targets.tracing import ShadowAsked


class Command(Target):
    name = "command"
    about = "any command, with knobs of your own or a preset's"
    tasks = ("pretrain", "finetune", "serve", "rl")
    proven = "PyTorch DDP, Hugging Face/PEFT and Megatron-LM scripts, CPU ranks over gloo"

    def presets(self) -> dict[str, tuple[str, str]]:
        from autoscout.targets.command.preset import names, preset

        return {name: (preset(name).about, preset(name).proven) for name in names()}

    def metrics(self, job: Job) -> tuple[str, ...]:
        from autoscout.targets.command.measurement import known_metrics

        return known_metrics(job)

    def problems(self, job: Job) -> Iterator[str]:
        from autoscout.targets.command import same_batch, under_load
        from autoscout.targets.command.arguments import (
            command_of,
            currently,
            no_place,
            not_warm,
            today,
            unchangeable,
            unfilled,
            unused,
        )
        from autoscout.targets.command.preset import preset_of
        from autoscout.targets.current_launch import command_line
        from autoscout.targets.jobs import declared

        if not (job.space.catalog or job.space.knob or preset_of(job).knob or command_of(job)):
            yield (
                "target = 'command' has no knobs of its own; add [[space.knob]] with a name, its values and the flag "
                "that it sets, or name a catalog that declares them in space.catalog"
            )
            return
        yield from under_load.load_problems(job, preset_of(job))
        if not command_of(job):
            return
        if job.launch.launcher == "warm" and (why := not_warm(job)):
            yield f'launch.launcher = "warm" is not possible: {why}; remove launch.launcher'
        for name in unused(job):
            yield (
                f"knob '{name}' changes nothing: give it sets = \"--a-flag\" (or env:NAME), or write {{{name}}} where "
                f"it belongs in the command, the environment or a rendered file"
            )
        line = command_line(job)
        if line.for_shell and (lost := no_place(job)):
            yield (
                f"launch.command needs a shell (variables, pipes), so the flag of {listed(lost)} cannot be added: "
                f"replace the variables with their values, or write {{{lost[0]}}} where the value belongs"
            )
            return
        yield from same_batch.batch_problems(job, line, {k.name: _free(job, k) for k in declared(job).knob})
        yield from same_batch.edited(job, today(job))
        yield from unchangeable(job, [knob.sets for knob in declared(job).knob if _free(job, knob)])
        for flag, value in unfilled(job).items():
            yield (
                f"launch.command has {flag} {value}; replace {value} with its value, because no shell expands "
                "variables here"
            )
        now = currently(job)
        for entry in declared(job).knob:
            if entry.name in now and isinstance(entry.values, list) and now[entry.name] not in entry.values:
                yield (
                    f"launch.command has {entry.sets} {now[entry.name]}, which is not among the values of knob "
                    f"'{entry.name}'; add that value, because the other configurations are compared with what you "
                    "launch now"
                )

    def catalog(self, job: Job) -> "Catalog":
        from autoscout.space.knob import Catalog
        from autoscout.targets.command.arguments import command_of
        from autoscout.targets.command.preset import preset_of
        from autoscout.targets.command.served_columns import derived, knobs

        preset = preset_of(job)
        if not (job.space.catalog or job.space.knob or preset.knob or command_of(job)):
            raise AutoscoutError(
                f"{job.name} has no launch to export: your own script measured it (autoscout.Study), and only that "
                "script knows its space",
                2,
            )
        columns, names = _columns(preset).simulated(job, preset), derived(job, preset)
        return Catalog(target="command", derived=names, simulated=columns, knob=knobs(job, preset), rule=preset.rule)

    def served(self, job: Job) -> "ServedModel | None":
        from autoscout.targets.command import other_servers

        return other_servers.served(job)

    def servers_of(self, job: Job, model: "ServedModel") -> "dict[str, Job | str]":
        from autoscout.targets.command import other_servers

        return dict(other_servers.servers_of(job, model))

    def notes_on_job(self, job: Job) -> list[str]:
        from autoscout.targets.command import phases
        from autoscout.targets.command.arguments import command_of, currently
        from autoscout.targets.command.preset import metrics_of, preset_of
        from autoscout.targets.command.same_batch import suspects
        from autoscout.targets.command.surroundings import lacking
        from autoscout.targets.current_launch import command_line, for_a_shell
        from autoscout.targets.jobs import JobSpace, declared

        notes = []
        if not declared(job).knob:
            notes.append(
                "the job has no knobs, so only today's launch can be measured: add [[space.knob]] with a name, "
                "its values and the flag that it sets, or name a catalog that declares them in space.catalog"
            )
        if not {"loss", "lm_loss", "train_loss"} & metrics_of(job).keys():
            unread = (
                "the answers of configurations are not compared with each other"
                if job.task == "serve"
                else "no loss is read from the script's output"
            )
            notes.append(f"{unread}, so a configuration that computes something else goes unnoticed")
        line = command_line(job)
        notes += [] if line.for_shell else for_a_shell(line)
        preset = preset_of(job)
        if preset.starts and job.launch.current:
            from autoscout.targets.command.starting_up import not_starting
            from autoscout.targets.current_launch import line_of

            notes += not_starting(line_of(job), preset, job.devices)
        if others := self.not_modelled(job):
            notes.append(f"predictions leave out {listed(others)}")
        if preset.phases and (lag := phases.updates(job, JobSpace.of_job(job).reference) - 1) > 0:
            notes.append(f"training uses answers generated up to {lag} update{'s' * (lag > 1)} earlier")
        if job.launch.script and not preset.proven:
            guessed = preset.served is None and self.simulators(job)
            notes.append(
                f"launch.script = '{job.launch.script}' is unproven: AutoScout was never tested with it"
                + (", nor were predictions compared with runs of it" if guessed else "")
            )
        cure = "install it, or write its full path"
        notes += [f"launch.command: '{name}' cannot be run here; {cure}" for name in lacking(job)]
        free = {knob.name: knob.sets for knob in declared(job).knob if _free(job, knob)}
        for name in suspects(job, command_of(job), free):
            notes.append(
                f"knob '{name}' may change the number of samples per step, and fewer samples would look faster: "
                f"keep the number fixed by a rule (such as [[space.rule]] holds = '{name} * accumulation == 32'), "
                "or minimize a different metric; ignore this if your script keeps the global batch size fixed"
            )
        now = currently(job) if command_of(job) else {}
        for entry in declared(job).knob:
            if entry.name not in now and entry.default is None:
                notes.append(
                    f"the command does not give {entry.name}: the knob's first value is assumed for what you run now"
                )
        return notes + _invalid_settings(job, now)

    def recipes(self, space: "Space") -> Iterator[Configuration]:
        """Yields one configuration, the command as written: each knob has the value of its flag in the command, else
        the knob's default or first value."""
        from autoscout.targets.command.arguments import command_of, currently
        from autoscout.targets.recipes import all_devices, nearest

        job: Job = space.job  # type: ignore[attr-defined]
        first = {knob.name: knob.values[0] if knob.default is None else knob.default for knob in space.knobs}
        first |= all_devices(space)
        yield nearest(space, _acting(space, {**first, **(currently(job) if command_of(job) else {})}))

    def profiler(self, job: Job) -> "Profiler":
        from autoscout.targets.command.profiler import CommandProfiler

        return CommandProfiler(job)

    def fit(self, job: Job, environment: dict[str, str]) -> "SeamFit | None":
        from autoscout.targets.command import settings_taken
        from autoscout.targets.command.arguments import started
        from autoscout.targets.command.preset import preset_of

        return settings_taken.fit(job, preset_of(job).knob, environment, started)

    def equivalence(self, job: Job) -> "Check":
        from autoscout.space.attributes import device_counts
        from autoscout.targets.command.losses import LossesIfReported
        from autoscout.targets.command.preset import preset_of
        from autoscout.targets.command.rewards import FirstUpdates
        from autoscout.targets.jobs import declared

        if job.task == "rl":
            named = {*preset_of(job).redraws}
            redraws = [knob.name for knob in declared(job).knob if {knob.name, knob.sets} & named]
            return FirstUpdates(job, [*redraws, *device_counts(job)])
        return LossesIfReported(job.launch.loss_tolerance)

    def probe_line(self, job: Job, configuration: Configuration, experiment: "Path") -> str:
        from autoscout.targets.command.arguments import probe_line

        return probe_line(job, configuration, experiment)

    def shadow(self, asked: "ShadowAsked") -> "Shadow | ServingShadow":
        from autoscout.targets.command import iteration_shadow
        from autoscout.targets.command.own_shadow import shadow
        from autoscout.targets.megatron.shadow import remember

        if asked.job.task == "rl":
            return iteration_shadow.shadow(asked)
        if asked.parts:
            raise AutoscoutError("--parts works only for target = 'megatron'; omit --parts", 2)
        found = shadow(asked)
        remember(asked, found)
        return found

    def launch(self, job: Job, configuration: Configuration) -> "Launch":
        from autoscout.targets.command.exported import exported

        return exported(job, configuration)

    def formats(self) -> "Mapping[str, Callable[[Launch], str]]":
        from autoscout.targets.command import writing
        from autoscout.targets.spread import hostfile

        more = {"hostfile": hostfile, "jobset": writing.jobset}
        return {"yaml": writing.yaml, "slurm": writing.slurm, "k8s": writing.k8s, **more}

    def check(self, job: Job, launch: "Launch", form: str) -> float:
        from autoscout.targets.command.exported import tried

        return tried(job, launch, form, iterations=2)

    def soak(self, job: Job, launch: "Launch", form: str) -> float:
        from autoscout.targets.command.exported import tried

        return tried(job, launch, form, iterations=200)

    def checkpoint(self, job: Job, now: Configuration, new: Configuration) -> str:
        from autoscout.targets.checkpoints import carried_over
        from autoscout.targets.command.arguments import command_of, export_place, started
        from autoscout.targets.command.preset import preset_of

        rules = preset_of(job).checkpoint
        if not rules or not command_of(job):
            return ""
        before, after = (started(job, each, export_place()).line for each in (now, new))
        return carried_over(rules, before.value, after.value)

    def simulators(self, job: Job) -> "list[Member]":
        """Returns simulators if the preset maps its knobs to their inputs (`simulated`) and the job has a model and
        lengths. An unknown command cannot be predicted."""
        from autoscout.targets.jobs import declared

        shaped = job.model.layers and (job.traffic.seq_len or job.task == "serve")
        return super().simulators(job) if shaped and declared(job).simulated else []

    def not_modelled(self, job: Job) -> list[str]:
        from autoscout.targets.command.preset import preset_of

        preset = preset_of(job)
        return [] if self.untold(job) else list(_columns(preset).not_modelled(job, preset))

    def untold(self, job: Job) -> str:
        from autoscout.targets.command.preset import preset_of

        preset = preset_of(job)
        return _columns(preset).lacking(job, preset)

    def recognises(self, line: "Line") -> dict[str, Any] | None:
        from autoscout.targets.command.recognised import job_of

        return job_of(line)


def _columns(preset: "Preset") -> "ModuleType":
    """Returns the module that converts launch lines of the preset's script to simulator inputs."""
    from autoscout.targets.command import served_columns, trained_columns

    return trained_columns if preset.trained else served_columns


def _free(job: Job, knob: "KnobEntry") -> bool:
    """Whether the job leaves more than one value for the knob."""
    left = job.space.limit.get(knob.name, knob.values)
    return knob.name not in job.space.fix and len(left) > 1


def _acting(space: "Space", values: "Mapping[str, Value]") -> dict[str, Value]:
    """Returns the values without those of inactive knobs, such as the kind of checkpointing if checkpointing is off."""
    kept = dict(values)
    for knob in space.knobs:  # each knob comes after the knobs that activate it
        seen = space.environment(kept)
        decidable = knob.when is not None and all(seen.get(name) is not None for name in knob.when.names)
        if knob.name in kept and knob.when and decidable and not knob.when(seen):
            del kept[knob.name]
    return kept


def _invalid_settings(job: Job, now: "Mapping[str, Value]") -> list[str]:
    """Returns a note if the command's own settings are not a valid configuration of the space."""
    from autoscout.space.explain import explain
    from autoscout.targets.jobs import JobSpace

    space = JobSpace.of_job(job)
    given = {name: value for name, value in now.items() if name in space.knob and name not in job.space.fix}
    defaults = {k.name: k.default for k in space.knobs if k.default in k.values and k.name not in job.space.fix}
    given = {name: value for name, value in _acting(space, {**defaults, **given}).items() if name in given}
    reference = space.reference
    other = [name for name in given if reference.knobs.get(name, given[name]) != given[name]]
    moved = ", ".join(f"{name}={reference.knobs[name]}" for name in other)
    broken = (
        "; ".join(each.sentence for each in explain(space, defaults | given, reference).violations) if moved else ""
    )
    if not broken:
        return []
    return [
        f"the command's settings are not valid here ({broken}); the nearest valid settings are used instead, with "
        f"{moved}"
    ]
