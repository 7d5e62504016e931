"""The verb shadow: runs the framework's own code for a configuration without a device."""

from pathlib import Path

import click

from tui.options import PATH, NumberRange, common, kb_path, load_job


@click.command()
@click.argument("job_file", metavar="JOB.toml", type=PATH)
@click.argument("assignments", metavar="[KNOB=VALUE]...", nargs=-1)
@click.option("--rank", "ranks", metavar="N", type=int, multiple=True, help="Trace only this rank (may be repeated).")
@click.option(
    "--timeout", "limit_s", metavar="SECONDS", type=NumberRange(min=1), default=300, help="Time limit in seconds."
)
@click.option("--fresh", is_flag=True, help="Trace again, even if results are stored.")
@click.option(
    "--parts", is_flag=True, help="Compose the shadow run from traces of small jobs, which many configurations share."
)
@click.option(
    "--one-device",
    is_flag=True,
    help="Also run one rank of each different stage on one device: real kernels, predicted communication.",
)
@click.option(
    "--lose", metavar="ENGINE@SECONDS", multiple=True, help="Serving: an engine fails this many seconds into the load."
)
@click.option("--anyway", is_flag=True, help="Run even if the space's rules forbid the configuration.")
@common
def shadow(
    job_file: Path,
    assignments: tuple[str, ...],
    ranks: tuple[int, ...],
    limit_s: float,
    fresh: bool,
    parts: bool,
    one_device: bool,
    lose: tuple[str, ...],
    anyway: bool,
    kb: Path | None,
    as_json: bool,
) -> int:
    """Run the framework's own code for a configuration, without a GPU: does it start and fit, what does it communicate?

    For training, one rank of each different pipeline stage is traced on this CPU, for a job of any size. For serving,
    the schedulers and KV caches of all engines run under the job's load, and only their step times are predicted.
    Omitted knobs keep the expert default's values. Exit code 3: it does not start, or does not fit.
    """
    import json

    import msgspec

    from autoscout.simulate.shadow.served import ServingShadow
    from autoscout.space.explain import completed, parse
    from autoscout.targets.jobs import JobSpace
    from autoscout.targets.target import target_of
    from autoscout.targets.tracing import ShadowAsked
    from kb.records import AutoscoutError, Configuration
    from tui.printing import serving_shadows, shadows

    job = load_job(job_file)
    space = JobSpace.of_job(job)
    given = parse(space, assignments)
    if anyway:
        configuration = Configuration({**space.reference.knobs, **given})
    else:
        configuration = completed(space, given, space.reference)
    name = space.name(configuration)
    kind = target_of(job)
    if parts and ranks:
        raise AutoscoutError("--parts composes all different stages; omit --rank, or trace the rank without --parts", 2)
    if one_device and (parts or ranks):
        raise AutoscoutError("--one-device runs one rank of each different stage; omit --parts and --rank", 2)
    remembered = None if fresh else kb_path(kb)
    losses = [_loss(text) for text in lose]
    asked = ShadowAsked(job, configuration, name, remembered, limit_s, list(ranks), parts=parts, losses=losses)
    found = kind.losing(asked) if lose else kind.one_device(asked) if one_device else kind.shadow(asked)
    if as_json:
        click.echo(json.dumps(msgspec.to_builtins(found)))
    elif isinstance(found, ServingShadow):
        serving_shadows.served(found)
    else:
        shadows.shadow(found)
    if found.verdict in ("untraceable", "timeout"):
        return 1
    if isinstance(found, ServingShadow):
        return 3 if found.verdict == "refused" else 0
    return 3 if found.verdict == "refused" or (found.oom_probability or 0.0) > 0.5 else 0


def _loss(text: str) -> tuple[float, int]:
    """Parses "ENGINE@SECONDS" into (seconds, engine). Errors: AutoscoutError (exit 2)."""
    from kb.records import AutoscoutError

    number, _, at = text.partition("@")
    try:
        loss = float(at), int(number)
    except ValueError:
        loss = -1.0, -1
    if not 0 <= loss[0] < float("inf") or loss[1] < 0:
        raise AutoscoutError(f"--lose {text}: write the engine's number and the second, such as 1@30", 2)
    return loss
