"""Compares the serving simulator with public runs of vLLM, SGLang and TensorRT-LLM. Their pages are not included here.

    git clone https://github.com/gpustack/gpustack pages/gpustack
    git clone https://github.com/FreedomIntelligence/AccelMark pages/accelmark
    git clone -b v0.17.0 https://github.com/NVIDIA/TensorRT-LLM pages/trtllm
    PYTHONPATH=. .venv/bin/python -m tests.tools.published_serving pages [--held-out] [--rows] [--csv rows.csv]

Without --held-out: the rows on which constants may be chosen. Revisions: docs/lab/simulators-serving.md."""

import argparse
import csv
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from autoscout.simulate.serving.simulator import ServingSimulator
from autoscout.simulate.validation.serving_tables import columns_of_rows
from kb.records import Traffic
from tests.tools.published_serving_pages import Row, rows_of
from tui.text import table

Groups = dict[str, dict[str, list[tuple[float, float, float]]]]  # metric → group → (predicted, measured, deviation)
METRICS = ("ttft_mean_ms", "tpot_mean_ms", "output_tokens_per_s")
AT_ONCE = 1e5  # requests per second that represent sending all at once
# Pages state only mean lengths of ShareGPT requests in vLLM's benchmark, which drops prompts of more than 1,024 tokens.
# Assumed: exponential lengths, truncated at 1,024.
_QUANTILES = -np.log1p(-np.linspace(0.005, 0.995, 41))
LONGEST = 1024


def lengths(mean: float, alike: bool, more: int = 0) -> int | list[int]:
    """Request lengths with this mean; equal if `alike`. `more`: additional tokens, not in the mean."""
    if alike:
        return max(round(mean), 1) + more
    cut = np.minimum(_QUANTILES * mean, LONGEST)
    return [max(round(value), 1) + more for value in cut * mean / cut.mean()]


def predicted(row: Row) -> dict[str, tuple[float, float]]:
    """Our metric → (prediction, its log standard deviation), for the metrics on the page."""
    columns, _ = columns_of_rows([{**row, "requests": 1}])
    columns |= {name: np.array([float(row[name])]) for name in ("front_end_ms", "request_ms") if name in row}
    traffic = Traffic(
        rate=0.0 if row["concurrency"] else AT_ONCE,
        concurrency=row["concurrency"],
        input_len=lengths(row["input_len"], row["random"], row.get("template", 0)),
        shared_prefix=row.get("shared_prefix", 0),
        output_len=lengths(row["output_len"], row["random"]),
        requests=row["requests"],
    )
    return of_serving({**columns, "traffic": traffic}, [metric for metric in METRICS if metric in row])


def kind(row: Row) -> str:
    precision = row["quantization"] if row["quantization"] != "none" else "16 bit"
    mixture = row["model"].lower().startswith(("mixtral", "gpt-oss", "qwen3-235b", "glm", "deepseek"))
    return f"{row['framework']} {chip(row)} {precision} {'experts' if mixture else 'dense'}"


def chip(row: Row) -> str:
    return str(row["gpu"]).replace("NVIDIA ", "").replace("GeForce ", "").split()[-1 if "RTX" in str(row["gpu"]) else 0]


def line(name: str, found: list[tuple[float, float, float]]) -> list[str]:
    """A line of a report. `found`: (predicted, measured, log standard deviation) of each row."""
    value, measured, error = np.array(found).T
    known = np.isfinite(value) & (value > 0)
    if not known.any():
        return [name, str(len(value)), "", "", "", "0"]
    off = np.log(value[known] / measured[known])
    cells = [
        100 * np.abs(np.expm1(off)).mean(),
        100 * np.median(np.abs(np.expm1(off))),
        100 * np.expm1(off.mean()),
        100 * (np.abs(off) < 1.645 * error[known]).mean(),
    ]
    return [name, str(int(known.sum())), *(f"{cell:.0f}" for cell in cells)]


def show(groups: Groups, reasons: Counter[str]) -> None:
    """Prints a table of each metric by group, and the number of excluded rows by reason."""
    for metric, by_name in groups.items():
        header = ["", "rows", "MAPE %", "median %", "bias %", "in 90 %"]
        print(f"\n{metric}\n{table([line(name, by_name[name]) for name in sorted(by_name)], header)}")
    if reasons:
        print("\nNot expressed:\n" + "\n".join(f"{count:4} {why}" for why, count in reasons.most_common()))


def of_serving(columns: Mapping[str, Any], metrics: Iterable[str]) -> dict[str, tuple[float, float]]:
    """Metric → (prediction for one row's columns, its log standard deviation)."""
    told = {metric: ServingSimulator(metric).predict(columns) for metric in metrics}
    return {metric: (float(each.value[0]), float(each.error[0])) for metric, each in told.items()}


def compare(
    rows: Iterable[Row],
    predicted: Callable[[Row], dict[str, tuple[float, float]]],
    names: Callable[[Row], Iterable[str]],
    label: Callable[[Row], str] | None,
    reasons: Counter[str] | None = None,
) -> None:
    """Prints each metric's errors by a row's groups (`names`). `label`: a row's name, for printing all rows; None: rows
    are not printed. `reasons`: why runs were excluded."""
    groups: Groups = {}
    for row in rows:
        found = predicted(row)
        for metric, (value, error) in found.items():
            for name in names(row):
                groups.setdefault(metric, {}).setdefault(name, []).append((value, row[metric], error))
        if label:
            off = (f"{m} {row[m]:.4g} {value:.4g} {value / row[m] - 1:+.2f}" for m, (value, _) in found.items())
            print(label(row), *off, flush=True)
    show(groups, reasons or Counter())


def asked(about: str, held_out: bool = False) -> argparse.Namespace:
    """The arguments of such a tool: `pages`, `rows` and possibly `held_out`."""
    parser = argparse.ArgumentParser(description=about)
    parser.add_argument("pages", type=Path, help="the page, or a folder with clones of the pages' repositories")
    parser.add_argument("--rows", action="store_true", help="prints each row, too")
    if held_out:
        parser.add_argument("--held-out", action="store_true", help="the rows that no constant was chosen by")
    return parser.parse_args()


def main() -> None:
    parser = argparse.ArgumentParser(description="How far the serving simulator is from published runs.")
    parser.add_argument("folder", type=Path, help="with clones of the pages' repositories")
    parser.add_argument("--held-out", action="store_true", help="the rows that no constant was chosen by")
    parser.add_argument("--rows", action="store_true", help="prints each row, too")
    parser.add_argument("--source", default="", help="gpustack, trtllm or accelmark")
    parser.add_argument("--csv", type=Path, help="writes all rows there")
    options = parser.parse_args()
    rows, reasons = rows_of(options.folder)
    if options.csv:
        with options.csv.open("w", newline="") as file:
            writer = csv.DictWriter(file, sorted({name for row in rows for name in row}))
            writer.writeheader()
            writer.writerows(rows)
    rows = [r for r in rows if r["held_out"] == options.held_out and r["source"].startswith(options.source)]
    compare(rows, predicted, _names, _label if options.rows else None, reasons)


def _names(row: Row) -> tuple[str, str]:
    return f"all {row['framework']}", f"{row['source']} {kind(row)}"


def _label(row: Row) -> str:
    load = f"{row['input_len']:.0f}/{row['output_len']:.0f} c{row['concurrency']}"
    return f"{row['page']} {row['framework']} {row['quantization']} tp{row.get('tp', 1):.0f} {load}"


if __name__ == "__main__":
    main()
