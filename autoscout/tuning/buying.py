"""Which cluster to buy: the fastest design within a budget, corrected by what the knowledge base measured, with the
interval that those measurements leave."""

import math
from collections.abc import Sequence
from pathlib import Path

import msgspec
import numpy as np

from autoscout.job.presets import device_memory_gib
from autoscout.simulate.learned.weighing import SPAN
from autoscout.simulate.stack.bill import parts
from autoscout.simulate.stack.designs import evaluate
from autoscout.simulate.stack.offers import Cluster, Doubled, Fit, clusters, doubled, offers
from autoscout.simulate.stack.stack_member import ERROR
from autoscout.simulate.stack.workloads import workloads
from kb import store
from kb.records import AutoscoutError, Job, Measurement, Value
from kb.similar import similar

_PRIOR = 4  # jobs that the error on published steps (stack_member.ERROR) counts for beside measured ones
_MOST = 50  # past jobs that are asked
_ISLAND, _INSIDE, _BETWEEN = 8, 450, 50  # GPUs of a node and GB/s of one, where a job file does not say


class Calibration(msgspec.Struct, frozen=True):
    """`factor`: measured / predicted of today's job, 1 without; `deviation`: of the logarithm of a time on another
    cluster; `rows` of `jobs` it was learned from, `today_rows` of today's job; `left_out`: rows that the design model
    cannot describe."""

    factor: float
    deviation: float
    jobs: int
    rows: int
    today_rows: int
    left_out: int
    source: str


class Workshare(msgspec.Struct, frozen=True, kw_only=True):
    """One workload on the cluster; seconds of a step or request, corrected, with the 90 % interval."""

    kind: str
    layers: int
    hidden: int
    weight: float
    seconds: float
    low: float
    high: float
    layout: dict[str, Value]


class Purchase(msgspec.Struct, frozen=True, kw_only=True):
    """`today`: measured seconds of today's job, `faster`: how many times as fast that is on the new cluster, where it
    is the first workload of the job that is asked."""

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
    doubled: list[Doubled]


def purchase(job: Job, usd: float, watts: float, kb: Path | None, today: Job | None = None) -> Purchase:
    """Errors: AutoscoutError; exit code 2 for a job that is no stack, 3 where the budget buys nothing."""
    if job.target != "stack":
        raise AutoscoutError(
            f'{job.name}: target = "{job.target}"; a cluster is chosen for a job of target = "stack"', 2
        )
    mix = workloads(job)
    found = offers(job, mix, usd, watts)
    if not found:
        raise AutoscoutError(_nothing(job, usd, watts), 3)
    best = found[0]
    learned, measured = calibration(job, kb, today)
    task = today.task if today else job.task
    same = today is not None and workloads(today)[0] == mix[0]
    shares = [
        _share(weight, fit, w, learned, (task == "serve") == bool(w["serving"]))
        for (weight, w), fit in zip(mix, best.fits, strict=True)
    ]
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
        doubled=doubled(best, mix),
    )


def _share(weight: float, fit: Fit, w: dict[str, int], learned: Calibration, alike: bool) -> Workshare:
    """`alike`: of the kind of today's job, steps or requests: the one says nothing of the other."""
    factor, deviation = (learned.factor, learned.deviation) if alike else (1.0, ERROR)
    return Workshare(
        kind="request" if w["serving"] else "step",
        layers=w["layers"],
        hidden=w["hidden"],
        weight=weight,
        seconds=factor * fit.seconds,
        low=factor * fit.seconds * math.exp(-SPAN * deviation),
        high=factor * fit.seconds * math.exp(SPAN * deviation),
        layout=fit.layout,
    )


def calibration(job: Job, kb: Path | None, today: Job | None) -> tuple[Calibration, float | None]:
    """What measured rows say of the design model, and the best time of today's job. Errors: AutoscoutError (exit 2) for
    a job of today that has no measured row the model can describe."""
    known: dict[str, list[float]] = {}
    left_out, fastest = 0, None
    past = _measured(job, today, kb)
    for other, measured in past:
        errors, seconds = _residuals(other, measured)
        left_out += len(measured) - len(errors)
        if errors:
            known.setdefault(other.id, []).extend(errors)
        if today and other.id == today.id and seconds:
            fastest = min(seconds)
    own = known.get(today.id, []) if today else []
    if today and not own:
        raise AutoscoutError(
            f"{today.name}: the knowledge base has no measured row of it that the design model describes "
            f"(devices with a price: {', '.join(sorted(parts().device))}); tune it first, or leave --today out",
            2,
        )
    middles = np.array([np.median(errors) for errors in known.values()])
    between = float(np.sqrt((_PRIOR * ERROR**2 + np.sum(middles**2)) / (_PRIOR + len(middles))))
    within = [np.array(errors) - np.median(errors) for errors in known.values() if len(errors) > 1]
    scatter = float(np.concatenate(within).std()) if within else 0.0
    # Two clusters err, each by itself, where today's corrects tomorrow's.
    deviation = math.sqrt((2 if own else 1) * between**2 + scatter**2)
    source = (
        f"{len(known)} measured job{'s'[: len(known) != 1]}, and published steps as {_PRIOR} more"
        if known
        else "published steps alone"
    )
    rows = sum(len(errors) for errors in known.values())
    factor = math.exp(float(np.median(own))) if own else 1.0
    return Calibration(factor, deviation, len(known), rows, len(own), left_out, source), fastest


def _measured(job: Job, today: Job | None, kb: Path | None) -> list[tuple[Job, list[Measurement]]]:
    if kb is None or not kb.exists():
        return []
    kind = (today or job).task == "serve"
    near = similar(kb, today or job, device_memory_gib, count=_MOST)
    others = [a for a in near if a.job.target != "stack" and (a.job.task == "serve") == kind]
    return [
        (a.job, [m for _, m in store.measurements(kb, job=a.job.id, context=a.context, answers=True)]) for a in others
    ]


def _residuals(job: Job, measured: Sequence[Measurement]) -> tuple[list[float], list[float]]:
    """log(measured / predicted), and the measured seconds, of the rows that the design model describes."""
    device = job.cluster.nodes[0].device
    if device not in parts().device or len(job.cluster.nodes) > 1 or not job.model.layers:
        return [], []
    mix = workloads(job)[:1]
    errors, seconds = [], []
    for m in measured:
        took = _seconds(m, job)
        design = _design(job, m)
        if m.status == "ok" and took and design:
            predicted = float(evaluate(design, mix)["latency_s"][0])
            errors.append(math.log(took / predicted))
            seconds.append(took)
    return errors, seconds


def _seconds(m: Measurement, job: Job) -> float | None:
    if job.task == "serve":
        felt = m.metrics.get("e2el_p50_ms")
        return felt / 1e3 if felt else None
    return m.metrics.get("step_time_s")


def _design(job: Job, m: Measurement) -> dict[str, np.ndarray] | None:
    """A measured configuration as a design: nodes of eight behind a switch, nodes behind switches."""
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
