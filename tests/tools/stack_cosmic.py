"""COSMIC's logged simulator rows against what its released model says in closed form.

    PYTHONPATH=. python tests/tools/stack_cosmic.py ../shared/data/cosmic/astrasim_rows.csv

Documented (symbolic_tensor_graph @ 31ec220: sharding_spreadsheets, fullset and fully_sharded_fullset; ASTRA-sim's
Workload.cc and CommunicatorGroup.cc of November 2024): an operator takes the larger of operations / peak and bytes /
local bandwidth, an element counting as one byte, one micro batch runs through all stages, and every collective of part
of the NPUs is one logical ring, whatever the algorithm's knob says. The logs agree with bytes / bandwidth alone: the
peak acts nowhere in them. Not published: the network of several dimensions with congestion that they ran on; here a
ring's step is one message over the slowest of the links that the group spans. Nothing is fitted.
"""

import csv
import json
import sys
from typing import Any

import numpy as np


def seconds(row: dict[str, Any]) -> tuple[float, float]:
    """(of the operators, of the rings)."""
    n = {name: float(row[f"w_{name}"]) for name in ("dp", "tp", "sp", "din", "dout", "dff", "dmodel", "batch", "seq")}
    heads, layers, sharded = float(row["w_head"]), float(row["w_num_stacks"]), float(row["w_weight_sharded"]) > 0
    dp, tp, sp = n["dp"], n["tp"], n["sp"]
    tokens = n["batch"] / dp * n["seq"] / sp
    whole, own = tokens * n["dmodel"], tokens * n["dmodel"] / tp  # activations of all channels, of a rank's
    long = own * sp  # of the whole sequence
    scores = n["batch"] / dp * n["seq"] ** 2 / sp * heads / tp
    wide, square, block = tokens * n["dff"] / tp, n["dmodel"] ** 2 / tp, n["dmodel"] * n["dff"] / tp
    attention = 9 * (whole + square + own) + 6 * (scores + own + long) + 22 * own
    # (q, k, v: three products each; six products of scores; sums, norms and reshapes)
    feed = 6 * (whole + block + wide) + 10 * own
    embedding = 3 * (tokens * n["din"] + n["din"] * n["dout"] / tp + tokens * n["dout"] / tp)
    bandwidth = 1e9 * float(row["s_local-mem-bw"])
    compute = (layers * (attention + feed) + 2 * embedding) / bandwidth

    weights = 4 * square + 2 * block
    rings = layers * (
        7 * (sp - 1) * _message(row, own, tp, sp)
        + 15 * (tp - 1) * _message(row, own, 1, tp)
        + (3 if sharded else 2) * (dp - 1) / dp * _message(row, weights, tp * sp, dp)
    )
    return compute, rings


def _message(row: dict[str, Any], size: float, stride: float, members: float) -> float:
    """From one member of a ring to the next, over the slowest of the dimensions that the group spans."""
    if members == 1:
        return 0.0
    slowest, before = 0.0, 1.0
    for topology, npus, gb_s, latency in zip(
        *(json.loads(row[f"n_{name}"]) for name in ("topology", "npus_count", "bandwidth", "latency")), strict=True
    ):
        if max(stride, before) < min(stride * members, before * npus):
            hops = 2 if topology == "Switch" else 1
            slowest = max(slowest, hops * (1e-9 * latency + size / (gb_s * 1e9)))
        before *= npus
    return slowest


def main() -> None:
    with open(sys.argv[1]) as file:
        rows = [row for row in csv.DictReader(file) if not row["consistent"].startswith("no")]
    print("| row | NPUs | layers | logged, s | operators | with rings | off by |")
    print("|---|---|---|---|---|---|---|")
    errors = []
    for row in rows:
        logged = float(row["max_cycles"]) / 1e9
        compute, rings = seconds(row)
        errors.append((compute + rings) / logged - 1)
        print(
            f"| {row['row']} | {row['w_num_npus']} | {row['w_num_stacks']} | {logged:.4g} | {compute:.4g} | "
            f"{compute + rings:.4g} | {errors[-1]:+.1%} |"
        )
    many = np.array([int(row["w_num_stacks"]) > 4 and row["w_num_npus"] == "64" for row in rows])
    away = np.abs(errors)
    print(
        f"{np.sum(away <= 0.05)} of {len(away)} rows within 5 %; of the {many.sum()} that operators decide "
        f"{np.sum(away[many] <= 0.05)}, mean {away[many].mean():.1%}"
    )


if __name__ == "__main__":
    main()
