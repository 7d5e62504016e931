"""Coverage of the interval of `predict --usd --today`: published steps of one cluster predict those of others.

    PYTHONPATH=. python tests/tools/tomorrow_coverage.py ../shared/data/validation/train_end_to_end.csv.gz

A source's rows of one model on a number of one device are "today"; the simulator, corrected by them, predicts the
source's other rows. 90 % of the intervals should contain their measurements."""

import sys
from pathlib import Path

import numpy as np
from autoscout_stack.tomorrow import elsewhere

from autoscout.simulate.encode import take
from autoscout.simulate.learned.stack import Ensemble
from autoscout.simulate.learned.weighing import SPAN
from autoscout.simulate.members import analytic
from autoscout.simulate.validation.measured import MeasuredRows, read

METRICS = ("step_time_s", "e2el_p50_ms", "e2el_mean_ms")
KINDS = ("more or fewer of the same device", "another device", "another model", "both another")


def pairs(rows: MeasuredRows) -> dict[str, list[tuple[float, float]]]:
    """(log(measured / predicted), stated error) of each row, by the kind of the predicted cluster."""
    of = {name: np.asarray(rows.groups[name]) for name in ("source", "gpu", "model")}
    gpus = np.broadcast_to(np.asarray(rows.columns["gpus"], dtype=float), len(rows.values))
    here = np.array(
        [f"{s}|{g}|{m}|{n:g}" for s, g, m, n in zip(of["source"], of["gpu"], of["model"], gpus, strict=True)]
    )
    found: dict[str, list[tuple[float, float]]] = {kind: [] for kind in KINDS}
    for today in np.unique(here):
        known = here == today
        asked = ~known & (of["source"] == of["source"][known][0])
        if not asked.any():
            continue
        ensemble = Ensemble(analytic(rows.metric, rows.task))
        ensemble.fit(take(rows.columns, known), rows.values[known], here[known])
        said = elsewhere(ensemble, analytic(rows.metric, rows.task)[0], take(rows.columns, asked))
        with np.errstate(divide="ignore"):
            miss = np.log(rows.values[asked] / said.value)
        device = of["gpu"][asked] != of["gpu"][known][0]
        model = of["model"][asked] != of["model"][known][0]
        for kind, z, error in zip(2 * model + device, miss, said.error, strict=True):
            if np.isfinite(z):
                found[KINDS[kind]].append((float(z), float(error)))
    return found


def main() -> None:
    print("| table | metric | asked about | pairs | off by, median | error said, median | inside the 90 % interval |")
    print("|---|---|---|---|---|---|---|")
    for path in sys.argv[1:]:
        for rows in (some for some in read(Path(path)).sets if some.metric in METRICS):
            for kind, both in pairs(rows).items():
                if both:
                    miss, error = np.array(both).T
                    inside = np.mean(np.abs(miss) <= SPAN * error)
                    off = np.median(np.expm1(np.abs(miss)))
                    name = Path(path).name.split(".")[0]
                    said = f"{len(miss)} | {off:.0%} | {np.median(error):.2f} | {inside:.0%}"
                    print(f"| {name} | {rows.metric} | {kind} | {said} |", flush=True)


if __name__ == "__main__":
    main()
