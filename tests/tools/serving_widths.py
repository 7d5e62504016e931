"""Coverage of the serving simulator's 90 % intervals by source, over all public runs that these tools read.

    PYTHONPATH=. .venv/bin/python -m tests.tools.serving_widths pages [--mlperf told.json …]

`pages`: the clones for published_serving.py, …_later, …_rates, …_cookbook, …_dstack and …_ionet, and nim.csv
(published_closed_loops.py), overview-1.0.md and -1.2.md (…_overview) and rocm*.md (…_rocm); missing ones are skipped.
`told.json`: what published_serving_mlperf.py saved.

Errors within a source (a publisher's rows of one kind of engine) are correlated, so each source counts once. Also
printed: the factor on the stated errors with which the engine's other sources have a mean coverage of 90 %, and this
source's coverage with it."""

import argparse
import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from tests.tools import (
    published_closed_loops,
    published_serving,
    published_serving_cookbook,
    published_serving_dstack,
    published_serving_ionet,
    published_serving_later,
    published_serving_overview,
    published_serving_rates,
    published_serving_rocm,
)
from tui.text import table

_INTERVAL = 1.645
_FACTORS = np.exp(np.linspace(-1.5, 1.5, 121))
_METRICS = {"ttft": "TTFT", "tpot": "TPOT", "output": "tokens/s", "e2el": "TPOT"}


class Off(NamedTuple):
    """A figure of a source. `off`: log(predicted / measured) / stated error."""

    metric: str
    engine: str
    source: str
    off: float


def told(folder: Path) -> Iterator[tuple[str, dict[str, Any], dict[str, tuple[float, float]]]]:
    """(source, row, predictions) of all available runs."""
    for row in published_serving.rows_of(folder)[0]:
        yield row["source"], row, published_serving.predicted(row)
    for row in published_serving_later.typed():
        yield row["page"], row, published_serving_later.predicted(row)
    for part in ("verified", "community"):
        for row in published_serving_later.of_suite(folder / "accelmark/results" / part):
            yield "accelmark", row, published_serving_later.predicted(row)
    for row in published_serving_rates.rows_of(folder / "accelmark/results"):
        yield "accelmark's rates", row, published_serving_rates.predicted(row)
    for row in published_serving_cookbook.rows_of(folder / "cookbook")[0]:
        yield "cookbook", row, published_serving_cookbook.predicted(row)
    if (folder / "dstack").exists():
        for row in published_serving_dstack.rows_of(folder / "dstack"):
            yield "dstack", row, published_serving_dstack.predicted(row)
    for row in published_serving_ionet.rows_of(folder / "ionet"):
        yield "io.net", row, published_serving_ionet.predicted(row)
    for path in sorted(folder.glob("overview-*.md")):
        for row in published_serving_overview.rows_of(path):
            yield path.stem, row, published_serving.predicted(row)
    for path in sorted(folder.glob("rocm*.md")):
        for row in published_serving_rocm.rows_of(path):
            yield path.stem, row, published_serving_rocm.predicted(row)
    if (folder / "nim.csv").exists():
        for row in published_closed_loops.rows_of(folder / "nim.csv"):
            yield "NIM of 2024", row, published_closed_loops.predicted(row)


def engine_of(gpu: str, framework: str) -> str:
    return "AMD" if gpu.lower().startswith("mi3") else framework


def figures(folder: Path, saved: Sequence[Path]) -> Iterator[Off]:
    for source, row, found in told(folder):
        for metric, (value, error) in found.items():
            kind = _METRICS.get(metric.split("_")[0])
            if kind and value > 0 and np.isfinite(value):
                yield Off(kind, engine_of(row["gpu"], row["framework"]), source, np.log(value / row[metric]) / error)
    for path in saved:
        for page, _, scenario, metric, measured, value, error in json.loads(path.read_text(encoding="utf-8")):
            kind = _METRICS.get(metric.split("_")[0])
            if kind and (kind != "tokens/s" or scenario == "Offline") and value > 0 and np.isfinite(value):
                engine = "AMD" if "MI3" in page else "vLLM" if "RedHat" in page else "TensorRT-LLM"
                yield Off(kind, engine, f"MLPerf {page.split()[0]}", np.log(value / measured) / error)


def held(offs: Sequence[float], factor: float = 1.0) -> float:
    return float((np.abs(offs) < _INTERVAL * factor).mean())


def wanted(others: Sequence[Sequence[float]]) -> float:
    """The factor with which the mean coverage of the others is 90 %."""
    shares = [abs(np.mean([held(offs, factor) for offs in others]) - 0.9) for factor in _FACTORS]
    return float(_FACTORS[int(np.argmin(shares))])


def main() -> None:
    parser = argparse.ArgumentParser(description="What the serving simulator's 90 % intervals hold, by source.")
    parser.add_argument("folder", type=Path)
    parser.add_argument("--mlperf", type=Path, nargs="*", default=[])
    options = parser.parse_args()
    by_source: dict[tuple[str, str], dict[str, list[float]]] = {}
    for one in figures(options.folder, options.mlperf):
        by_source.setdefault((one.metric, one.engine), {}).setdefault(one.source, []).append(one.off)
    lines = list[list[str]]()
    for (metric, engine), sources in sorted(by_source.items()):
        for source, offs in sorted(sources.items()):
            others = [values for name, values in sources.items() if name != source]
            factor = wanted(others) if others else 1.0
            cells = f"{100 * held(offs):.0f}", f"{factor:.2f}", f"{100 * held(offs, factor):.0f}"
            lines.append([metric, engine, source, str(len(offs)), *cells])
        mean = 100 * np.mean([held(offs) for offs in sources.values()])
        lines.append(
            [metric, engine, f"mean of {len(sources)}", "", f"{mean:.0f}", f"{wanted([*sources.values()]):.2f}", ""]
        )
    print(table(lines, ["", "", "", "rows", "in 90 %", "others want", "hold"]))


if __name__ == "__main__":
    main()
