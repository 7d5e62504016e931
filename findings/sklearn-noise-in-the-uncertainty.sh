#!/usr/bin/env bash
# scikit-learn 1.9.1, GaussianProcessRegressor: the same noise, stated as alpha or as a WhiteKernel, gives the same mean
# and two standard deviations. predict(return_std=True) is that of the function with alpha, and that of one more noisy
# measurement with a WhiteKernel: where 100 measurements were made, 0.010 and 0.100. An expected improvement from the
# latter sees something to gain at a point however often it was measured, and its search comes back to it.
#
# Guessed before: one standard deviation, of the function. Seen (2026-12-01, Python 3.11):
#   alpha: mean 0.8363, std 0.0100; WhiteKernel: mean 0.8363, std 0.1005; one measurement has 0.1
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/env"
"$folder/env/bin/pip" install --quiet scikit-learn==1.9.1
cd "$folder"
"$folder/env/bin/python" - <<'P'
import sys

import numpy as np
from sklearn.gaussian_process import GaussianProcessRegressor
from sklearn.gaussian_process.kernels import RBF, WhiteKernel

x = np.repeat([[0.0], [1.0], [2.0]], 100, axis=0)
y = np.sin(x[:, 0]) + 0.1 * np.random.default_rng(0).normal(size=300)
shape = RBF(1.0, "fixed")
stated = {
    "alpha": GaussianProcessRegressor(shape, alpha=0.01, optimizer=None),
    "WhiteKernel": GaussianProcessRegressor(shape + WhiteKernel(0.01, "fixed"), alpha=1e-10, optimizer=None),
}
found = {}
for name, model in stated.items():
    mean, std = model.fit(x, y).predict([[1.0]], return_std=True)
    found[name] = float(mean[0]), float(std[0])
    print(f"{name}: mean {mean[0]:.4f}, std {std[0]:.4f}")
one, other = found["alpha"], found["WhiteKernel"]
sys.exit(0 if abs(one[0] - other[0]) < 1e-6 and one[1] < 0.011 and other[1] > 0.1 else 1)
P
