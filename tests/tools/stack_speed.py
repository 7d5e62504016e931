"""Designs evaluated per second, and the time of a search in a space too large to list.

    PYTHONPATH=. python tests/tools/stack_speed.py fixtures/jobs/gpt3-175b-stack.toml

CPU time of one core, the minimum of a few repeats, for uniformly drawn designs; memory beyond that of imports."""

import resource
import sys
import time

import numpy as np
from autoscout_stack.designs import evaluate
from autoscout_stack.workloads import workloads

from autoscout.search.candidates import favourites
from autoscout.targets.jobs import JobSpace, load_job


def main() -> None:
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    began = time.process_time()
    job = load_job(sys.argv[1])
    space = JobSpace.of_job(job)
    print(f"{space.count:,} valid designs, exactly: {space.count_is_exact}; {time.process_time() - began:.1f} s CPU")
    given = workloads(job)
    began = time.process_time()
    codes, costs = favourites(
        space, lambda rows: evaluate(space.columns(rows), given)["latency_s"], np.random.default_rng(0)
    )
    after = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    print(
        f"searched: {costs[0]:.4g} s, {space.name(space.of_codes(codes[0].tolist()))}; "
        f"{time.process_time() - began:.1f} s CPU, {(after - before) / 1024:.0f} MiB above the imports"
    )
    columns = space.columns(space.sample_many(40_000, np.random.default_rng(0)))
    told = []
    for whole in (False, True):
        took = []
        for _ in range(3 if whole else 12):
            began = time.process_time()
            told.append(evaluate(columns, given, whole)["latency_s"])
            took.append(time.process_time() - began)
        print(f"{'chunk by chunk' if whole else 'closed form'}: {40_000 / min(took):,.0f} designs a second")
    apart = np.log(told[0] / told[-1])
    print(f"closed form / chunk by chunk: deviation of the logarithm {apart.std():.3f}, median {np.median(apart):+.3f}")


if __name__ == "__main__":
    main()
