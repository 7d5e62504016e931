#!/usr/bin/env bash
# scikit-learn 1.9.1, GaussianProcessRegressor: alpha, the variance of the measurements' noise, is that of the normalized
# target where normalize_y is on, in squares of the data's standard deviation, and nothing says so. The variance that was
# measured (20 ms squared, for times from 900 to 1,100 ms) makes a flat line of it: every setting has the same prediction,
# and the interval is 1 ms. Divided by the data's variance it is what it should be.
#
# Guessed before: in the units of the target, squared. Seen (2026-11-30, Python 3.11):
#   alpha 400: predictions from 1014.3 to 1014.3, deviation 1.0; alpha 400 / var(y): from 881.5 to 1105.3, deviation 9.9
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
"${PYTHON:-python3.11}" -m venv "$folder/env"
"$folder/env/bin/pip" install --quiet scikit-learn==1.9.1
cat > "$folder/run.py" <<'P'
import sys

import numpy as np
import sklearn
from sklearn.gaussian_process import GaussianProcessRegressor
from sklearn.gaussian_process.kernels import RBF, ConstantKernel

rng = np.random.default_rng(0)
x = np.linspace(0, 10, 30)[:, None]
times = 1000 + 100 * np.sin(x[:, 0]) + rng.normal(0, 20, 30)
found = []
for name, alpha in (("the measured variance", 20.0**2), ("divided by the data's", 20.0**2 / times.var())):
    model = GaussianProcessRegressor(ConstantKernel(1.0) * RBF(1.0), alpha=alpha, normalize_y=True, random_state=0)
    mean, deviation = model.fit(x, times).predict(x, return_std=True)
    found.append((mean.max() - mean.min(), deviation.mean()))
    print(f"scikit-learn {sklearn.__version__}, {name}: alpha {alpha:.3g}, predictions from {mean.min():.1f} to {mean.max():.1f},"
          f" deviation {deviation.mean():.1f}")
sys.exit(not (found[0][0] < 5 and found[0][1] < 3 and found[1][0] > 150 and 5 < found[1][1] < 20))
P
"$folder/env/bin/python" -W ignore "$folder/run.py"
