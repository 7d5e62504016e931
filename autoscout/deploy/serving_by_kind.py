"""Serving with several kinds of device: each kind has its own engines, behind a router that distributes requests by
weight.

An engine never uses several kinds of device (rule H3), so a session measures each kind alone. Together, the kinds serve
the sum of their rates if requests are distributed in proportion to these rates; otherwise one kind's queue grows while
other kinds are idle."""

import statistics
from pathlib import Path

import msgspec

from autoscout.deploy import export, rendering
from autoscout.deploy.recommendation import measured_in
from autoscout.job.objective import cost
from autoscout.running.cluster.devices import used_nodes
from autoscout.space.attributes import device_counts
from autoscout.targets.jobs import JobSpace
from autoscout.targets.launch import Launch, comments
from autoscout.targets.target import target_of
from autoscout.targets.vllm.formats import PORT
from autoscout.tuning.predict import predict
from kb import journal as journals
from kb import store
from kb.records import AutoscoutError, Configuration, Job, Measurement, Objective

_RATE = "requests_per_s"
_LISTEN = 8080


class ServedKind(msgspec.Struct, frozen=True, kw_only=True):
    """One kind of device with its engines. `rate`: requests per second that these engines serve; `weight`: share of all
    requests that they get, in per cent."""

    kind: str
    devices: int
    configuration: Configuration
    name: str
    rate: float
    measured: bool
    weight: int
    launch: Launch


def fleet(kb: Path, session: str) -> list[ServedKind]:
    """The best measured configuration of each kind of device; for a kind without measurements, the expert recipe with
    its predicted rate.

    Errors: AutoscoutError (exit 2) if the job does not serve with several kinds of device, (exit 1) if a rate is
    neither measured nor predicted."""
    job = store.session_started(kb, session).job
    kinds = list(dict.fromkeys(node.device for node in job.cluster.nodes))
    if job.task != "serve" or len(kinds) < 2:
        raise AutoscoutError(
            "--format router needs a job whose cluster has several kinds of device; choose a different --format", 2
        )
    rows = measured_in(journals.events(store.journalled(kb, session) / "journal.jsonl"))
    space = JobSpace.of_job(job)
    found = [one for kind in kinds if (one := _of_kind(kb, space, kind, rows)) is not None]
    if not found:
        raise AutoscoutError(f"no configuration serves {job.name} on a single kind of its devices", 3)
    weights = shares([one.rate for one in found])
    return [msgspec.structs.replace(one, weight=weight) for one, weight in zip(found, weights, strict=True)]


def shares(rates: list[float]) -> list[int]:
    """Each rate's share of their sum in whole per cent (by largest remainders), at least 1."""
    exact = [100 * rate / sum(rates) for rate in rates]
    whole = [max(1, int(share)) for share in exact]
    order = sorted(range(len(rates)), key=lambda i: exact[i] - whole[i], reverse=True)
    for i in order[: max(0, 100 - sum(whole))]:
        whole[i] += 1
    return whole


def router(kb: Path, session: str) -> str:
    """An nginx configuration, preceded by each kind's launch as a comment. The user has to insert the addresses."""
    served = fleet(kb, session)
    job = store.session_started(kb, session).job
    of = {True: "measured", False: "predicted"}
    rates = "; ".join(f"{one.devices} {one.kind}: {one.rate:.3g} ({of[one.measured]})" for one in served)
    total = sum(one.rate for one in served)
    best = max(one.rate for one in served)
    lines = comments(
        f"{job.name}: requests per second: {rates}; together {total:.3g}, {total / best:.2f} times the best kind alone",
        "the total was not measured: each kind of device was measured or predicted separately, under the whole load",
    )
    for one in served:
        text = rendering.command(one.launch)
        lines += comments("", f"on {one.kind}, where AUTOSCOUT-{one.kind} is below:", *text.strip().splitlines())
    lines += ["upstream autoscout {"]
    lines += [f"    server AUTOSCOUT-{one.kind}:{PORT} weight={one.weight};" for one in served]
    lines += [
        "}",
        "server {",
        f"    listen {_LISTEN};",
        "    location / {",
        "        proxy_pass http://autoscout;",
        "        proxy_http_version 1.1;",
        "        proxy_buffering off;  # tokens are passed on as they come",
        "        proxy_read_timeout 1h;",
        "    }",
        "}",
    ]
    return "\n".join(lines) + "\n"


def _of_kind(kb: Path, space: JobSpace, kind: str, rows: list[Measurement]) -> ServedKind | None:
    """The configuration for one kind of device; None if no configuration serves on it."""
    job = space.job

    def alone(configuration: Configuration) -> bool:
        return {node.device for node in used_nodes(job, configuration)} == {kind}

    costs: dict[str, list[float]] = {}
    own = [m for m in rows if alone(m.configuration) and cost(job.objective, m) is not None]
    for m in own:
        costs.setdefault(m.configuration.id, []).append(cost(job.objective, m) or 0.0)
    if costs:
        best = min(costs, key=lambda key: statistics.median(costs[key]))
        runs = [m for m in own if m.configuration.id == best]
        rates = [m.metrics[_RATE] for m in runs if _RATE in m.metrics]
        configuration = runs[0].configuration
    else:
        configuration, rates = _advised(space, kind), []
        if configuration is None:
            return None
    return ServedKind(
        kind=kind,
        devices=sum(node.count for node in used_nodes(job, configuration)),
        configuration=configuration,
        name=space.name(configuration),
        rate=statistics.median(rates) if rates else _predicted(kb, job, configuration),
        measured=bool(rates),
        weight=0,
        launch=export.launch(job, configuration, space.name(configuration), "" if costs else "not measured"),
    )


def _advised(space: JobSpace, kind: str) -> Configuration | None:
    """The expert recipe for a cluster with only this kind of device; None if there is none that fits."""
    job = space.job
    nodes = [node for node in job.cluster.nodes if node.device == kind]
    own = msgspec.structs.replace(job, cluster=msgspec.structs.replace(job.cluster, nodes=nodes))
    counts = dict.fromkeys(device_counts(job), 0) | device_counts(own)
    try:
        advised = list(target_of(job).recipes(JobSpace.of_job(own)))
    except AutoscoutError:  # the model does not fit on this kind
        return None
    found = (Configuration({**counts, **recipe.knobs}) for recipe in advised)
    return next((configuration for configuration in found if space.is_valid(configuration)), None)


def _predicted(kb: Path, job: Job, configuration: Configuration) -> float:
    wanted = msgspec.structs.replace(job, objective=Objective(maximize=_RATE))
    return predict(JobSpace.of_job(wanted), configuration.knobs, kb).value
