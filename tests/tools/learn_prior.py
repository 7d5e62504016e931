"""Learns the prior of the belief's hyper-parameters from generated landscapes (search_generated.py). Only even draws
are used; odd ones are held out.

On each landscape, the posterior is fitted to rows like a search's: some random ones, and more of the better ones.
Prints medians and standard deviations of the logs over landscapes, for `Prior` in belief/posterior.py.

    python tests/tools/learn_prior.py --draws 10,12,14,16 --rows 100
"""

import argparse

import numpy as np
import search_generated

from autoscout.search.belief.bending import bent
from autoscout.search.belief.encoding import Encoding
from autoscout.search.belief.posterior import Posterior, Prior, Theta
from autoscout.search.pool import CandidatePool

WIDE = Prior(effects=(0.4, 1.5), residual=(0.7, 1.5), rough=(0.3, 1.5), noise=(0.1, 1.5), length=(1.0, 2.0))


def fitted(family: str, draw: int, rows: int) -> tuple[Theta, list[bool]]:
    """(θ, whether each axis belongs to a sparse knob)."""
    land = search_generated.landscape(family, draw)
    rng = np.random.default_rng(draw)
    pool = CandidatePool(land.space, rng)
    encoding = Encoding(land.space.knobs, pool.levels())
    ok = np.flatnonzero(np.isfinite(land.truth))
    wide = rng.choice(ok, 4 * rows, replace=False)
    good = wide[np.argsort(land.truth[wide])][: rows // 2]
    told = np.unique(np.concatenate([good, rng.choice(ok, rows - len(good), replace=False)]))
    logs = np.log(land.truth[told]) + search_generated.NOISE * rng.standard_normal(len(told))
    y = bent(logs - logs.min())
    unit = y.std()
    posterior = Posterior(encoding, WIDE)
    none = np.zeros((len(told), 0))
    posterior.fit(encoding.rows(pool.codes[told]), (y - y.mean()) / unit, none, np.zeros(0), iterations=60)
    kind = {k.name: k.kind == "sparse" for k in land.space.knobs}
    return posterior.theta, [kind[name] for name in encoding.names]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--of", default=",".join(search_generated.FAMILIES))
    parser.add_argument("--draws", default="10,12")
    parser.add_argument("--rows", type=int, default=100)
    given = parser.parse_args()
    scales: dict[str, list[float]] = {}
    for family in given.of.split(","):
        for draw in map(int, given.draws.split(",")):
            theta, sparse = fitted(family, draw, given.rows)
            for name in ("effects", "residual", "rough", "noise"):
                scales.setdefault(name, []).append(np.log(getattr(theta, name)))
            usual = theta.lengths / np.sqrt(max(len(theta.lengths) / 4, 1.0))
            for length, is_sparse in zip(np.log(usual), sparse, strict=True):
                scales.setdefault(f"length {'sparse' if is_sparse else 'dense'}", []).append(length)
            lengths = " ".join(f"{v:.2f}" for v in usual)
            print(
                f"{family} {draw}: effects {theta.effects:.2f} residual {theta.residual:.2f} rough {theta.rough:.2f} "
                f"noise {theta.noise:.3f} lengths {lengths}",
                flush=True,
            )
    for name, logs in scales.items():
        print(f"= {name:14} median {np.exp(np.median(logs)):.2f}, spread of the logarithm {np.std(logs):.2f}")


if __name__ == "__main__":
    main()
