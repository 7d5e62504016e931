"""A buyer's question: so much money or so many watts, and a mix of jobs: which cluster, wired how?

    PYTHONPATH=. python tests/tools/stack_buyer.py JOB.toml --usd 20e6 [--watts 500e3]
        [--measured SECONDS --today TODAY.toml]

Every workload of the job gets the layout that suits it on each cluster (a session of `tune` shares one layout between
them); the cluster is chosen by their weighted time. Then each thing that money buys is doubled by itself: what would it
bring? With a measured step of today's cluster (the layout and network that TODAY.toml fixes) the answer is in seconds,
with the interval that published steps leave around the model (tests/tools/stack_published.py).
"""

import argparse
import itertools
from pathlib import Path
from typing import Any

import numpy as np

from autoscout.simulate.stack.bill import device as device_of
from autoscout.simulate.stack.designs import evaluate
from autoscout.simulate.stack.stack_member import ERROR
from autoscout.simulate.stack.transformer import layout, memory_gib
from autoscout.simulate.stack.workloads import workloads
from autoscout.targets.jobs import JobSpace, expert_default, load_job
from kb.records import Job

SPAN = 1.645
POWERS = [2**i for i in range(14)]


def clusters(job: Job) -> list[dict[str, Any]]:
    """Two switched dimensions, as they are sold: an island and a network between islands."""
    devices = job.space.limit.get("device", [job.cluster.nodes[0].device])
    npus = job.space.limit.get("npus", [job.devices])
    return [
        {
            "device": d,
            "npus": n,
            "npus_1": island,
            "npus_2": int(n) // island,
            "bandwidth_1": inside,
            "bandwidth_2": out,
        }
        for d, n, island, inside, out in itertools.product(
            devices, npus, (8, 32, 64), (200, 400, 900), (25, 50, 100, 200)
        )
        if int(n) % island == 0 and int(n) > island
    ]


def best_layouts(cluster: dict[str, Any], workload: Any) -> tuple[float, dict[str, Any]]:
    """(seconds, layout) of one workload on a cluster; inf where nothing fits."""
    npus = int(cluster["npus"])
    rows = [
        {"tp": tp, "sp": sp, "pp": pp, "dp": npus // (tp * sp * pp), "zero": zero, "mbs": mbs, "recompute": again}
        for tp, sp, pp, zero, mbs, again in itertools.product(
            POWERS[:7], POWERS[:4], POWERS[:6], (0, 1, 3), (1, 2, 4), (False, True)
        )
        if npus % (tp * sp * pp) == 0
        and workload["heads"] % tp == 0
        and pp <= workload["layers"]
        and workload["batch"] % (npus // (tp * sp * pp) * mbs) == 0
        and not (workload["serving"] and (zero or again or mbs > 1))
    ]
    if not rows:
        return np.inf, {}
    columns: dict[str, Any] = {name: np.array([row[name] for row in rows]) for name in rows[0]}
    columns |= {**cluster, "dims": 2, "topology": "switch", "algorithm": "halving_doubling", "chunks": 8}
    columns |= {"collectives": "hierarchical", "scheduling": "lifo", "ep": 1}
    columns |= {name: np.full(len(rows), columns[name]) for name in ("npus_1", "npus_2")}
    seconds = evaluate(columns, [(1.0, workload)])["latency_s"]
    fits = memory_gib(workload, layout(columns, workload)) <= device_of(str(cluster["device"])).gib
    seconds = np.where(fits, seconds, np.inf)
    first = int(np.argmin(seconds))
    return float(seconds[first]), rows[first]


def bill_of(cluster: dict[str, Any], workload: Any) -> tuple[float, float]:
    columns = {name: np.array([value]) for name, value in cluster.items()} | {"dims": 2, "topology": "switch"}
    ones = {name: np.array([1]) for name in ("tp", "sp", "pp", "dp", "mbs")}
    told = evaluate({**columns, **ones}, [(1.0, workload)])
    return float(told["cluster_usd"][0]), float(told["cluster_watts"][0])


def scored(cluster: dict[str, Any], mix: list[Any]) -> tuple[float, list[tuple[float, dict[str, Any]]]]:
    each = [best_layouts(cluster, w) for _, w in mix]
    return sum(weight * s for (weight, _), (s, _) in zip(mix, each, strict=True)) / sum(w for w, _ in mix), each


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("job", type=Path)
    parser.add_argument("--usd", type=float, default=np.inf)
    parser.add_argument("--watts", type=float, default=np.inf)
    parser.add_argument("--today", type=Path)
    parser.add_argument("--measured", type=float)
    asked = parser.parse_args()
    job = load_job(asked.job)
    mix = workloads(job)
    told = []
    for cluster in clusters(job):
        usd, watts = bill_of(cluster, mix[0][1])
        if usd <= asked.usd and watts <= asked.watts:
            told.append((*scored(cluster, mix), usd, watts, cluster))
    told = [row for row in told if np.isfinite(row[0])]
    if not told:
        print("no cluster within that budget holds these jobs; raise it, or limit less in [space]")
        return
    seconds, each, usd, watts, cluster = min(told, key=lambda row: row[0])
    print(f"{len(told)} clusters within the budget; predicted, nothing here was measured. The best:")
    print(
        f"  {cluster['npus']} {cluster['device']} in islands of {cluster['npus_1']} ({cluster['bandwidth_1']} GB/s of "
        f"each), {cluster['bandwidth_2']} GB/s of each between them; {usd / 1e6:.1f} M$, {watts / 1e3:.0f} kW"
    )
    for (weight, w), (s, chosen) in zip(mix, each, strict=True):
        laid = ", ".join(f"{name} {value}" for name, value in chosen.items())
        print(
            f"  {'request' if w['serving'] else 'step'} of {w['layers']} layers × {w['hidden']} (weight {weight:g}): "
            f"{s:.3f} s with {laid}"
        )
    factor, spread = 1.0, ERROR
    if asked.measured and asked.today:
        now = JobSpace.of_job(load_job(asked.today))
        columns = {name: np.array([value]) for name, value in expert_default(now).knobs.items()}
        columns |= {f"npus_{i}": np.array([1]) for i in range(1, 5) if f"npus_{i}" not in columns}
        modelled = float(evaluate(columns, workloads(now.job))["latency_s"][0])
        factor, spread = asked.measured / modelled, ERROR * np.sqrt(2)  # two clusters err, each by itself
        print(f"today: measured {asked.measured:.3f} s, the model says {modelled:.3f} s: × {factor:.2f}")
        low, high = (factor * seconds * np.exp(sign * SPAN * spread) for sign in (-1, 1))
        print(
            f"tomorrow: {factor * seconds:.3f} s (90 % interval {low:.3f} to {high:.3f}), "
            f"{asked.measured / (factor * seconds):.2f} × as fast"
        )
    print("| what is doubled | time | at | gain |")
    print("|---|---|---|---|")
    doubled = [
        ("bandwidth_1", "bandwidth inside islands"),
        ("bandwidth_2", "bandwidth between islands"),
        ("npus", "devices"),
        ("npus_1", "size of an island"),
    ]
    for name, meaning in doubled:
        changed = {**cluster, name: 2 * cluster[name]}
        changed["npus_2"] = changed["npus"] // changed["npus_1"]
        after, _ = scored(changed, mix)
        cost, _ = bill_of(changed, mix[0][1])
        print(f"| {meaning} | {after * factor:.3f} s | {cost / 1e6:.1f} M$ | {seconds / after:.2f} × |")


if __name__ == "__main__":
    main()
