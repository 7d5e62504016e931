"""Compares the serving simulator with MLPerf Inference v4.1 and v5.1 (closed division); logs are not included.

    git clone https://github.com/mlcommons/inference_results_v4.1 pages/v4.1
    git clone https://github.com/mlcommons/inference_results_v5.1 pages/v5.1
    PYTHONPATH=. .venv/bin/python -m tests.tools.published_serving_mlperf pages [--held-out] [--rows] [--save told.json]
    PYTHONPATH=. .venv/bin/python -m tests.tools.published_serving_mlperf pages [--held-out] --others

Held out, before any prediction was made: all submitters except NVIDIA and AMD, and these two's Mixtral-8x7B and
Llama-3.1-405B. Without --held-out: the rows on which constants may be chosen.

Offline: all requests of half an hour are sent at once; tokens/s are the simulated engine's while requests wait. Server
and Interactive: a Poisson process at the highest rate that the submitter found within the limits of TTFT and TPOT. At
this rate, an engine predicted a few percent too slow is overloaded (`open`), so two other figures are compared:
`requests_per_s`, the highest rate within the log's limits (99 % of requests), with the run's rate; and TTFT and TPOT at
the rate with as many requests in flight as in the run (by Little's law). The engine runs in the harness's process
unless stated otherwise."""

import argparse
import json
from collections.abc import Callable
from functools import cache
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
from msgspec.structs import replace

from autoscout.job.metrics import HIGHEST_RATE
from autoscout.simulate.serving.engine_run import EngineRun
from autoscout.simulate.serving.latencies import metrics_of_run
from autoscout.simulate.serving.one_replica import replica_run
from autoscout.simulate.serving.serving_device import device
from autoscout.simulate.serving.setup import setup
from autoscout.simulate.serving.simulator import ServingSimulator
from autoscout.simulate.validation.serving_tables import columns_of_rows
from kb.records import Traffic
from tests.tools.mlperf_inference import Row, rows_of
from tests.tools.published_serving import AT_ONCE, line
from tui.text import table

SERVED = ("ttft_mean_ms", "tpot_mean_ms")
OPEN = "open "  # prefix of a metric's name
# Number of simulated requests per engine: _REQUESTS + _ROUNDS times its concurrent requests, of which at most 2,048
# count in open loads.
_REQUESTS, _ROUNDS, _AT_MOST = 4000, 8, 2048
_HARNESS = {"front_end_ms": 1e-3, "request_ms": 1e-3, "streamed": 0.0}
_LEAST, _MOST, _HALVINGS = 0.4, 2.5, 7  # the search's range as multiples of the run's rate, and its steps
_MIXTURES = ("mixtral-8x7b", "deepseek-r1", "gpt-oss-120b")
_APART = 0.05  # configurations with a smaller relative difference count as equally fast

_SAME = (
    *("model", "scenario", "chip", "gpus", "replicas", "framework", "version", "tp", "pp", "ep", "attention_dp"),
    *("max_num_seqs", "max_num_batched_tokens", "quantization", "kv_dtype", "adp_timeout_iters", "adp_wait_iters"),
)

Told = dict[str, tuple[float, float]]


def predicted(row: Row) -> Told:
    """Our metric → (prediction, its log standard deviation), for the log's metrics."""
    columns, _ = columns_of_rows([{**degrees(row), "dtype": "fp16", "input_len": 1, "output_len": 1, "requests": 1}])
    columns |= {name: np.array([value]) for name, value in _HARNESS.items() if not row.get("served")}
    if row["scenario"] == "Offline":
        run = simulated(row, columns, rate=AT_ONCE)
        scale = row["replicas"] * _together(row)
        found = {"output_tokens_per_s": steady(run, row["max_num_seqs"]) * scale if run else 0.0}
    else:
        runs = cache(lambda rate: simulated(row, columns, rate))  # both searches start with the same rates
        at_rate = runs(row["rate"])
        found = {OPEN + name: metrics_of_run(at_rate)[name] if at_rate else np.inf for name in SERVED}
        alike = runs(highest(row["rate"], runs, lambda run, rate: in_flight(run, rate) <= row["in_flight"]))
        found |= settled(alike) if alike else dict.fromkeys(SERVED, np.inf)
        found["requests_per_s"] = highest(row["rate"], runs, lambda run, _: within(run, row))
    # a small load suffices, because the stated error does not depend on queues
    few = Traffic(rate=row["rate"] or AT_ONCE, **_lengths(row), requests=8)
    many = few if row["scenario"] == "Offline" else replace(few, requests=_requests(row, row["rate"], row["replicas"]))
    # The run's rate is compared with the highest rate within the limits, as in a job.
    limits = {f"limit_{name}_p99_ms": row[f"{name}_limit_ms"] for name in ("ttft", "tpot") if row["rate"]}
    stated = {m: HIGHEST_RATE if m == "requests_per_s" else m.removeprefix(OPEN) for m in found}
    loads = {m: {"traffic": many} if m.startswith(OPEN) else {"traffic": few, **limits} for m in found}
    errors = {m: ServingSimulator(name).predict({**columns, **loads[m]}).error for m, name in stated.items()}
    return {m: (value, float(errors[m][0])) for m, value in found.items()}


