"""Which cluster to buy: the fastest design within a budget. Its times are corrected by measurements in the knowledge
base, with the interval that those leave."""

import math
from collections.abc import Sequence
from pathlib import Path

import msgspec
import numpy as np

from autoscout.simulate.learned.weighing import SPAN
from autoscout.simulate.stack.bill import parts
from autoscout.simulate.stack.designs import evaluate
from autoscout.simulate.stack.offers import Cluster, Doubled, Fit, Timed, clusters, doubled, offers
from autoscout.simulate.stack.stack_member import ERROR
from autoscout.simulate.stack.workloads import workloads
from autoscout.space.attributes import memory_gib
from autoscout.tuning.tomorrow import Tomorrow
from kb import store
from kb.records import AutoscoutError, Job, Measurement, Share, Value
from kb.similar import similar

_PRIOR = 4  # weight, in jobs, of the error on published steps (stack_member.ERROR) against measured jobs
_MOST = 50  # past jobs considered
_ISLAND, _INSIDE, _BETWEEN = 8, 450, 50  # assumed GPUs per node, and GB/s per GPU within and between nodes


class Calibration(msgspec.Struct, frozen=True):
    """`factor`: measured / predicted of today's job, 1 without one; `deviation`: standard deviation of a log time on
    another cluster; `jobs`, `rows`: what both were fitted on, `today_rows` of them from today's job; `left_out`: rows
    that the design model cannot describe."""

    factor: float
    deviation: float
    jobs: int
    rows: int
    today_rows: int
    left_out: int
    source: str


_UNKNOWN = Calibration(1.0, ERROR, 0, 0, 0, 0, "published steps alone")  # for a kind of job other than today's


class Simulator(msgspec.Struct, frozen=True):
    """The simulator of today's job, if it can price the cluster; corrected by `rows` measurements of `jobs` jobs."""

    name: str
    jobs: int
    rows: int


class Workshare(msgspec.Struct, frozen=True, kw_only=True):
    """One workload on the cluster; seconds of a step or request, corrected, with the 90 % interval. `by`: what
    predicted it."""

    kind: str
    layers: int
    hidden: int
    weight: float
    seconds: float
    low: float
    high: float
    by: str
    layout: dict[str, Value]


class Purchase(msgspec.Struct, frozen=True, kw_only=True):
    """`today`: measured seconds of today's job; `faster`: its speed-up on the new cluster, if today's job is the first
    workload of `job`."""

    job: str
    evidence: str
    offers: int
    cluster: Cluster
    usd: float
    watts: float
    workloads: list[Workshare]
    today: float | None
    faster: float | None
    calibration: Calibration
    simulator: Simulator | None
    doubled: list[Doubled]


def purchase(job: Job, usd: float, watts: float, kb: Path | None, today: Job | None = None) -> Purchase:
    """Errors: AutoscoutError; exit code 2 for a job that is no stack, 3 where the budget buys nothing."""
    if job.target != "stack":
        raise AutoscoutError(
            f'{job.name}: target = "{job.target}"; a cluster is chosen for a job of target = "stack"', 2
        )
    mix = workloads(job)
    past = _measured(job, today, kb)
    simulators = Tomorrow(today, past) if today and today.target != "stack" else None
    task = today.task if today else job.task
    same = today is not None and workloads(today)[0] == mix[0]
    alike = [(task == "serve") == bool(w["serving"]) for _, w in mix]
    sold = {str(c["device"]): c for c in clusters(job)}.values()
    asked: list[Job | Share] = [today if today and same else job, *job.traffic.mix]
    told = [
        workload if simulators and like and all(simulators.prices(workload, c) for c in sold) else None
        for workload, like in zip(asked, alike, strict=True)
    ]
    timed = [_timed(simulators, workload) if simulators and workload else None for workload in told]
    learned = calibration(past, today, needed=not any(timed))
    found = offers(job, mix, usd, watts, timed)
    if not found:
        raise AutoscoutError(_nothing(job, usd, watts), 3)
    best = found[0]
    shares = []
    for (weight, w), fit, workload, like in zip(mix, best.fits, told, alike, strict=True):
        known = learned if like else _UNKNOWN
        seconds, error, by = known.factor * fit.seconds, known.deviation, "design model"
        if simulators and workload:
            layout = {name: np.array([value]) for name, value in fit.layout.items()}
            error = float(simulators.says(workload, best.cluster, layout).error[0])
            seconds, by = fit.seconds, "today's simulator"
        shares.append(_share(weight, fit, w, seconds, error, by))
    times = [took for other, rows in past if today and other.id == today.id for took in _times(rows, other)]
    measured = min(times, default=None)
    return Purchase(
        job=job.name,
        evidence="predicted; nothing of it was measured",
        offers=len(found),
        cluster=best.cluster,
        usd=best.usd,
        watts=best.watts,
        workloads=shares,
        today=measured,
        faster=measured / shares[0].seconds if measured and same else None,
        calibration=learned,
        simulator=Simulator(simulators.name, simulators.jobs, simulators.rows) if simulators and any(timed) else None,
        doubled=doubled(best, mix, timed),
    )


def _timed(simulators: Tomorrow, workload: Job | Share) -> Timed:
    """Queries the simulator once for clusters that differ only in properties it does not model."""
    asked: dict[tuple[Value, ...], np.ndarray] = {}

    def seconds(cluster: Cluster, layouts: dict[str, np.ndarray]) -> np.ndarray:
        seen = tuple(cluster[name] for name in ("device", "npus", "npus_1", "bandwidth_2"))
        if seen not in asked:
            asked[seen] = simulators.says(workload, cluster, layouts).value
        return asked[seen]

    return seconds


