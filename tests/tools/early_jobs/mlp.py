"""Trains a small network with numpy and prints a line per step: mlp.py --batch 32 --dtype float32 [--order F]."""

import argparse
import time

import numpy as np

parser = argparse.ArgumentParser()
parser.add_argument("--batch", type=int, default=8)
parser.add_argument("--dtype", default="float64")
parser.add_argument("--order", default="C")
given = parser.parse_args()
rng = np.random.default_rng(0)
x, y = (rng.standard_normal((512, n)).astype(given.dtype) for n in (256, 16))
first, second = (np.array(rng.standard_normal(s) / 16, given.dtype, order=given.order) for s in ((256, 512), (512, 16)))
for step in range(100_000):
    began, loss = time.perf_counter(), 0.0
    for i in range(0, len(x), given.batch):
        inputs, wanted = x[i : i + given.batch], y[i : i + given.batch]
        hidden = np.maximum(inputs @ first, 0)
        error = (hidden @ second - wanted) / len(x)
        loss += float((error**2).sum() * len(x) / 16)
        back = (error @ second.T) * (hidden > 0)
        second -= 0.01 * hidden.T @ error
        first -= 0.01 * inputs.T @ back
    print(f"step {step} loss {loss:.6f} took {1000 * (time.perf_counter() - began):.3f} ms", flush=True)
