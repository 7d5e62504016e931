"""Finds past jobs that are similar to a new one, with their distance and differences.

The distance is designed, not learned, because a knowledge base may be small. It is a weighted sum over features, each
with the reason why the best configuration depends on it. Two numbers differ by the |log₂| of their ratio (at most 4),
because layouts change with powers of two; two categories differ by 1. A distance of 0 means the same job on the same
cluster; up to 1, mostly the same layouts fit and win; from 4 on, hardly any knowledge carries over.
"""

import math
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from kb import door
from kb.connect import reader
from kb.records import Job, Node, shape
from kb.sizes import active_parameters, parameters

if TYPE_CHECKING:
    from duckdb import DuckDBPyConnection

FAR = 4.0  # distance from which on hardly any knowledge carries over
_DOUBLINGS = 4.0  # largest |log₂| of the ratio of two numbers that counts
_MOST_CANDIDATES = 200  # largest number of candidates (the nearest by a rough distance) whose distance is computed

# If only one of two jobs has one of these features, it adds nothing to their distance, because another feature already
# differs for the same reason.
_EXPLAINED = ("experts", "active share", "kv_heads", "load per device", "memory per device", "samples per device")
_EXPLAINED += ("input_len", "output_len")

Number = float | str | None
MemoryOf = Callable[[Node], float]  # memory of one device of the node in GiB; 0: unknown


class _Weight(NamedTuple):
    weight: float  # distance of two numbers with a ratio of 2, or of two different categories
    why: str


WEIGHTS = {
    "target": _Weight(3.0, "a different framework has different knobs"),
    "task": _Weight(1.0, "fine-tuning and pre-training fill the memory differently"),
    "trained": _Weight(1.0, "adapters and frozen layers leave out gradients, optimizer state and their exchange"),
    "experts": _Weight(0.3, "expert parallelism depends on the number of experts"),
    "moe": _Weight(2.0, "a mixture of experts is laid out differently from a dense model"),
    "active share": _Weight(0.3, "compute per token depends on the share of the weights that it uses"),
    "attention": _Weight(0.5, "latent keys and values are small, and replicated on all tensor parallel ranks"),
    "parameters per device": _Weight(0.5, "determines which layouts fit into memory"),
    "devices": _Weight(0.5, "the product of the degrees of parallelism is the number of devices"),
    "memory per device": _Weight(0.5, "determines what fits into memory"),
    "device": _Weight(0.5, "compute and links differ by kind of device"),
    "layers": _Weight(0.15, "pipeline stages divide the layers"),
    "hidden": _Weight(0.15, "determines the matrix products that tensor parallelism splits"),
    "heads": _Weight(0.15, "tensor parallelism divides the heads"),
    "kv_heads": _Weight(0.1, "tensor parallelism and the KV cache depend on the key-value heads"),
    "vocab": _Weight(0.05, "determines the load of the first and the last pipeline stage"),
    "dtype": _Weight(0.3, "memory and speed depend on the data type"),
    "seq_len": _Weight(0.25, "determines activation memory and the cost of attention"),
    "samples per device": _Weight(0.25, "determines how many micro batches fill the pipeline"),
    "load": _Weight(0.5, "open loop, closed loop and traces load a server differently"),
    "load per device": _Weight(0.3, "determines how deep the queues are"),
    "input_len": _Weight(0.25, "determines the prefill work per request"),
    "output_len": _Weight(0.25, "determines the decode work per request"),
    "shared_prefix": _Weight(0.3, "determines how much the prefix cache saves"),
    "metric": _Weight(0.3, "the past job was tuned for a different metric, but may also have measured this one"),
    "versions": _Weight(0.2, "a release changes which configurations are fast"),
}


class Feature(msgspec.Struct, frozen=True):
    name: str
    here: Number
    there: Number
    distance: float
    why: str


class SimilarJob(msgspec.Struct, frozen=True, kw_only=True):
    """A past job on one cluster, with one context (hash of job, hardware and versions)."""

    job: Job  # as in its newest session
    cluster: str
    context: str
    environment: dict[str, str]
    sessions: list[str]  # oldest first
    distance: float
    features: list[Feature]  # features that differ, most distant first
    measurements: int
    ok: int


