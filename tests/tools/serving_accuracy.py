"""How far the serving simulator is from measured runs, without having seen one: by source, framework, model and tp.

    PYTHONPATH=. .venv/bin/python tests/tools/serving_accuracy.py ../shared/data/validation/serve_end_to_end.csv.gz
        [--framework vLLM] [--gpu a100] [--rows]
    PYTHONPATH=. .venv/bin/python tests/tools/serving_accuracy.py --fluid

Prints MAPE |predicted / measured - 1|, bias, the standard deviation of log(measured / predicted), the share of rows
within the stated 90 % interval, and the same with its spread estimated from the other models' rows only. --fluid: how
far the fluid is from the event simulation, over random configurations and loads.
"""

import argparse
from collections.abc import Mapping
from typing import Any

import duckdb
import numpy as np

from autoscout.simulate.serving.fluid import fluid
from autoscout.simulate.serving.serving_device import device
from autoscout.simulate.serving.setup import setup
from autoscout.simulate.serving.simulator import ServingSimulator, columns_at, exactly, fluid_error
from autoscout.simulate.validation.serving_tables import columns_of_rows
from tui.text import table

_90 = 1.645


def read(path: str) -> list[dict[str, Any]]:
    found = duckdb.sql(f"SELECT * FROM read_csv('{path}', sample_size=-1)")
    return [dict(zip(found.columns, row, strict=True)) for row in found.fetchall()]


def quickly(columns: Mapping[str, Any], metric: str) -> np.ndarray:
    """What the fluid says, where the member would simulate events."""
    n = len(columns["row"])
    values = np.full(n, np.nan)
    for kind in np.unique(columns["gpu"]):
        rows = np.flatnonzero(columns["gpu"] == kind)
        found = fluid(setup(columns_at(columns, rows, n), device(str(kind)), len(rows)))
        values[rows] = found.get(metric, np.nan)
    return values


def held_out_coverage(log_error: np.ndarray, group: np.ndarray) -> float:
    """Share of rows within 1.645 standard deviations, taken about 0 over the other groups' rows."""
    inside = np.zeros(len(log_error), dtype=bool)
    for name in np.unique(group):
        others = log_error[group != name]
        if len(others):
            inside[group == name] = np.abs(log_error[group == name]) <= _90 * np.sqrt(np.mean(others**2))
    return float(inside.mean())


def line(name: str, predicted: np.ndarray, measured: np.ndarray, error: np.ndarray, group: np.ndarray) -> list[str]:
    """One row of a report; what the member did not predict is left out."""
    known = np.isfinite(predicted) & np.isfinite(measured) & (predicted > 0)
    if not known.any():
        return [name, "0", "", "", "", "", ""]
    log_error = np.log(measured[known] / predicted[known])
    mape = np.mean(np.abs(predicted[known] / measured[known] - 1))
    inside = np.mean(np.abs(log_error) <= _90 * error[known])
    several = len(np.unique(group[known])) > 1
    return [
        name,
        str(int(known.sum())),
        f"{100 * mape:.1f}",
        f"{100 * np.expm1(-log_error.mean()):+.1f}",
        f"{log_error.std():.3f}",
        f"{100 * inside:.0f}",
        f"{100 * held_out_coverage(log_error, group[known]):.0f}" if several else "",
    ]


