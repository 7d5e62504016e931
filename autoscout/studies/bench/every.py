"""Executes all runs of a comparison in parallel on all cores. Every run is seeded, and an interrupted comparison can be
resumed.

With a folder, every finished run is a JSON line in `runs.jsonl`, and runs found there are not repeated. A line has a
fingerprint of the landscape, the settings and the strategy's code, so that comparisons can share a folder, and rivals
need not run again when AutoScout's strategy changes."""

import hashlib
import importlib.util
import multiprocessing
import os
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from functools import cache
from pathlib import Path

import msgspec
import numpy as np

from autoscout.running.worker.leash import die_with
from autoscout.search.earlier import Past
from autoscout.search.strategy import module_of
from autoscout.studies.bench.landscape import Landscape
from autoscout.studies.bench.run import BenchRun, BenchSettings, run
from autoscout.studies.bench.variants import variant

Progress = Callable[[int, int], None]  # called with (finished runs, all runs)


class _Line(msgspec.Struct):
    fingerprint: str
    run: BenchRun


Task = tuple[tuple[int, ...], str, int]  # (indices of landscapes to tune in sequence, strategy, seed)


def run_all(
    landscapes: Sequence[Landscape],
    strategies: Sequence[str],
    seeds: int,
    settings: BenchSettings,
    folder: Path | None = None,
    workers: int = 0,
    progress: Progress = lambda done, total: None,
) -> list[BenchRun]:
    """The runs of every strategy with every seed on every landscape, sorted by landscape, strategy and seed. With
    `settings.transfer`, a strategy tunes the landscapes in sequence, and gets its earlier measurements as past jobs."""
    chains = [tuple(range(len(landscapes)))] if settings.transfer else [(i,) for i in range(len(landscapes))]
    tasks: list[Task] = [(chain, name, seed) for seed in range(seeds) for chain in chains for name in strategies]
    prints = [fingerprint(landscape, settings, landscapes if settings.transfer else ()) for landscape in landscapes]
    marks = {(i, name): f"{mark}-{_code(name)}" for i, mark in enumerate(prints) for name in strategies}
    found = _read(folder)
    known = {(i, name, seed): found.get((marks[i, name], name, seed)) for chain, name, seed in tasks for i in chain}
    done = {key: result for key, result in known.items() if result is not None}
    left = [(c, name, seed) for c, name, seed in tasks if any((i, name, seed) not in done for i in c)]
    progress(len(tasks) - len(left), len(tasks))
    workers = workers or len(os.sched_getaffinity(0))
    for at, (task, runs) in enumerate(_in_parallel(landscapes, left, settings, workers), start=1):
        chain, name, seed = task
        for i, result in zip(chain, runs, strict=True):
            done[i, name, seed] = result
            _write(folder, _Line(marks[i, name], result))
        progress(len(tasks) - len(left) + at, len(tasks))
    return [done[i, name, seed] for i in range(len(landscapes)) for name in strategies for seed in range(seeds)]


def _in_parallel(landscapes: Sequence[Landscape], tasks: list[Task], settings: BenchSettings, workers: int):
    """Yields (task, its runs) as they finish. Processes are forked to share the memory of the landscapes."""
    if not tasks:
        return
    for landscape in landscapes:
        landscape.prepare()  # before forking, so that it happens once
    global _shared
    _shared = (landscapes, settings)
    with ProcessPoolExecutor(workers, multiprocessing.get_context("fork"), _begin, (os.getpid(),)) as pool:
        futures = {pool.submit(_chain, task): task for task in tasks}
        try:
            for future in as_completed(futures):
                yield futures[future], future.result()
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            raise


_shared: tuple[Sequence[Landscape], BenchSettings]


def _chain(task: Task) -> list[BenchRun]:
    landscapes, settings = _shared
    chain, name, seed = task
    runs: list[BenchRun] = []
    tuned: list[tuple[Landscape, list]] = []
    for i in chain:
        past = [
            Past(name=earlier.name, distance=distance(earlier, landscapes[i]), rows=rows) for earlier, rows in tuned
        ]
        result, reported = run(landscapes[i], name, seed, settings, past)
        runs.append(result)
        tuned.append((landscapes[i], reported))
    return runs