def _share(weight: float, fit: Fit, w: dict[str, int], seconds: float, error: float, by: str) -> Workshare:
    return Workshare(
        kind="request" if w["serving"] else "step",
        layers=w["layers"],
        hidden=w["hidden"],
        weight=weight,
        seconds=seconds,
        low=seconds * math.exp(-SPAN * error),
        high=seconds * math.exp(SPAN * error),
        by=by,
        layout=fit.layout,
    )


def calibration(past: Sequence[tuple[Job, list[Measurement]]], today: Job | None, needed: bool) -> Calibration:
    """Fits the design model's error on measured rows. `needed`: nothing else prices the cluster. Errors: AutoscoutError
    (exit 2) if today's job has no measured row that the model can describe."""
    known: dict[str, list[float]] = {}
    left_out = 0
    for other, measured in past:
        errors = _residuals(other, measured)
        left_out += len(measured) - len(errors)
        if errors:
            known.setdefault(other.id, []).extend(errors)
    own = known.get(today.id, []) if today else []
    if today and needed and not own:
        raise AutoscoutError(
            f"{today.name}: the knowledge base has no measured row of it that the design model describes "
            f"(devices with a price: {', '.join(sorted(parts().device))}); tune it first, or leave --today out",
            2,
        )
    middles = np.array([np.median(errors) for errors in known.values()])
    between = float(np.sqrt((_PRIOR * ERROR**2 + np.sum(middles**2)) / (_PRIOR + len(middles))))
    within = [np.array(errors) - np.median(errors) for errors in known.values() if len(errors) > 1]
    scatter = float(np.concatenate(within).std()) if within else 0.0
    # With a correction from today's cluster the errors of two clusters add up, independently.
    deviation = math.sqrt((2 if own else 1) * between**2 + scatter**2)
    source = (
        f"{len(known)} measured job{'s'[: len(known) != 1]}, and published steps as {_PRIOR} more"
        if known
        else "published steps alone"
    )
    rows = sum(len(errors) for errors in known.values())
    factor = math.exp(float(np.median(own))) if own else 1.0
    return Calibration(factor, deviation, len(known), rows, len(own), left_out, source)


def _measured(job: Job, today: Job | None, kb: Path | None) -> list[tuple[Job, list[Measurement]]]:
    if kb is None or not kb.exists():
        return []
    kind = (today or job).task == "serve"
    near = similar(kb, today or job, memory_gib, count=_MOST)
    others = [a for a in near if a.job.target != "stack" and (a.job.task == "serve") == kind]
    return [
        (a.job, [m for _, m in store.measurements(kb, job=a.job.id, context=a.context, answers=True)]) for a in others
    ]


def _residuals(job: Job, measured: Sequence[Measurement]) -> list[float]:
    """log(measured / predicted) of the rows that the design model can describe."""
    device = job.cluster.nodes[0].device
    if device not in parts().device or len({node.device for node in job.cluster.nodes}) > 1 or not job.model.layers:
        return []
    mix = workloads(job)[:1]
    errors = []
    for m in measured:
        took = _seconds(m, job)
        design = _design(job, m)
        if m.status == "ok" and took and design:
            errors.append(math.log(took / float(evaluate(design, mix)["latency_s"][0])))
    return errors


def _times(measured: Sequence[Measurement], job: Job) -> list[float]:
    return [took for m in measured if m.status == "ok" and (took := _seconds(m, job))]


def _seconds(m: Measurement, job: Job) -> float | None:
    if job.task == "serve":
        felt = m.metrics.get("e2el_p50_ms")
        return felt / 1e3 if felt else None
    return m.metrics.get("step_time_s")


def _design(job: Job, m: Measurement) -> dict[str, np.ndarray] | None:
    """A measured configuration as a design: eight GPUs per node behind a switch, and switches between nodes."""
    knobs = m.configuration.knobs
    tp, pp, sp, ep = (int(knobs.get(name, 1)) for name in ("tp", "pp", "cp", "ep"))
    npus = job.devices
    dp = npus // (tp * pp * sp)
    if dp * tp * pp * sp != npus:
        return None
    island = min(npus, _ISLAND)
    zero = 3 if knobs.get("fsdp", "off") not in ("off", False) else int(knobs.get("distopt", False) is True)
    said: dict[str, Value] = {
        "device": job.cluster.nodes[0].device,
        "npus": npus,
        "tp": tp,
        "pp": pp,
        "sp": sp,
        "ep": ep,
    }
    said |= {"dp": dp, "zero": zero, "mbs": int(knobs.get("mbs", 1)), "recompute": knobs.get("ar", "none") == "full"}
    said |= {"dims": 2, "npus_1": island, "npus_2": max(npus // island, 1), "topology": "switch", "algorithm": "ring"}
    said |= {"bandwidth_1": _INSIDE, "bandwidth_2": _BETWEEN, "chunks": 4, "collectives": "hierarchical"}
    return {name: np.array([value]) for name, value in said.items()}


def _nothing(job: Job, usd: float, watts: float) -> str:
    within = " and ".join([f"{usd:,.0f} dollars"] * math.isfinite(usd) + [f"{watts:,.0f} W"] * math.isfinite(watts))
    any_ = offers(job, workloads(job), math.inf, math.inf)
    if not any_:
        return f"{job.name}: no cluster of its [space] holds these jobs, whatever it costs; limit less in [space]"
    least = min(any_, key=lambda o: o.usd)
    frugal = min(any_, key=lambda o: o.watts)
    known = len(clusters(job))
    return (
        f"{job.name}: none of {known} clusters holds these jobs within {within}; the cheapest costs {least.usd:,.0f} "
        f"dollars, the most frugal draws {frugal.watts:,.0f} W"
    )
