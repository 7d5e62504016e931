"""Kernel Tuner's hybrid variable neighbourhood descent, an algorithm that a language model wrote (Willemsen, van Stein
and van Werkhoven 2026): neighbours, a crossover of its elite and random ones, of which those are tried that measured
ones near them speak for, accepted as in annealing. Its own code (1.5) and defaults, without a bound on evaluations.

Kernel Tuner's strategies are loops (`tune` of kernel_tuner/strategies). Here they run to the end of the space, from a
random start; what stands in for its runner answers them, from the record for nothing, as its own does. The space is
handed over as its list of valid configurations: knobs that vary only, values by their index, an inactive knob at a
value below them. A failed run is an error to them, which they cost at the largest float.
"""

import importlib
from collections.abc import Mapping, Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np

from autoscout.search.sequential import Pool, Search, rival
from autoscout.studies.rivals.inside_out import Measure, inside_out

_THREADS = 1 << 30  # a limit on products of block sizes, which are no knobs to us


def kernel_tuner_vndx(pool: Pool, rng: np.random.Generator) -> Search:
    return by_kernel_tuner(pool, rng, "gen_hybrid_vndx", {"budget": 10**9})


def by_kernel_tuner(
    pool: Pool,
    rng: np.random.Generator,
    module: str,
    options: Mapping[str, Any] | None = None,
    rows: np.ndarray | None = None,
    failed: float | None = None,
) -> Search:
    """A strategy's loop over `rows` of the pool (None: all), begun anew when it ends before them. `failed`: what a
    failed run costs; None: an error."""
    tune = importlib.import_module(f"kernel_tuner.strategies.{module}").tune
    rows = np.arange(len(pool)) if rows is None else rows
    while pool.open[rows].any():
        before = int(pool.open.sum())
        yield from inside_out(_Loop(pool, rows, tune, options or {}, failed), int(rng.integers(2**31)))
        if pool.open.sum() == before:  # it asked nothing new
            yield int(rng.choice(np.flatnonzero(pool.open)))


class _Loop:
    """One run of a strategy's `tune`, with what stands in for Kernel Tuner's runner."""

    dev = SimpleNamespace(max_threads=_THREADS)

    def __init__(self, pool: Pool, rows: np.ndarray, tune: Any, options: Mapping[str, Any], failed: float | None):
        self.pool, self.rows, self.tune, self.options, self.failed = pool, rows, tune, options, failed
        self.seen: set[int] = set()

    def __call__(self, measure: Measure) -> None:
        from kernel_tuner.interface import Options  # type: ignore[import-not-found]
        from kernel_tuner.util import TuningBudget  # type: ignore[import-not-found]

        self.measure, space = measure, _space(self.pool, self.rows)
        self.row_of = dict(zip(space.list, self.rows.tolist(), strict=True))
        most = len(self.rows)
        settings = Options(
            objective=["cost"],
            objective_higher_is_better=[False],
            strategy_options=Options(self.options, max_fevals=most),
            tune_params=space.tune_params,
            budget=TuningBudget(max_fevals=most),
            verbose=False,
        )
        self.tune(space, self, settings)

    def add_strategy_time(self, seconds: float) -> None:
        """Of a runner; Kernel Tuner keeps account of its own time."""

    def run(self, configurations: Sequence[Sequence[int]], settings: Any) -> list[dict[str, Any]]:
        """Of a runner: one result each."""
        return [self._result(self.row_of[tuple(each)], settings) for each in configurations]

    def _result(self, row: int, settings: Any) -> dict[str, Any]:
        from kernel_tuner.util import RuntimeFailedConfig  # type: ignore[import-not-found]

        cost = self.measure(row)
        if row not in self.seen:
            self.seen.add(row)
            settings.budget.add_evaluations(1)
        if cost is None:
            return {"__error__": RuntimeFailedConfig()} if self.failed is None else {"cost": self.failed}
        return {"cost": cost}


def _space(pool: Pool, rows: np.ndarray) -> Any:
    """Its Searchspace, in the order of the rows."""
    from kernel_tuner.searchspace import Searchspace  # type: ignore[import-not-found]

    codes = pool.codes[rows]
    acting = [j for j in range(codes.shape[1]) if len(np.unique(codes[:, j])) > 1] or [0]
    names = [pool.space.knobs[j].name for j in acting]
    values = {name: np.unique(codes[:, j]).tolist() for name, j in zip(names, acting, strict=True)}
    listed = {i: dict(zip(names, row, strict=True)) for i, row in enumerate(codes[:, acting].tolist())}
    return Searchspace(None, None, None, from_cache={"tune_params": values, "cache": listed})


HOW = "make rivals makes an environment that has it"
STRATEGY = rival("kernel-tuner-vndx", kernel_tuner_vndx, packages=("kernel_tuner",), how=HOW)
