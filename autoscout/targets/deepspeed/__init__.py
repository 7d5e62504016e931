"""The DeepSpeed target: tunes the ds_config of a user's training script; imports results of DeepSpeed's autotuner."""

import contextlib
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from autoscout.targets.target import Target, shipped
from kb.records import AutoscoutError, Configuration, Job, SpaceLimits

if TYPE_CHECKING:
    from autoscout.line.launch_line import Line
    from autoscout.running.equivalence import Check
    from autoscout.running.interfaces import Profiler
    from autoscout.simulate.member import Member
    from autoscout.space.graph import Space
    from autoscout.space.knob import Catalog
    from autoscout.targets.found import Reader
    from autoscout.targets.launch import Launch
    from autoscout.targets.seams import SeamFit

_METRICS = ("samples_per_s", "flops_per_gpu", "step_time_s", "tokens_per_s")


class DeepSpeed(Target):
    name = "deepspeed"
    tasks = ("pretrain", "finetune")
    about = "a script that DeepSpeed trains, by its ds_config"
    proven = "DeepSpeed 0.19.8, ZeRO 0 to 3, two CPU ranks over gloo"
    preset = "deepspeed-engine"
    packages = ("torch", "deepspeed")
    how = "pip install torch deepspeed, or `make .venv-deepspeed/ready` for CPUs"

    def metrics(self, job: Job) -> tuple[str, ...]:
        from autoscout.targets.command.measurement import known_metrics
        from autoscout.targets.deepspeed.config_space import config_of

        return tuple(dict.fromkeys((*known_metrics(job), *_METRICS))) if config_of(job) else super().metrics(job)

    def problems(self, job: Job) -> Iterator[str]:
        from autoscout.targets.deepspeed import config_space
        from autoscout.targets.deepspeed.arguments import unused

        if config_space.config_of(job) is None:
            if not job.model.layers:
                yield (
                    "target = 'deepspeed' needs a script with its ds_config (launch.command and launch.render; "
                    "`autoscout tune ds_config.json --script train.py …` writes both), or a [model]"
                )
            return
        yield from config_space.config_problems(job, config_space.read_config(job))
        for name in unused(job):
            yield (
                f"knob '{name}' changes nothing: write ${name.upper()} into the ds_config where the value "
                "belongs, or set sets = …"
            )

    def catalog(self, job: Job) -> "Catalog":
        from autoscout.targets.deepspeed import config_space

        known = shipped(self.name)
        return known if config_space.config_of(job) is None else config_space.catalog(job, known)

    def notes_on_job(self, job: Job) -> list[str]:
        from autoscout.targets.command.preset import metrics_of
        from autoscout.targets.current_launch import command_line, for_a_shell
        from autoscout.targets.deepspeed import autotuning, config_space, ds_config

        if config_space.config_of(job) is None:
            return []
        config = config_space.read_config(job)
        others = ds_config.passed_over(config)
        notes = [f"DeepSpeed ignores '{name}' in the ds_config, because it has no such setting" for name in others]
        notes += for_a_shell(command_line(job))
        if "loss" not in metrics_of(job):
            notes.append(
                "no loss is read from the script's output, so a configuration that computes something else goes "
                "unnoticed"
            )
        if others := self.not_modelled(job):
            notes.append(f"predictions leave out {' and '.join(others)}")
        if config_space.batches_differ(job, config):
            notes.append(
                "the ds_config has no train_batch_size, so configurations train different numbers of samples per step; "
                "set train_batch_size to compare equal steps"
            )
        asked = autotuning.settings(config, job.name)
        if asked.enabled and asked.fast and (listed := config_space.beyond_fast(config, asked, job)):
            notes.append(f"also tuned: {' and '.join(listed)}; DeepSpeed's own fast mode would pass their "
            "lists of values to its engine, which refuses lists")  # fmt: skip
        if "tuner_num_trials" in (config.get("autotuning") or {}) and asked.tuner_num_trials != job.budget.profiles:
            notes.append(f"the job's budget sets {job.budget.profiles} experiments, so the ds_config's "
                         f"tuner_num_trials = {asked.tuner_num_trials} is ignored")  # fmt: skip
        return notes

    def patience(self, job: Job) -> int | None:
        from autoscout.targets.deepspeed import autotuning, config_space

        if config_space.config_of(job) is None:
            return None
        return autotuning.settings(config_space.read_config(job), job.name).tuner_early_stopping

    def recipes(self, space: "Space") -> Iterator[Configuration]:
        from autoscout.targets.deepspeed.config_space import config_of, today
        from autoscout.targets.deepspeed.expert import advised, of_lists
        from autoscout.targets.recipes import first, stated

        job: Job = space.job  # type: ignore[attr-defined]
        if config_of(job):
            yield from of_lists(space, today(job))
        else:
            yield first(space, {**stated(space), "overlap_comm": True}, advised(space))

    def reference(self, job: Job) -> str:
        """Returns what reports call the baseline: "your present launch" if only the micro batch is tuned, over values
        that include the present one, and [space] limits nothing; else "the reference"."""
        from autoscout.targets.deepspeed import config_space
        from autoscout.targets.deepspeed.autotuning import settings
        from autoscout.targets.deepspeed.tuning_space import MICRO

        with contextlib.suppress(AutoscoutError):
            now = config_space.today(job)
            config = config_space.read_config(job) if now and config_space.config_of(job) else {}
            tried = config_space.choices_of(config, settings(config), job) if config else {}
            if [*tried] == [MICRO] and now in tried[MICRO] and job.space == SpaceLimits():
                return "your present launch"
        return "the reference"

    def profiler(self, job: Job) -> "Profiler":
        from autoscout.targets.deepspeed import config_space, profiler

        if config_space.config_of(job) is None:
            raise AutoscoutError(
                "this job has no script to run, so only `autoscout space` and `autoscout explain` work on it; to "
                'tune it, set launch.command and launch.render = [{ from = "ds_config.json", … }]',
                2,
            )
        if not config_space.to_tune(job, config_space.read_config(job)):
            raise AutoscoutError(
                'the ds_config has nothing to tune: write a setting as a list, such as "stage": [1, 2, 3], or as '
                '"auto"; `autoscout predict` works on it unchanged',
                2,
            )
        return profiler.profiler(job)

    def fit(self, job: Job, environment: dict[str, str]) -> "SeamFit | None":
        from autoscout.targets.command import settings_taken
        from autoscout.targets.deepspeed.arguments import started

        return settings_taken.fit(job, shipped(self.name).knob, environment, started)

    def equivalence(self, job: Job) -> "Check":
        from autoscout.targets.command.losses import LossesIfReported
        from autoscout.targets.deepspeed import config_space

        if config_space.config_of(job) is None:
            return super().equivalence(job)
        fixed = config_space.batch_of(job, config_space.read_config(job))
        return LossesIfReported(job.launch.loss_tolerance if fixed else float("inf"))

    def probe_line(self, job: Job, configuration: Configuration, experiment: Path) -> str:
        from autoscout.targets.command.arguments import probe_line
        from autoscout.targets.deepspeed import config_space
        from autoscout.targets.deepspeed.arguments import started

        if config_space.config_of(job) is None:
            return ""
        return probe_line(job, configuration, experiment, started)

    def launch(self, job: Job, configuration: Configuration) -> "Launch":
        from autoscout.targets.command.exported import exported
        from autoscout.targets.deepspeed import config_space
        from autoscout.targets.deepspeed.arguments import started

        if config_space.config_of(job) is None:
            return super().launch(job, configuration)
        return exported(job, configuration, started)

    def formats(self) -> "Mapping[str, Callable[[Launch], str]]":
        from autoscout.targets.command import writing
        from autoscout.targets.deepspeed.artefacts import as_ds_config
        from autoscout.targets.spread import hostfile, jobset

        on_nodes = {"slurm": writing.slurm, "k8s": writing.k8s, "hostfile": hostfile, "jobset": jobset}
        return {"yaml": writing.yaml, **on_nodes, "deepspeed": as_ds_config}

    def check(self, job: Job, launch: "Launch", form: str) -> float:
        from autoscout.targets.command.exported import tried
        from autoscout.targets.deepspeed.arguments import saying_each_step

        return tried(job, saying_each_step(job, launch), form, iterations=2)

    def simulators(self, job: Job) -> "list[Member]":
        return [] if self.untold(job) else super().simulators(job)

    def not_modelled(self, job: Job) -> list[str]:
        from autoscout.targets.deepspeed import config_space, modelled

        if config_space.config_of(job) is None or self.untold(job):
            return []
        return list(modelled.not_modelled(job, config_space.read_config(job)))

    def untold(self, job: Job) -> str:
        from autoscout.targets.deepspeed.modelled import lacking

        return lacking(job)

    def readers(self) -> "Mapping[str, Reader]":
        from autoscout.targets.deepspeed.importer import READER

        return {"deepspeed": READER}

    def recognises(self, line: "Line") -> dict[str, Any] | None:
        from autoscout.targets.deepspeed.command_line import job_of_line

        return job_of_line(line)
