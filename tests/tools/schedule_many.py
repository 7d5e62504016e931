"""Simulates the scheduler in virtual time: many queued experiments of mixed sizes on many slots, with kills and lost
hosts. Prints the figures of docs/clusters.md.

    python tests/tools/schedule_many.py [--experiments 10000] [--slots 1024] [--troubles 1000]
"""

import argparse
import heapq
import json
import random
import resource
import time

from autoscout.running.cluster.placement import Device, Host
from autoscout.running.cluster.scheduler import Scheduler, SlotPart

PER_HOST = 8
SIZES, WEIGHTS = (1, 2, 4, 8, 16, 32, 64), (20, 20, 20, 20, 10, 6, 4)


def booked(scheduler: Scheduler) -> list[tuple[str, str]]:
    return [(h.name, d.index) for ran in scheduler.running.values() for h in ran.placement.hosts for d in h.devices]


def simulate(experiments: int, slots: int, troubles: int, seed: int = 0) -> dict[str, float]:
    rng = random.Random(seed)
    hosts = [Host(f"n{i:03d}", tuple(Device(str(j), "gpu") for j in range(PER_HOST))) for i in range(slots // PER_HOST)]
    scheduler = Scheduler(hosts)
    size = {f"e{i}": min(rng.choices(SIZES, WEIGHTS)[0], slots) for i in range(experiments)}
    lasts = {name: rng.lognormvariate(4.0, 0.6) for name in size}  # seconds, median 55
    began = time.process_time()
    for name, n in size.items():
        parts = tuple(SlotPart("gpu", PER_HOST) for _ in range(n // PER_HOST)) or (SlotPart("gpu", n),)
        scheduler.submit(name, parts, 1.5 * max(lasts[name], 60.0))
    ends: list[tuple[float, int, str]] = []
    now, attempt, done, down, wasted = 0.0, dict.fromkeys(size, 0), set(), [], 0.0
    since: dict[str, float] = {}
    trouble_at = sorted(rng.uniform(0, 0.9 * sum(size[n] * lasts[n] for n in size) / slots) for _ in range(troubles))
    used = 0.0
    while len(done) < experiments:
        for name, _ in scheduler.start(now):
            attempt[name] += 1
            since[name] = now
            heapq.heappush(ends, (now + lasts[name], attempt[name], name))
        if trouble_at and (not ends or trouble_at[0] <= ends[0][0]):
            now = trouble_at.pop(0)
            if rng.random() < 0.5 and scheduler.running:  # killed, so it must run again
                victims = [rng.choice(list(scheduler.running))]
                ran = scheduler.running[victims[0]]
                scheduler.end(victims[0])
                scheduler.submit(victims[0], ran.request, ran.limit_s)
            else:
                if len(down) >= 4:
                    scheduler.regain(down.pop(0))
                down.append(rng.choice([h.name for h in hosts if h.name not in down]))
                victims = scheduler.lose(down[-1])
            for name in victims:
                wasted += size[name] * (now - since.pop(name))
                attempt[name] += 1
            at = booked(scheduler)
            assert len(at) == len(set(at)), "booked twice"
            continue
        now, tried, name = heapq.heappop(ends)
        if tried == attempt[name] and name in scheduler.running:
            scheduler.end(name)
            done.add(name)
            used += size[name] * lasts[name]
    for host in down:
        scheduler.regain(host)
    leaked = slots - len(scheduler.free)
    cpu = time.process_time() - began
    bound = max(used / slots, max(lasts.values()))
    return {
        "experiments": experiments,
        "slots": slots,
        "troubles": troubles,
        "makespan_s": round(now, 1),
        "bound_s": round(bound, 1),
        "share_of_bound": round(bound / now, 4),
        "with_wasted_work": round(max((used + wasted) / slots, max(lasts.values())) / now, 4),
        "scheduling_ms_per_experiment": round(1000 * cpu / experiments, 3),
        "peak_mb": round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024, 1),
        "slots_leaked": leaked,
    }


if __name__ == "__main__":
    words = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    words.add_argument("--experiments", type=int, default=10_000)
    words.add_argument("--slots", type=int, default=1_024)
    words.add_argument("--troubles", type=int, default=1_000)
    asked = words.parse_args()
    for troubles in (0, asked.troubles):
        print(json.dumps(simulate(asked.experiments, asked.slots, troubles)))
