"""The engine: sorts and says how long it took. Nothing of it is AutoScout's."""

import argparse
import json
import sys
import time

import numpy as np

parser = argparse.ArgumentParser()
parser.add_argument("--algorithm", default="quicksort")
parser.add_argument("--block", type=int, default=64)
parser.add_argument("--rounds", type=int, default=4)
asked = parser.parse_args()
if asked.block * asked.rounds > 8192:
    sys.exit("block and rounds do not fit")
data = np.random.default_rng(0).random((2**17 // asked.block, asked.block))
began = time.perf_counter()
for _ in range(asked.rounds):
    np.sort(data, axis=1, kind=asked.algorithm)
print(json.dumps({"sort_time_s": time.perf_counter() - began}))