def fluid_against_events() -> None:
    """Llama-3-8B on A100-80GB; 400 requests each; fixed batches, closed and open loops up to 95 % of the capacity, and
    closed ones whose requests are all alike."""
    llama = {"layers": 32, "hidden": 4096, "heads": 32, "kv_heads": 8, "head_dim": 128, "ffn": 14336, "vocab": 128256}
    n, rng, a100 = 150, np.random.default_rng(5), device("a100")
    columns: dict[str, Any] = {
        **llama,
        "tp": rng.choice([1.0, 2.0, 4.0], n),
        "input_len": rng.integers(50, 3000, n).astype(float),
        "output_len": rng.integers(20, 600, n).astype(float),
        "max_num_seqs": rng.choice([16.0, 64.0, 256.0], n),
        "max_num_batched_tokens": rng.choice([512.0, 2048.0, 8192.0], n),
        "requests": np.full(n, 400.0),
    }
    users = rng.choice([1.0, 4.0, 16.0, 64.0, 256.0], n)
    full = fluid(setup({**columns, "concurrency": np.full(n, 256.0)}, a100, n))["requests_per_s"]
    rate = full * rng.choice([0.2, 0.5, 0.8, 0.95], n)
    alike = {"concurrency": users, "length_spread": np.zeros(n)}
    loads = {"batch": {"batch": users}, "concurrency": {"concurrency": users}, "alike": alike, "rate": {"rate": rate}}
    lines: dict[str, list[str]] = {}
    for load in loads.values():
        s = setup({**columns, **load}, a100, n)
        quick, events = fluid(s), [exactly({**columns, **load}, s, i) for i in range(n)]
        for metric in (
            "output_tokens_per_s",
            *(f"{m}_{q}_ms" for m in ("ttft", "tpot", "itl", "e2el") for q in ("mean", "p99")),
        ):
            off = np.log(quick[metric] / np.array([found.get(metric, np.nan) for found in events]))
            off = off[np.isfinite(off)]
            cells = [f"{100 * np.median(np.abs(off)):.1f}", f"{100 * np.quantile(np.abs(off), 0.9):.0f}"]
            lines.setdefault(metric, [metric, f"{fluid_error(metric):.2f}"]).extend(cells)
    header = ["", "stated log-sd", *(f"{kind}: {what}" for kind in loads for what in ("median %", "p90 %"))]
    print(table(list(lines.values()), header))


def main() -> None:
    arguments = argparse.ArgumentParser()
    arguments.add_argument("table", nargs="?")
    arguments.add_argument("--fluid", action="store_true")
    arguments.add_argument("--framework", default="")
    arguments.add_argument("--gpu", default="")
    arguments.add_argument("--rows", action="store_true")
    given = arguments.parse_args()
    if given.fluid:
        fluid_against_events()
        return
    if not given.table:
        arguments.error("give a table, or --fluid")
    columns, measured = columns_of_rows(read(given.table))
    n = len(columns["row"])
    chosen = (
        (columns["why_not"] == "")
        & np.char.startswith(columns["framework"], given.framework)
        & np.char.startswith(columns["gpu"], given.gpu)
    )
    columns = columns_at(columns, np.flatnonzero(chosen), n)
    header = ["", "rows", "MAPE %", "bias %", "log-sd", "in 90 %", "held out"]
    models = columns["model"]
    for metric, values in measured.items():
        values = values[chosen]
        if not np.isfinite(values).any():
            continue
        prediction = ServingSimulator(metric).predict(columns)
        events, error = prediction.value, prediction.error
        quick = np.where(np.isfinite(events), quickly(columns, metric), np.nan)
        wide = np.hypot(error, fluid_error(metric))
        lines = [line("all, events", events, values, error, models), line("all, fluid", quick, values, wide, models)]
        one = columns["batch"] == 1
        lines.append(line("batch 1", events[one], values[one], error[one], models[one]))
        for keys in (("framework", "gpu"), ("framework", "gpu", "model"), ("framework", "gpu", "tp")):
            label = np.array([" ".join(str(columns[k][i]) for k in keys) for i in range(len(values))])
            for name in np.unique(label[np.isfinite(values)]):
                s = label == name
                lines.append(line(name, events[s], values[s], error[s], models[s]))
        print(f"\n{metric}\n{table(lines, header)}")
        if given.rows:
            for i in np.argsort(np.abs(np.log(events / values)))[::-1]:
                names = ("model", "gpu", "tp", "pp", "input_len", "output_len", "batch", "kv_cache_dtype")
                print(
                    *(columns[k][i] for k in names), f"{values[i]:.4g} {events[i]:.4g} {events[i] / values[i] - 1:+.3f}"
                )


if __name__ == "__main__":
    main()
