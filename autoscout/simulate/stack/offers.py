"""A cluster for a budget: the clusters on sale, the fastest layout of each workload on each, and the gain from doubling
one resource. In closed form, or by a simulator that knows the workload better; nothing here was measured."""

import itertools
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import msgspec
import numpy as np

from autoscout.simulate.stack.bill import Device, device
from autoscout.simulate.stack.designs import evaluate
from autoscout.simulate.stack.transformer import layout, memory_gib
from autoscout.simulate.stack.workloads import Workload
from kb.records import Job, Value

_SOLD = {"npus_1": [8, 32, 64], "bandwidth_1": [200, 400, 900], "bandwidth_2": [25, 50, 100, 200]}
_POWERS = [2**i for i in range(7)]
_WIRED = {"dims": 2, "topology": "switch", "algorithm": "halving_doubling", "chunks": 8}
_WIRED |= {"collectives": "hierarchical", "scheduling": "lifo", "ep": 1}
_DOUBLED = {
    "bandwidth_1": "bandwidth inside islands",
    "bandwidth_2": "bandwidth between islands",
    "npus_1": "size of an island",
    "npus": "devices",
}
_OF_A_DEVICE = {"tflops": "arithmetic of a device", "gb_s": "memory bandwidth of a device", "gib": "memory of a device"}

Cluster = dict[str, Value]
# (cluster, layouts as columns) → (n,) seconds of a step or request: a simulator in place of the closed form.
Timed = Callable[[Cluster, dict[str, np.ndarray]], np.ndarray]


class Fit(NamedTuple):
    """Seconds of one workload (inf: it fits nowhere) with its fastest layout."""

    seconds: float
    layout: dict[str, Value]


class Offer(NamedTuple):
    """`seconds`: the weighted mean of the workloads' times."""

    seconds: float
    usd: float
    watts: float
    cluster: Cluster
    fits: list[Fit]


class Doubled(msgspec.Struct, frozen=True):
    """`gain`: how many times as fast; `usd`: what the cluster then costs, None where parts.toml has no price of it."""

    what: str
    seconds: float
    gain: float
    usd: float | None


