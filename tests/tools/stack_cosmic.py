"""Compares COSMIC's logged simulator rows with our model of its documented trace, scheduler and network.

    PYTHONPATH=. python tests/tools/stack_cosmic.py ../shared/data/cosmic/astrasim_rows.csv [ROW …]

The workload is `astra_trace`, the network `astra_links`, both documented in public sources that their files name. The
scheduler (ASTRA-sim's Workload.cc and HardwareResource.cc, branch archgym @ 9189f2e): a rank runs one operator and one
collective or send at a time, the ready one with the lowest number first; a receive begins only while nothing is sent,
and then waits concurrently. A collective is split into `preferred-dataset-splits` sequential pieces, each a logical
ring, independent of the knobs for its algorithm and order. The peak has no effect, because it is given in operations
per second but compared with operations per ns.

One simplification: all ranks of a stage begin a collective together, so each kind of collective is simulated once, on
the first stage, instead of every time on all ranks. Nothing is fitted."""

import csv
import heapq
import json
import sys
from collections.abc import Callable
from functools import cache
from math import ceil
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
from astra_links import Links
from astra_trace import GATHER, REDUCE, Node, Trace


class Row:
    """A row of the logs, which predicts the duration of its trace."""

    def __init__(self, row: dict[str, str]) -> None:
        topology, sizes, gb_s, latency = (
            json.loads(row[f"n_{name}"]) for name in ("topology", "npus_count", "bandwidth", "latency")
        )
        self.trace = Trace(row)
        self._links = Links(topology, sizes, gb_s, latency)
        self._splits = int(float(row["s_preferred-dataset-splits"]))
        self._memory = float(row["s_local-mem-bw"])  # bytes a ns
        d, t, s = (self.trace.degree[axis] for axis in "dts")
        self._stride = {"d": 1, "t": d, "s": d * t, "p": d * t * s}
        self.collective = cache(self._collective)
        self.send = cache(self._send)

    def step(self) -> tuple[int, int]:
        """(ns until the first stage is done, ns until the last one is)."""
        ended = schedule(self.trace.stages, self._took)
        return min(ended), max(ended)

    def _took(self, node: Node, stage: int) -> int:
        if node.what == "compute":
            return int(node.size / self._memory)
        if node.what == "send":
            return self.send(stage, node.peer[0] if node.peer else stage, node.size)
        return self.collective(node.what, node.axis, node.size)

    def _collective(self, kind: str, axis: str, size: int) -> int:
        chunk = size // self._splits
        if kind != GATHER and chunk < self._links.npus:
            chunk, size = self._links.npus, self._links.npus * self._splits
        members, stride = self.trace.degree[axis], self._stride[axis]
        firsts = [npu for npu in range(self._stride["p"]) if npu // stride % members == 0]
        rings = [[first + i * stride for i in range(members)] for first in firsts]
        message = chunk if kind == GATHER else chunk // members
        reduced = 0 if kind == GATHER else members - 1
        steps = (2 if kind == REDUCE else 1) * (members - 1)
        once = self._links.ring(rings, message, steps, reduced, 3 * int(message / self._memory))
        return ceil(size / chunk) * once

    def _send(self, stage: int, other: int, size: int) -> int:
        ranks = self._stride["p"]
        return self._links.send([(stage * ranks + i, other * ranks + i) for i in range(ranks)], size)


def schedule(stages: list[list[Node]], took: Callable[[Node, int], int]) -> list[int]:
    """The time at which each stage is done, in ns."""
    left = [[len(set(node.after)) for node in stage] for stage in stages]
    then: list[list[list[int]]] = [[[] for _ in stage] for stage in stages]
    for s, stage in enumerate(stages):
        for number, node in enumerate(stage):
            for before in set(node.after):
                then[s][before].append(number)
    ready = [[number for number, count in enumerate(counts) if not count] for counts in left]
    computing, sending = [False] * len(stages), [False] * len(stages)
    arrived, waiting = set(), set()
    ended = [0] * len(stages)
    heap: list[tuple[int, int, int]] = []

    def issue(s: int, now: int) -> None:
        kept = []
        while ready[s] and not (computing[s] and sending[s]):
            number = heapq.heappop(ready[s])
            node = stages[s][number]
            if computing[s] if node.what == "compute" else sending[s]:
                kept.append(number)
            elif node.what != "receive":
                computing[s], sending[s] = (computing[s], True) if node.what != "compute" else (True, sending[s])
                heapq.heappush(heap, (now + took(node, s), s, number))
            elif (s, number) in arrived:
                heapq.heappush(heap, (now, s, number))
            else:
                waiting.add((s, number))
        for number in kept:
            heapq.heappush(ready[s], number)

    for s in range(len(stages)):
        issue(s, 0)
    while heap:
        now, s, number = heapq.heappop(heap)
        node = stages[s][number]
        ended[s] = now
        computing[s] &= node.what != "compute"
        sending[s] &= node.what in ("compute", "receive")
        if node.what == "send" and node.peer:
            arrived.add(node.peer)
            if node.peer in waiting:
                heapq.heappush(heap, (now, *node.peer))
        for following in then[s][number]:
            left[s][following] -= 1
            if not left[s][following]:
                heapq.heappush(ready[s], following)
        issue(s, now)
    return ended


def main() -> None:
    with open(sys.argv[1]) as file:
        rows = [row for row in csv.DictReader(file) if not row["consistent"].startswith("no")]
    rows = [row for row in rows if row["row"] in sys.argv[2:] or not sys.argv[2:]]
    print("| row | NPUs | layers | logged, s | here, s | off by | first rank, s | here, s |")
    print("|---|---|---|---|---|---|---|---|")
    away = []
    for row in rows:
        first, last = (float(row[f"{name}_cycles"]) / 1e9 for name in ("min", "max"))
        soonest, latest = (ns / 1e9 for ns in Row(row).step())
        away.append(abs(latest / last - 1))
        print(
            f"| {row['row']} | {row['w_num_npus']} | {row['w_num_stacks']} | {last:.4g} | {latest:.4g} | "
            f"{latest / last - 1:+.2%} | {first:.4g} | {soonest:.4g} |",
            flush=True,
        )
    print(f"{sum(a <= 0.05 for a in away)} of {len(away)} rows within 5 %, mean {sum(away) / len(away):.2%}")


if __name__ == "__main__":
    main()
