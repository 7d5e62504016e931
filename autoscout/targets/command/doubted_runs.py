"""Predicts which configurations of a user's script may run out of memory, if the script's trainer has a memory model. A
shadow run (on fake tensors) checks such configurations before they are measured."""

from autoscout.simulate import encode
from autoscout.simulate.ensemble import memory_of
from autoscout.simulate.shadow.traced import Shadow
from autoscout.space.knob import reads_batches
from autoscout.targets.command.own_shadow import shadow
from autoscout.targets.foretold import LIMIT_S, Doubts, Stopping
from autoscout.targets.jobs import JobSpace
from autoscout.targets.target import target_of
from autoscout.targets.tracing import ShadowAsked
from kb.records import Configuration, Job
from kb.store import default_path


def doubts(job: Job) -> Doubts:
    """Returns the shadow checks of a job's configurations. Errors: AutoscoutError if [space] is invalid."""
    space = JobSpace.of_job(job)
    model, attributes = memory_of(job, space, []), encode.of_job(job)

    def traced(configuration: Configuration, name: str, stopping: Stopping) -> Shadow:
        return shadow(ShadowAsked(job, configuration, name, default_path(), LIMIT_S, stopping=stopping))

    alike = [knob.name for knob in space.knobs if reads_batches(knob)]
    blind = bool(target_of(job).not_modelled(job))  # some settings have no memory model, so nothing is predicted

    def likely(configuration: Configuration) -> float:
        """Returns the probability of running out of memory; 0 for the user's present launch, because it is always
        measured."""
        if model is None or blind or configuration == space.reference:
            return 0.0
        columns = {**attributes, **encode.of_configurations(space, [configuration])}
        return 0.0 if model.applies(columns) else float(model.oom_probability(columns)[0])

    return Doubts(job, likely, traced, alike, ("timeout", "untraceable", "refused"))