def clusters(job: Job) -> list[Cluster]:
    """Two switched dimensions, as they are sold: an island, and a network between islands, within what the job's
    [space] fixes or limits."""
    usual: dict[str, Sequence[Value]] = {"device": [job.cluster.nodes[0].device], "npus": [job.devices], **_SOLD}
    given: dict[str, Sequence[Value]] = {**job.space.limit, **{name: [value] for name, value in job.space.fix.items()}}
    names, choices = list(usual), [given.get(name) or values for name, values in usual.items()]
    found: list[Cluster] = [dict(zip(names, row, strict=True)) for row in itertools.product(*choices)]
    return [
        {**c, "npus_2": int(c["npus"]) // int(c["npus_1"])}
        for c in found
        if int(c["npus"]) % int(c["npus_1"]) == 0 and int(c["npus"]) > int(c["npus_1"])
    ]


def offers(
    job: Job, mix: Sequence[tuple[float, Workload]], usd: float, watts: float, timed: Sequence[Timed | None] = ()
) -> list[Offer]:
    """Clusters within the budget that fit every workload, the fastest first. `timed`: per workload, its simulator; None
    for the closed form."""
    sold = clusters(job)
    priced = zip(sold, _bills(sold, mix[0][1]) if sold else [], strict=True)
    found = [
        _offer(c, mix, price, power, timed=timed) for c, (price, power) in priced if price <= usd and power <= watts
    ]
    return sorted((o for o in found if np.isfinite(o.seconds)), key=lambda o: (o.seconds, o.usd))


def doubled(offer: Offer, mix: Sequence[tuple[float, Workload]], timed: Sequence[Timed | None] = ()) -> list[Doubled]:
    """Each resource doubled by itself, with layouts chosen anew. Gains from doubling a device's own parts always come
    from the closed form."""
    found = []
    for name, what in _DOUBLED.items():
        changed = {**offer.cluster, name: 2 * float(offer.cluster[name])}
        if (islands := int(changed["npus"]) // int(changed["npus_1"])) < 1:
            continue
        changed["npus_2"] = islands
        [(usd, watts)] = _bills([changed], mix[0][1])
        after = _offer(changed, mix, usd, watts, timed=timed)
        found.append(Doubled(what, after.seconds, offer.seconds / after.seconds, usd))
    kind = device(str(offer.cluster["device"]))
    before = _offer(offer.cluster, mix, offer.usd, offer.watts)
    for field, what in _OF_A_DEVICE.items():
        better = msgspec.structs.replace(kind, **{field: 2 * getattr(kind, field)})
        after = _offer(offer.cluster, mix, offer.usd, offer.watts, better)
        gain = before.seconds / after.seconds
        found.append(Doubled(what, offer.seconds / gain, gain, None))
    return found


def _offer(
    cluster: Cluster,
    mix: Sequence[tuple[float, Workload]],
    usd: float,
    watts: float,
    kind: Device | None = None,
    timed: Sequence[Timed | None] = (),
) -> Offer:
    each = timed or [None] * len(mix)
    used = kind or device(str(cluster["device"]))
    fits = [_fastest(cluster, w, used, by) for (_, w), by in zip(mix, each, strict=True)]
    total = sum(weight for weight, _ in mix)
    seconds = sum(weight * fit.seconds for (weight, _), fit in zip(mix, fits, strict=True)) / total
    return Offer(seconds, usd, watts, cluster, fits)


def _fastest(cluster: Cluster, w: Workload, kind: Device, timed: Timed | None) -> Fit:
    layouts = _layouts(int(cluster["npus"]), w)
    if not (n := len(layouts["tp"])):
        return Fit(np.inf, {})
    columns: dict[str, Any] = layouts | cluster | _WIRED
    columns |= {name: np.full(n, int(cluster[name])) for name in ("npus_1", "npus_2")}
    if timed:
        seconds, gib = timed(cluster, layouts), memory_gib(w, layout(columns, w))
    else:
        found = evaluate(columns, [(1.0, w)], devices={str(cluster["device"]): kind})
        seconds, gib = found["latency_s"], found["peak_memory_gib"]
    seconds = np.where(gib <= kind.gib, seconds, np.inf)
    best = int(np.argmin(seconds))
    return Fit(float(seconds[best]), {name: column[best].item() for name, column in layouts.items()})


def _layouts(npus: int, w: Workload) -> dict[str, np.ndarray]:
    """All that so many devices can hold of the workload, (n,) by knob."""
    axes = np.meshgrid(_POWERS, _POWERS[:4], _POWERS[:6], (0, 1, 3), (1, 2, 4), (False, True), indexing="ij")
    tp, sp, pp, zero, mbs, again = (axis.ravel() for axis in axes)
    dp = npus // (tp * sp * pp)
    possible = (npus % (tp * sp * pp) == 0) & (w["heads"] % tp == 0) & (pp <= w["layers"])
    possible &= w["batch"] % np.maximum(dp * mbs, 1) == 0
    if w["serving"]:
        possible &= (zero == 0) & ~again & (mbs == 1)
    layouts = {"tp": tp, "sp": sp, "pp": pp, "dp": dp, "zero": zero, "mbs": mbs, "recompute": again}
    return {name: column[possible] for name, column in layouts.items()}


def _bills(found: Sequence[Cluster], w: Workload) -> list[tuple[float, float]]:
    """(dollars, watts) of each cluster, at least one."""
    columns: dict[str, Any] = {name: np.array([c[name] for c in found]) for name in found[0]}
    ones = dict.fromkeys(("tp", "sp", "pp", "dp", "mbs"), np.ones(len(found), dtype=np.int64))
    bill = evaluate({**columns, **ones, "dims": 2, "topology": "switch"}, [(1.0, w)])
    return list(zip(bill["cluster_usd"].tolist(), bill["cluster_watts"].tolist(), strict=True))
