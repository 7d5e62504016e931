"""The serving simulator's errors on measured runs that it was not fitted to, by source, framework, model and tp.

    PYTHONPATH=. .venv/bin/python tests/tools/serving_accuracy.py ../shared/data/validation/serve_end_to_end.csv.gz
        [--framework vLLM] [--gpu a100] [--rows]
    PYTHONPATH=. .venv/bin/python tests/tools/serving_accuracy.py --fluid

Prints MAPE |predicted / measured - 1|, bias, the standard deviation of log(measured / predicted), the share of rows
within the stated 90 % interval, and the same with an interval estimated from the other models' rows. --fluid:
deviations of the fluid model from the event simulation, over random configurations and loads, and of its highest
rates."""

import argparse
from collections.abc import Mapping
from typing import Any

import duckdb
import msgspec
import numpy as np

from autoscout.job.requests import of_traffic
from autoscout.simulate.serving.engine_shapes import columns_at
from autoscout.simulate.serving.fluid import fluid
from autoscout.simulate.serving.highest_rate import of_many, of_one
from autoscout.simulate.serving.latencies import metrics_of_run
from autoscout.simulate.serving.one_replica import engine_of, limits_of, open_run
from autoscout.simulate.serving.serving_device import device
from autoscout.simulate.serving.setup import setup
from autoscout.simulate.serving.simulator import ServingSimulator, exactly, fluid_error
from autoscout.simulate.validation.serving_tables import columns_of_rows
from kb.records import Traffic
from tui.text import table

_90 = 1.645
_DRAWS = 4


def read(path: str) -> list[dict[str, Any]]:
    found = duckdb.sql(f"SELECT * FROM read_csv('{path}', sample_size=-1)")
    return [dict(zip(found.columns, row, strict=True)) for row in found.fetchall()]


def quickly(columns: Mapping[str, Any], metric: str) -> np.ndarray:
    """The fluid model's predictions, even where the member would simulate events."""
    n = len(columns["row"])
    values = np.full(n, np.nan)
    for kind in np.unique(columns["gpu"]):
        rows = np.flatnonzero(columns["gpu"] == kind)
        found = fluid(setup(columns_at(columns, rows, n), device(str(kind)), len(rows)))
        values[rows] = found.get(metric, np.nan)
    return values


def held_out_coverage(log_error: np.ndarray, group: np.ndarray) -> float:
    """Share of rows within 1.645 root mean squares of the other groups' rows."""
    inside = np.zeros(len(log_error), dtype=bool)
    for name in np.unique(group):
        others = log_error[group != name]
        if len(others):
            inside[group == name] = np.abs(log_error[group == name]) <= _90 * np.sqrt(np.mean(others**2))
    return float(inside.mean())


def line(name: str, predicted: np.ndarray, measured: np.ndarray, error: np.ndarray, group: np.ndarray) -> list[str]:
    """A line of a report, without rows that the member did not predict."""
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


def _both(columns: dict[str, Any]) -> tuple[dict[str, np.ndarray], list[dict[str, float]]]:
    """(predictions of the fluid model, of the event simulation) for configurations on A100-80GB."""
    n = len(columns["tp"])
    s = setup(columns, device("a100"), n)
    return fluid(s), [exactly(columns, s, i) for i in range(n)]


def _spread(columns: dict[str, Any], load: dict[str, Any]) -> tuple[dict[str, np.ndarray], list[dict[str, float]]]:
    """Like `_both`, for loads as in production, with rare long prompts and frequent short answers: open loads at 30 to
    95 % of the capacity (means of several draws), or closed ones."""
    kinds = (
        {"input_len": [100, 500, 3000], "output_len": [10, 150, 600]},
        {"input_len": [2, 400, 1000, 1300, 14000], "output_len": [7, 100, 180, 400, 1000]},
        {"input_len": [500, 2000, 8000], "output_len": [5, 20, 100]},
    )
    quick: dict[str, list[float]] = {}
    events: list[dict[str, float]] = []
    for i, tp in enumerate(columns["tp"].tolist()):
        own = {name: v[i : i + 1] if isinstance(v, np.ndarray) else v for name, v in columns.items()}
        traffic = Traffic(**kinds[i % 3], **load, requests=400)
        own |= {"traffic": traffic, "tp": np.array([tp])}
        if traffic.rate:
            most = 1 / fluid(setup(own, device("a100"), 1))["load"][0]
            own["traffic"] = msgspec.structs.replace(traffic, rate=float(most) * (0.3, 0.5, 0.7, 0.85, 0.95)[i % 5])
        else:
            own["traffic"] = msgspec.structs.replace(traffic, concurrency=(4, 32, 64, 200)[i % 4])
        said, simulated = _both(own)
        events += [_of_draws(own)] if traffic.rate else simulated
        for name, values in said.items():
            quick.setdefault(name, []).append(float(values[0]))
    return {name: np.array(values) for name, values in quick.items()}, events


