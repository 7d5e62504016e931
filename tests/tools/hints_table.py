"""Gain and cost of hints: experiments until one within 1 % of the best, relative to a search without, by kind of hint.

    PYTHONPATH=. python tests/tools/hints_table.py [--tables ../shared/data/landscapes] [--of serving,dense16] \
        [--draws 0,2] [--seeds 0-7] [--kinds good,random,worst,failing] [--keep FILE] [STRATEGY]

Landscapes are measured tables (`--tables`) and draws of search_generated.py, of which even ones are for choosing and
odd ones are held out; seeds below 1000 are for choosing. Kinds are those of autoscout/studies/bench/hints.py.
Measurements have 2 % noise; a run that does not reach the target in 200 experiments counts as 201. Columns: experiments
of a search without hints until one within 1 %, and those with hints relative to it (ratios of means); the same for 5 %.
Last lines: the geometric mean of these ratios over the landscapes, with a 95 % interval from resampled seeds within
landscapes, and the ratio of sums. `--keep` adds finished runs to a file and does not repeat them."""

import argparse
import json
import warnings
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import search_generated

from autoscout.space.graph import Space
from autoscout.studies.bench.hints import KINDS
from autoscout.studies.bench.landscape import Landscape
from autoscout.studies.bench.run import BenchSettings, run
from autoscout.studies.bench.table_landscape import TableSource, landscapes_of_table

_SETTINGS = BenchSettings(noise=0.02, whole=False)
_TABLES = {  # file → metric, goal, status column, groups
    "kt_convolution_milo_A100": ("time_ms", "min", "status", []),
    "kt_gemm_RTX_3060_laptop": ("time_ms", "min", "status", []),
    "moot_SS-J": ("Throughput+", "max", None, []),
    "moot_PostgreSQL": ("Performance-", "min", None, []),
    "vtrain_a100_single_node": ("s_per_sample", "min", None, ["layers", "hidden", "n_gpus"]),
}
_LEAST = 40  # smallest landscape: in a smaller one, hints would be a large share of it


def tables(folder: Path, names: list[str]) -> Iterator[Landscape]:
    for name in names:
        metric, goal, status, groups = _TABLES[name]
        path = folder / f"{name}.csv.gz"
        knobs = ["global_batch", "micro_batch", "tp", "pp", "dp"] if groups else None
        source = TableSource(path=path, metric=metric, goal=goal, status=status, group_by=groups, knobs=knobs)
        yield from (land for land in landscapes_of_table(source)[0] if len(land.truth) >= _LEAST)


def sliced(land: Landscape, rows: int, number: int) -> Landscape:
    """The part of a landscape in which some knobs have a fixed value, so that at most `rows` configurations are left
    and the other knobs keep all values; without simulators."""
    feasible, rng = land.space.feasible, np.random.default_rng((number, 17))
    kept = np.arange(len(land.truth))
    for column in rng.permutation(feasible.codes.shape[1]):
        if len(kept) <= rows:
            break
        values, counts = np.unique(feasible.codes[kept, column], return_counts=True)
        if len(values) > 1:
            kept = kept[feasible.codes[kept, column] == rng.choice(values, p=counts / counts.sum())]
    codes = feasible.codes[kept]
    space = Space(land.space.knobs, [], {}, objective=land.space.objective, measured=codes)
    here = np.empty(len(kept), dtype=int)
    here[np.lexsort(space.feasible.codes.T)] = kept[np.lexsort(codes.T)]
    return Landscape(
        name=land.name,
        space=space,
        metric=land.metric,
        goal=land.goal,
        truth=land.truth[here],
        status=land.status[here],
    )


def spent(land: Landscape, strategy: str, seed: int) -> list[int]:
    """[experiments until one within 1 %, until one within 5 %]."""
    found, none = run(land, strategy, seed, _SETTINGS)[0], _SETTINGS.budget + 1
    return [found.evaluations_to_target or none, found.evaluations_to_5pct or none]


def ratio(cells: list[tuple[np.ndarray, np.ndarray]]) -> tuple[float, float, float]:
    """(geometric mean over landscapes of hinted ÷ cold, its 95 % interval) of (hinted, cold) per landscape."""
    rng, draws = np.random.default_rng(0), []
    for hinted, cold in cells:
        # searches of a seed share their noise, so seeds are resampled
        seeds = rng.integers(0, len(cold), (4000, len(cold)))
        draws.append(np.log(hinted[seeds].mean(axis=1) / cold[seeds].mean(axis=1)))
    low, high = np.exp(np.percentile(np.mean(draws, axis=0), [2.5, 97.5]))
    return float(np.exp(np.mean([np.log(h.mean() / c.mean()) for h, c in cells]))), float(low), float(high)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("strategy", nargs="?", default="autoscout")
    parser.add_argument("--tables", type=Path)
    parser.add_argument("--only", default=",".join(_TABLES))
    parser.add_argument("--of", default="")
    parser.add_argument("--draws", default="0,2")
    parser.add_argument("--seeds", default="0-7")
    parser.add_argument("--rows", type=int, default=3_000, help="of a draw, most")
    parser.add_argument("--kinds", default=",".join(KINDS))
    parser.add_argument("--keep", type=Path)
    given = parser.parse_args()
    warnings.simplefilter("ignore")
    first, last = map(int, given.seeds.split("-"))
    seeds, kinds = range(first, last + 1), given.kinds.split(",")
    done = {tuple(k): n for k, n in map(json.loads, given.keep.read_text().splitlines())} if _has(given.keep) else {}
    found: dict[str, dict[str, np.ndarray]] = {}
    for land in _landscapes(given):
        of = found.setdefault(land.name, {})
        for kind in ["", *kinds]:
            counts = []
            for seed in seeds:
                name = f"{given.strategy}@{kind}" if kind else given.strategy
                key = (land.name, name, seed)
                if key not in done:
                    done[key] = spent(land, name, seed)
                    if given.keep:
                        with given.keep.open("a") as file:
                            file.write(json.dumps([key, done[key]]) + "\n")
                counts.append(done[key])
            of[kind] = np.array(counts, dtype=float)
        print(f"{land.name[:36]:36} {len(land.truth):7,}" + "".join(_shown(of, kinds, at) for at in (0, 1)), flush=True)
    print(f"{'':36} {'rows':>7}" + 2 * (f" {'cold':>6}" + "".join(f" {k:>7}" for k in kinds)))
    for at, share in ((0, "1 %"), (1, "5 %")):
        for kind in kinds:
            pairs = [(of[kind][:, at], of[""][:, at]) for of in found.values()]
            mean, low, high = ratio(pairs)
            whole = sum(hinted.sum() for hinted, _ in pairs) / sum(cold.sum() for _, cold in pairs)
            print(
                f"to {share}, {kind:8} {mean:.3f} [{low:.3f}–{high:.3f}] on {len(found)} landscapes, {whole:.3f} in sum"
            )


def _shown(of: dict[str, np.ndarray], kinds: list[str], at: int) -> str:
    cold = of[""][:, at].mean()
    return f" {cold:6.1f}" + "".join(f" {of[kind][:, at].mean() / cold:7.2f}" for kind in kinds)


def _has(path: Path | None) -> bool:
    return path is not None and path.exists()


def _landscapes(given: argparse.Namespace) -> Iterator[Landscape]:
    if given.tables:
        yield from tables(given.tables, given.only.split(","))
    for family in filter(None, given.of.split(",")):
        for number in map(int, given.draws.split(",")):
            land = search_generated.landscape(family, number)
            yield sliced(land, given.rows, number)


if __name__ == "__main__":
    main()