def features(job: Job, memory_of: MemoryOf) -> dict[str, Number]:
    """The features from which the distance is computed: numbers, categories, or None if one does not apply."""
    m, traffic, devices = shape(job.model), job.traffic, max(job.devices, 1)
    found: dict[str, Number] = {
        "target": job.target,
        "task": job.task,
        "experts": float(m.experts) if m.experts else None,
        "moe": "experts" if m.experts else "dense",
        "active share": active_parameters(m) / parameters(m) if m.experts else None,
        "attention": "latent" if m.latent else "heads",
        "parameters per device": parameters(m) / devices,
        "devices": float(devices),
        "memory per device": min(filter(None, map(memory_of, job.cluster.nodes)), default=None),
        "device": "+".join(sorted({node.device for node in job.cluster.nodes})),
        "layers": float(m.layers),
        "hidden": float(m.hidden),
        "heads": float(m.heads),
        "kv_heads": None if m.latent else float(m.kv_heads),
        "vocab": float(m.vocab),
        "dtype": m.stored or m.dtype,
        "metric": job.objective.metric,
    }
    if job.task == "serve":
        load = traffic.rate or traffic.concurrency
        return found | {
            "load": "rate" if traffic.rate else "concurrency" if traffic.concurrency else "trace",
            "load per device": load / devices if load else None,
            "input_len": _mean(traffic.input_len),
            "output_len": _mean(traffic.output_len),
            "shared_prefix": float(traffic.shared_prefix),
        }
    return found | {
        "trained": "adapters" if m.lora else "the upper layers" if m.frozen_layers else "all",
        "seq_len": float(traffic.seq_len),
        "samples per device": traffic.global_batch / devices if traffic.global_batch else None,
    }


def compare(here: dict[str, Number], there: dict[str, Number]) -> list[Feature]:
    """The features that differ, the most distant first."""
    found = [
        Feature(name, here.get(name), there.get(name), _distance(name, here, there), WEIGHTS[name].why)
        for name in WEIGHTS
        if name in here or name in there
    ]
    return sorted((f for f in found if f.distance), key=lambda f: -f.distance)


def similar(
    kb: Path,
    job: Job,
    memory_of: MemoryOf,
    environment: dict[str, str] | None = None,
    count: int = 5,
    up_to: int | None = None,
    on_note: Callable[[str], None] = lambda text: None,
) -> list[SimilarJob]:
    """The `count` nearest past jobs that have measurements, nearest first (the same job has a distance of 0).

    `environment`: this machine's versions, if known; `up_to`: only measurements up to this mark (store.mark);
    `on_note`: called with a sentence about past jobs that cannot be read, such as those of a newer AutoScout.
    """
    here = features(job, memory_of)
    with reader(kb) as con:
        found: list[SimilarJob] = []
        for row in _candidates(con, job):
            try:
                found.append(_alike(here, environment, memory_of, row))
            except door.Refused as error:
                on_note(f"{', '.join(row[-1])} is ignored: {error}")
        # More jobs than requested, because those without measurements are dropped below.
        nearest = sorted(found, key=lambda a: (a.distance, -len(a.sessions), a.job.name))[: 4 * count]
        counts = _counts(con, nearest, up_to)
    counted = [
        msgspec.structs.replace(a, **counts[place])
        for a in nearest
        if (place := (a.job.id, a.cluster, a.context)) in counts
    ]
    return counted[:count]


def _candidates(con: "DuckDBPyConnection", job: Job) -> list[tuple[Any, ...]]:
    """At most _MOST_CANDIDATES rows, one for each past job, cluster and context, sorted by a rough distance."""
    m = shape(job.model)
    return con.execute(
        """
        WITH past AS (
            SELECT
                s.job_id, s.cluster, o.context, arg_max(s.job, s.unix_s) AS job,
                arg_max(o.environment, s.unix_s) AS environment,
                list(DISTINCT s.id ORDER BY s.id) AS sessions, any_value(s.devices) AS devices
            FROM session AS s
            INNER JOIN origin AS o ON o.session = s.id
            WHERE s.id NOT IN (SELECT session FROM authors WHERE level = 'ignore')
            GROUP BY s.job_id, s.cluster, o.context
        )

        SELECT p.job, p.cluster, p.context, p.environment, p.sessions
        FROM past AS p
        INNER JOIN models AS j ON j.job_id = p.job_id
        WHERE (j.task = 'serve') = $serving
        ORDER BY
            p.job_id != $id,
            3 * (j.target != $target)::INTEGER + 2 * ((coalesce(j.experts, 0) > 0) != $moe)::INTEGER
            + 0.3 * abs(log2(greatest(j.layers, 1) / $layers)) + 0.9 * abs(log2(greatest(j.hidden, 1) / $hidden))
            + abs(log2(p.devices / $devices)) + 0.25 * abs(log2(greatest(j.seq_len, 1) / $seq_len)),
            p.job_id, p.cluster, p.context
        LIMIT $limit
        """,
        {
            "serving": job.task == "serve",
            "id": job.id,
            "target": job.target,
            "moe": m.experts > 0,
            "layers": max(m.layers, 1),
            "hidden": max(m.hidden, 1),
            "devices": max(job.devices, 1),
            "seq_len": max(job.traffic.seq_len, 1),
            "limit": _MOST_CANDIDATES,
        },
    ).fetchall()