def distance(a: Landscape, b: Landscape) -> float:
    """Dissimilarity of two landscapes of a table, for `Past.distance`: the mean over the grouping columns of |log₂
    ratio| for numbers, and 1 for different names."""
    apart = []
    for name, value in a.group.items():
        other = b.group[name]
        if isinstance(value, bool | str) or isinstance(other, bool | str) or value <= 0 or other <= 0:
            apart.append(float(value != other))
        else:
            apart.append(abs(float(np.log2(value / other))))
    return float(np.mean(apart)) if apart else 1.0


def fingerprint(landscape: Landscape, settings: BenchSettings, others: Sequence[Landscape]) -> str:
    """A hash of everything that determines a run except the strategy and its seed."""
    digest = hashlib.sha256(msgspec.json.encode([settings, [other.name for other in others]]))
    for each in (landscape, *others):
        arrays = [each.space.feasible.codes, each.truth, *(a for a in (each.cost, each.broke) if a is not None)]
        for array in [*arrays, *each.simulators.values()]:
            digest.update(np.ascontiguousarray(array).tobytes())
        values = [[knob.name, knob.kind, knob.values] for knob in each.space.knobs]
        limits = [each.space.objective, each.space.capacities, _some_peaks(each)]
        digest.update(msgspec.json.encode([each.name, each.goal, list(each.simulators), values, limits]))
    return digest.hexdigest()[:16]


def _some_peaks(landscape: Landscape) -> list[list[float]]:
    """Returns the peak memory of a few rows that run, in GiB per rank. It is part of the fingerprint because strategies
    get these peaks, which depend on the memory model."""
    if landscape.peaks is None:
        return []
    ran = np.flatnonzero(~np.isnan(landscape.truth))
    feasible = landscape.space.feasible
    return [landscape.peaks(int(row), feasible.configuration(int(row))).tolist() for row in ran[:: len(ran) // 8 + 1]]


@cache
def _code(name: str) -> str:
    """A hash of the source code of a strategy and of the code that runs it."""
    here, root = Path(__file__).parent, Path(__file__).parents[2]
    paths = [here / f"{part}.py" for part in ("run", "landscape", "fidelity", "closing", "hints")]
    paths += [
        root / "tuning" / f"{part}.py" for part in ("anchors", "rounds", "confirm", "trial", "choice", "evidence")
    ]
    paths += [path for part in ("space", "search") for path in sorted((root / part).rglob("*.py"))]
    spec = importlib.util.find_spec(module_of(variant(name)[0]))
    paths += [Path(spec.origin)] if spec and spec.origin else []
    digest = hashlib.sha256()
    for path in paths:
        digest.update(path.read_bytes())
    return digest.hexdigest()[:8]


def _read(folder: Path | None) -> dict[tuple[str, str, int], BenchRun]:
    path = folder / "runs.jsonl" if folder else None
    if path is None or not path.exists():
        return {}
    found = {}
    for line in path.read_bytes().splitlines():
        try:
            entry = msgspec.json.decode(line, type=_Line)
        except msgspec.MsgspecError:
            continue  # an incomplete line of a killed process
        found[entry.fingerprint, entry.run.strategy, entry.run.seed] = entry.run
    return found


def _write(folder: Path | None, line: _Line) -> None:
    if folder is None:
        return
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "runs.jsonl").open("ab") as file:
        if file.tell() and not _ends_line(folder / "runs.jsonl"):
            file.write(b"\n")
        file.write(msgspec.json.encode(line) + b"\n")


def _ends_line(path: Path) -> bool:
    with path.open("rb") as file:
        file.seek(-1, os.SEEK_END)
        return file.read(1) == b"\n"


def _begin(parent: int) -> None:
    """Initializes a worker process: limits numeric libraries to one thread, because there is a process per core; leaves
    Ctrl-C to the parent; and ends when the parent ends, even if the parent is killed."""
    import signal

    from threadpoolctl import threadpool_limits

    die_with(parent)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threadpool_limits(1)