def simulated(row: Row, columns: dict[str, Any], rate: float) -> EngineRun | None:
    """The run of one engine under its share of the rate; None if no request fits."""
    engines = 1 if row["model"] in _MIXTURES else row["replicas"]
    share = 1.0 if rate == AT_ONCE else engines / row["replicas"]
    traffic = Traffic(rate=rate * share, **_lengths(row), requests=_requests(row, rate, engines))
    return replica_run(traffic, setup({**columns, "traffic": traffic}, device(str(columns["gpu"][0])), 1), 0)


def _requests(row: Row, rate: float, engines: int) -> int:
    at_once = row["max_num_seqs"] if rate == AT_ONCE else min(row["max_num_seqs"], _AT_MOST)
    return int((_REQUESTS + _ROUNDS * at_once) * engines * _together(row))


def highest(rate: float, runs: Callable[[float], EngineRun | None], meets: Callable[[EngineRun, float], bool]) -> float:
    """The highest rate near `rate` at which `meets` is true of the run."""
    low, high = _LEAST, _MOST
    for _ in range(_HALVINGS):
        share = float(np.sqrt(low * high))
        run = runs(rate * share)
        low, high = (share, high) if run and meets(run, rate * share) else (low, share)
    return rate * low


def within(run: EngineRun, row: Row) -> bool:
    told = metrics_of_run(run)
    return all(told.get(f"{name}_p99_ms", np.inf) <= row[f"{name}_limit_ms"] for name in ("ttft", "tpot"))