def _of_draws(own: dict[str, Any]) -> dict[str, float]:
    """Means of several event simulations of an open load, because TTFT varies threefold between draws near the
    capacity."""
    traffic, s = own["traffic"], setup(own, device("a100"), 1)
    front_end = float(s.front_end_s[0]), float(s.request_s[0])
    each = [
        metrics_of_run(open_run(engine_of(s, 0), limits_of(s, 0), of_traffic(traffic, seed), *front_end))
        for seed in range(_DRAWS)
    ]
    return {name: float(np.mean([found[name] for found in each])) for name in each[0]}


LLAMA = {"layers": 32, "hidden": 4096, "heads": 32, "kv_heads": 8, "head_dim": 128, "ffn": 14336, "vocab": 128256}


def highest_rates() -> None:
    """Compares the highest rates within limits of the fluid model and of event simulation, for 12 configurations of
    Llama-3-8B."""
    loads = (
        (Traffic(rate=1.0, input_len=1000, output_len=200), {"tpot_p99_ms": 30.0}),
        (Traffic(rate=1.0, input_len=[100, 200, 4000], output_len=[10, 100, 800]), {"ttft_p99_ms": 1000.0}),
        (Traffic(rate=1.0, input_len=[100, 900, 2000], output_len=[10, 200, 500]), {"e2el_p95_ms": 15000.0}),
        (Traffic(rate=1.0, input_len=[500, 2000, 8000], output_len=[5, 20, 100]), {"ttft_p99_ms": 2000.0}),
        (Traffic(rate=1.0, input_len=[500, 2000, 8000], output_len=[5, 20, 100]), {"tpot_p99_ms": 60.0}),
    )
    n, rng = 12, np.random.default_rng(0)
    knobs = {"tp": [1.0, 2.0, 4.0], "dp": [1.0, 2.0], "max_num_seqs": [16.0, 64.0, 256.0]}
    knobs |= {"max_num_batched_tokens": [512.0, 2048.0, 8192.0]}
    columns = {**LLAMA, **{name: rng.choice(values, n) for name, values in knobs.items()}}
    lines = []
    for traffic, limits in loads:
        cells = [" ".join(f"{name} <= {bound:g}" for name, bound in limits.items())]
        for kind in ("a100", "h100"):
            s = setup({**columns, "traffic": traffic}, device(kind), n)
            quick = of_many(s, limits)
            events = [of_one(traffic, s, i, limits, float(quick[i])).rate for i in range(n)]
            off = np.log(quick / events)
            cells.append(f"{100 * np.expm1(np.median(off)):+.0f} % ({off.std():.2f})")
        lines.append(cells)
    print(table(lines, ["max_rate_rps within", "a100", "h100"]))


def fluid_against_events() -> None:
    """Compares the models for Llama-3-8B with 400 requests each: fixed batches, closed loops (also of equal requests),
    open loops up to 95 % of the capacity, and loads of variable lengths."""
    n, rng, a100 = 150, np.random.default_rng(5), device("a100")
    columns: dict[str, Any] = {
        **LLAMA,
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
    loads = {"batch": {"batch": users}, "users": {"concurrency": users}, "alike": alike, "rate": {"rate": rate}}
    spread = {"users, spread": {"concurrency": 32}, "rate, spread": {"rate": 1.0}}
    lines: dict[str, list[str]] = {}
    for name in (*loads, *spread):
        quick, events = _both({**columns, **loads[name]}) if name in loads else _spread(columns, spread[name])
        for metric in (
            "output_tokens_per_s",
            *(f"{m}_{q}_ms" for m in ("ttft", "tpot", "itl", "e2el") for q in ("mean", "p99")),
        ):
            off = np.log(quick[metric] / np.array([found.get(metric, np.nan) for found in events]))
            off = off[np.isfinite(off)]
            cell = f"{100 * np.median(np.abs(off)):.1f} ({100 * np.quantile(np.abs(off), 0.9):.0f})"
            lines.setdefault(metric, [metric, f"{fluid_error(metric):.2f}"]).append(cell)
    header = ["median % (p90 %)", "stated", *loads, *spread]
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
        highest_rates()
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