def _alike(
    here: dict[str, Number], environment: dict[str, str] | None, memory_of: MemoryOf, row: tuple[Any, ...]
) -> SimilarJob:
    text, cluster, context, versions, sessions = row
    job = door.job(text)
    theirs = msgspec.json.decode(versions)
    differing = compare(here, features(job, memory_of))
    if other := _versions(environment, theirs):
        differing.append(other)
    return SimilarJob(
        job=job,
        cluster=cluster,
        context=context,
        environment=theirs,
        sessions=sessions,
        distance=sum(f.distance for f in differing),
        features=sorted(differing, key=lambda f: -f.distance),
        measurements=0,
        ok=0,
    )


def _versions(here: dict[str, str] | None, there: dict[str, str]) -> Feature | None:
    """A feature that lists the values (mostly versions) in which two environments differ; keys that only one of them
    has are ignored. None if there is no difference."""
    if not here:
        return None
    changed = sorted(k for k in here if k in there and k != "launcher" and here[k] != there[k])
    unknown = [] if any(k in there for k in here) else ["unknown"]
    if not changed and not unknown:
        return None
    mine = ", ".join(f"{k} {here[k]}" for k in changed) or "known"
    other = ", ".join(f"{k} {there[k]}" for k in changed) or "unknown"
    weight = WEIGHTS["versions"]
    return Feature("versions", mine, other, weight.weight * min(max(len(changed), 1), 3), weight.why)


def _counts(
    con: "DuckDBPyConnection", nearest: list[SimilarJob], up_to: int | None
) -> dict[tuple[str, str, str], dict[str, int]]:
    """(job id, cluster, context) → numbers of measurements and of successful ones; absent if there are no
    measurements."""
    found = con.execute(
        """
        WITH wanted AS (
            SELECT o.key, o.job_id, s.cluster, o.context FROM origin AS o INNER JOIN session AS s ON s.id = o.session
            WHERE o.job_id IN (FROM unnest($jobs)) AND o.context IN (FROM unnest($contexts))
        )

        SELECT w.job_id, w.cluster, w.context, count(*), count(*) FILTER (WHERE m.status = 'ok')
        FROM measurement AS m INNER JOIN wanted AS w ON w.key = m.origin
        WHERE
            m.fidelity = 'measured' AND m.status != 'infrastructure' AND ($up_to IS NULL OR m.added <= $up_to)
        GROUP BY ALL
        """,
        {
            "jobs": list({a.job.id for a in nearest}),
            "contexts": list({a.context for a in nearest}),
            "up_to": up_to,
        },
    ).fetchall()
    return {(job, cluster, context): {"measurements": n, "ok": ok} for job, cluster, context, n, ok in found}


def _distance(name: str, here: dict[str, Number], there: dict[str, Number]) -> float:
    a, b, weight = here.get(name), there.get(name), WEIGHTS[name].weight
    if a == b:
        return 0.0
    if isinstance(a, float) and isinstance(b, float):
        # With 0 (no shared prefix, for example), 1 is added to both numbers, so that their ratio is finite.
        return weight * min(abs(math.log2((a + 1) / (b + 1))) if min(a, b) == 0 else abs(math.log2(a / b)), _DOUBLINGS)
    if name in _EXPLAINED:
        return 0.0
    return weight


def _mean(lengths: int | list[int]) -> Number:
    values = lengths if isinstance(lengths, list) else [lengths]
    return sum(values) / len(values) if values and sum(values) else None