def _middle(run: EngineRun) -> tuple[np.ndarray, ...]:
    """(arrivals, first tokens, ends, tokens) without the first requests, which arrive at an empty engine."""
    some = np.argsort(run.arrival_s)[len(run.arrival_s) // 4 :]
    return run.arrival_s[some], run.first_s[some], run.end_s[some], run.output_len[some]


def in_flight(run: EngineRun, rate: float) -> float:
    arrival, _, end, _ = _middle(run)
    return rate * float((end - arrival).mean())


def settled(run: EngineRun) -> dict[str, float]:
    arrival, first, end, tokens = _middle(run)
    many = tokens > 1
    each = (end - first)[many] / (tokens - 1)[many]
    return {"ttft_mean_ms": float((first - arrival).mean()) * 1e3, "tpot_mean_ms": float(each.mean()) * 1e3}


def _lengths(row: Row) -> dict[str, Any]:
    return {name: row[name] for name in ("input_len", "output_len")}


def _together(row: Row) -> int:
    """Number of engines with separate attention that share experts."""
    return int(row["tp"]) if row.get("attention_dp") else 1


def degrees(row: Row) -> Row:
    """The row with degrees as in a table, where dp means that an MoE model's engines share experts. Independent engines
    of such a model are therefore stated as one."""
    if row.get("attention_dp"):
        return {**row, "tp": 1, "dp": row["tp"]}
    return {**row, "dp": 1 if row["model"] in _MIXTURES else row["replicas"]}


def steady(run: EngineRun, at_once: int) -> float:
    """Output tokens per second while the engine is full."""
    order = np.argsort(run.end_s)
    end, tokens = run.end_s[order], np.cumsum(run.output_len[order])
    first, last = at_once, len(end) - at_once - 1
    return float((tokens[last] - tokens[first]) / (end[last] - end[first]))


def main() -> None:
    parser = argparse.ArgumentParser(description="How far the serving simulator is from MLPerf Inference.")
    parser.add_argument("folder", type=Path, help="with clones of the rounds' results")
    parser.add_argument("--held-out", action="store_true", help="the rows that no constant was chosen by")
    parser.add_argument("--rows", action="store_true", help="prints each row, too")
    parser.add_argument("--save", type=Path, help="writes each row's figures there")
    parser.add_argument("--others", action="store_true", help="what other submitters' runs tell of a row, in our place")
    options = parser.parse_args()
    rows, reasons = rows_of(options.folder)
    if options.others:
        print(others([row for row in rows if row["held_out"] == options.held_out and row["rate"]]))
        return
    groups: dict[str, dict[str, list[tuple[float, float, float]]]] = {}
    speeds: dict[tuple[str, str], list[tuple[float, float]]] = {}
    saved = []
    for row in rows:
        if row["held_out"] != options.held_out:
            continue
        for metric, (value, error) in predicted(row).items():
            measured = row[metric.removeprefix(OPEN)]
            saved.append((row["page"], row["model"], row["scenario"], metric, measured, value, error))
            for name in names(row):
                groups.setdefault(metric, {}).setdefault(name, []).append((value, measured, error))
            if metric.endswith("_per_s"):
                pair = measured / row["gpus"], value / row["gpus"]
                speeds.setdefault((row["model"], row["scenario"]), []).append(pair)
            if options.rows:
                print(f"{row['page']} {row['model']} {row['scenario']}", metric, f"{measured:.4g} {value:.4g}")
    if options.save:
        options.save.write_text(json.dumps(saved), encoding="utf-8")
    for metric, by_name in groups.items():
        header = ["", "rows", "MAPE %", "median %", "bias %", "in 90 %"]
        print(f"\n{metric}\n{table([line(name, by_name[name]) for name in sorted(by_name)], header)}")
    print("\nPairs of one model and scenario, a device's speed:", ordered(list(speeds.values())))
    print("\nNot expressed:\n" + "\n".join(f"{count:4} {why}" for why, count in reasons.most_common()))


def others(rows: list[Row]) -> str:
    """Errors of TTFT and TPOT if each row is predicted by the geometric mean of the other rows with the same devices,
    engine and configuration and a rate within 5 %: the spread of runs that the model cannot distinguish."""
    told: dict[str, list[tuple[float, float, float]]] = {name: [] for name in SERVED}
    for row in rows:
        near = [other for other in rows if other is not row and _alike(row, other)]
        for metric, pairs in told.items():
            if near:
                pairs.append((float(np.exp(np.mean([np.log(each[metric]) for each in near]))), row[metric], 1.0))
    return table([line(name, pairs)[:4] for name, pairs in told.items() if pairs], ["", "rows", "MAPE %", "median %"])


def _alike(row: Row, other: Row) -> bool:
    rates = [each["rate"] / each["gpus"] for each in (row, other)]
    return all(row.get(name) == other.get(name) for name in _SAME) and abs(np.log(rates[0] / rates[1])) < _APART


def ordered(groups: list[list[tuple[float, float]]]) -> str:
    """The number of pairs with the right predicted order, among those that differ."""
    pairs = [pair for group in groups for pair in combinations(group, 2) if _differ(*pair)]
    right = sum((a[0] - b[0]) * (a[1] - b[1]) > 0 for a, b in pairs)
    return f"{right} of {len(pairs)} in the right order"


def _differ(a: tuple[float, float], b: tuple[float, float]) -> bool:
    return abs(np.log(a[0] / b[0])) > _APART


def names(row: Row) -> list[str]:
    """Names of the groups that a row belongs to."""
    load = "Offline" if row["scenario"] == "Offline" else "Server"
    card = row["gpu"] + (" NVL" if "NVL" in row["chip"] else "")
    chip = f"{card} {row['model']} {row['quantization']} {row['scenario']}"
    kind = "AMD" if row["gpu"].startswith("mi3") else row["framework"]
    return [f"all {kind} {load}", f"all {kind} {load} {row['model']}", chip]


if __name__ == "__main__":
    main()
