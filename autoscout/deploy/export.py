"""Exports the launch of a session's winner, or of any configuration of a job, to run outside AutoScout."""

import itertools
import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from autoscout.deploy.rendering import render
from autoscout.running.cluster.devices import resource, used_nodes
from autoscout.targets.current_launch import shell_syntax
from autoscout.targets.launch import Launch, words
from autoscout.targets.target import target_of
from kb import door, secrets
from kb.records import AutoscoutError, Configuration, Job

if TYPE_CHECKING:
    from autoscout.targets.jobs import JobSpace


def of_session(kb: Path, session: str, assignments: list[str]) -> tuple[Job, Launch]:
    """The launch of a session's winner. `assignments`: KNOB=VALUE, replacing some of the winner's values; the resulting
    configuration was not measured.

    Errors: AutoscoutError (exit 2) for an invalid configuration, (exit 1) for a session without a result.
    """
    # Imported here, so that the terminal UI, which uses this module, does not wait for the import of numpy.
    from autoscout.deploy.recommendation import best_of_session, of_checkpoint
    from autoscout.space.explain import completed, parse
    from kb import store

    found = best_of_session(kb, session)
    job = store.session_started(kb, session).job
    winner = Configuration(found.best.configuration)
    default = found.default.configuration if found.default else {}
    if not assignments:
        made = launch(job, winner, found.best.name, found.headline, found.checkpoint, found.environment)
        return job, msgspec.structs.replace(made, hosts=_measured_on(kb, session, found.best.name, made))
    space = _space(job, assignments)
    other = completed(space, parse(space, assignments), winner)
    resumable = of_checkpoint(job, Configuration(default), other) if default else ""
    note = "not the winner: chosen with --config"
    return job, launch(job, other, space.name(other), note, resumable, found.environment)


def of_job(job: Job, assignments: list[str]) -> Launch:
    """The launch of a job's configuration. `assignments`: its name or KNOB=VALUE …; the reference if empty.

    Errors: AutoscoutError (exit 2) for an invalid configuration."""
    from autoscout.space.explain import completed, parse

    space = _space(job, assignments)
    configuration = completed(space, parse(space, assignments), space.reference)
    made = launch(job, configuration, space.name(configuration), "not measured: exported from the job itself")
    variables = sorted({*made.variables, *shell_syntax(made.environment.values())})
    return msgspec.structs.replace(made, variables=variables, fills=bool(variables))


def _measured_on(kb: Path, session: str, name: str, made: Launch) -> list[str]:
    """The hosts on which the configuration `name` was measured last; [] if it ran on a single host."""
    from kb import journal as journals
    from kb.store import journalled

    past = journals.events(journalled(kb, session) / "journal.jsonl")
    spelled = [e.placement for e in past if isinstance(e, journals.ExperimentStarted) and e.name == name]
    hosts = [part.rpartition(":")[0] for part in (spelled[-1] if spelled else "").split()]
    return hosts if len(hosts) == made.nodes else []


def _space(job: Job, assignments: list[str]) -> "JobSpace":
    """The job's space, with permission for the named knobs. Some knobs need the user's permission, and naming one on
    the command line grants it."""
    from autoscout.targets.jobs import JobSpace, declared

    named = [text.partition("=")[0] for text in assignments]
    asking = [knob.name for knob in declared(job).knob if knob.asks and knob.name in named]
    allow = [*job.space.allow, *asking]
    return JobSpace.of_job(msgspec.structs.replace(job, space=msgspec.structs.replace(job.space, allow=allow)))


def launch(
    job: Job,
    configuration: Configuration,
    name: str,
    evidence: str,
    checkpoint: str = "",
    environment: dict[str, str] | None = None,
) -> Launch:
    """The launch of a configuration. `environment`: versions and devices with which the configuration was measured.
    Errors: AutoscoutError (exit 2) if the target has no launch command."""
    target = target_of(job)
    found = _without_secrets(target.as_measured(target.launch(job, configuration), environment or {}))
    return msgspec.structs.replace(
        found,
        name=name,
        evidence=evidence,
        checkpoint=checkpoint,
        configuration=configuration.knobs,
        resource=resource(job),
        **_on_kinds(job, configuration, found),
    )


