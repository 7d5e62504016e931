"""A buyer's question: so much money or so many watts, and a mix of jobs: which cluster, wired how?

    PYTHONPATH=. python tests/tools/stack_buyer.py JOB.toml --usd 20e6 [--watts 500e3]
        [--measured SECONDS --today TODAY.toml]

Every workload of the job gets the layout that suits it on each cluster (a session of `tune` shares one layout between
them); the cluster is chosen by their weighted time. Then each thing that money buys is doubled by itself: what would it
bring? With a measured step of today's cluster (the layout and network that TODAY.toml fixes) the answer is in seconds,
with the interval that published steps leave around the model (tests/tools/stack_published.py).
"""

import argparse
from pathlib import Path

import numpy as np

from autoscout.simulate.learned.weighing import SPAN
from autoscout.simulate.stack.designs import evaluate
from autoscout.simulate.stack.offers import doubled, offers
from autoscout.simulate.stack.stack_member import ERROR
from autoscout.simulate.stack.workloads import workloads
from autoscout.targets.jobs import JobSpace, expert_default, load_job


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
    told = offers(job, mix, asked.usd, asked.watts)
    if not told:
        print("no cluster within that budget holds these jobs; raise it, or limit less in [space]")
        return
    best = told[0]
    cluster, seconds = best.cluster, best.seconds
    print(f"{len(told)} clusters within the budget; predicted, nothing here was measured. The best:")
    print(
        f"  {cluster['npus']} {cluster['device']} in islands of {cluster['npus_1']} ({cluster['bandwidth_1']} GB/s of "
        f"each), {cluster['bandwidth_2']} GB/s of each between them; {best.usd / 1e6:.1f} M$, {best.watts / 1e3:.0f} kW"
    )
    for (weight, w), (s, chosen) in zip(mix, best.fits, strict=True):
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
    for each in doubled(best, mix):
        cost = "no price" if each.usd is None else f"{each.usd / 1e6:.1f} M$"
        print(f"| {each.what} | {each.seconds * factor:.3f} s | {cost} | {each.gain:.2f} × |")


if __name__ == "__main__":
    main()