def _without_secrets(found: Launch) -> Launch:
    """Removes secrets from the launch and lists them as missing. A variable with a secret is not set, so that the
    shell's own value is used."""
    environment = secrets.without(found.environment)
    unset = [name for name, value in environment.items() if secrets.HIDDEN in value]
    program = secrets.words(found.program)
    arguments = {flag: _of_flag(flag, value) for flag, value in found.arguments.items()}
    missing = [*found.missing, *(f"{name}, set in the environment where this runs" for name in unset)]
    if secrets.HIDDEN in str([program, *arguments.items()]):
        missing.append(f"the secret value in place of each {secrets.HIDDEN}, because secrets are not stored")
    return msgspec.structs.replace(
        found,
        program=program,
        arguments=arguments,
        environment={name: value for name, value in environment.items() if name not in unset},
        files={name: secrets.redacted(text) for name, text in found.files.items()},
        missing=missing,
    )


def _of_flag(flag: str, value: Any) -> Any:
    return secrets.HIDDEN if isinstance(value, str) and secrets.is_one(flag, value) else secrets.without(value, flag)


def _on_kinds(job: Job, configuration: Configuration, found: Launch) -> dict[str, Any]:
    """Fields of the launch for a job with several kinds of device, {} for other jobs."""
    if len({node.device for node in job.cluster.nodes}) == 1:
        return {}
    kinds = [door.plain(node.device) for node in used_nodes(job, configuration)]
    alone = len(set(kinds)) == 1
    fields = {"mixed": True, "kinds": found.kinds or (kinds[:1] * len(found.devices) if alone else [])}
    if job.task == "serve":
        fields["missing"] = [
            *found.missing,
            "servers on the cluster's other kinds of device (`--format router` exports all of them)",
        ]
    return fields


def flags_against(job: Job, configuration: Configuration, reference: Configuration) -> str:
    """The difference between two launches, as text: flags of the configuration that the reference lacks or has with
    other values, then "without" and flags that only the reference has; "" if there is none."""
    ours, theirs = (_by_flag(launch(job, each, "", "")) for each in (configuration, reference))
    gone = [flag for flag, *_ in theirs if flag not in {name for name, *_ in ours}]
    fresh = [shlex.join(each) for each in ours if each not in theirs]
    return " ".join([*fresh, *(["without", *gone] if gone else [])])


def _by_flag(found: Launch) -> list[list[str]]:
    """The words of a launch, grouped by flag: each group begins with a flag."""
    groups: list[list[str]] = [[]]
    for word in [*found.program, *itertools.chain(*words(found))]:
        if word.startswith("--"):
            groups.append([])
        groups[-1].append(word)
    return groups


def written(job: Job, found: Launch, form: str) -> str:
    """The launch as text in a format. Errors: AutoscoutError (exit 2) if the job's target lacks this format."""
    return render(target_of(job), found, form)


def checked(job: Job, found: Launch, form: str, soak: bool = False) -> float:
    """Runs the exported launch on this machine and returns seconds until it worked. `soak`: whether to run it until it
    has written a checkpoint and evaluated.

    Errors: AutoscoutError (exit 2) if it cannot be started here, (exit 1) if it does not start, with the cause.
    """
    if secrets.HIDDEN in str([found.program, *found.arguments.items()]):
        raise AutoscoutError(
            f"the launch contains {secrets.HIDDEN} in place of a secret, because secrets are not stored; "
            "replace it with the value",
            2,
        )
    target = target_of(job)
    return target.soak(job, found, form) if soak else target.check(job, found, form)
