"""Compares the fluid model of serving with the event simulation for open loads near the capacity: a table of
docs/lab/simulators-serving.md.

    PYTHONPATH=. .venv/bin/python -m tests.tools.fluid_near_capacity [--chosen-on]

Prints the mean |log| of the fluid model's results over the geometric mean of four event simulations, on held-out
models, traffic, limits and draws; --chosen-on: on those by which the fluid model's constants were chosen."""

import argparse
from itertools import product
from typing import Any, NamedTuple

import msgspec
import numpy as np

from autoscout.job.requests import of_traffic
from autoscout.simulate.serving.fluid import fluid
from autoscout.simulate.serving.latencies import metrics_of_run
from autoscout.simulate.serving.one_replica import engine_of, limits_of, open_run
from autoscout.simulate.serving.serving_device import device
from autoscout.simulate.serving.setup import setup
from kb.records import Traffic
from tui.text import table

_USES = (0.5, 0.7, 0.85, 0.95)
_METRICS = ("ttft_mean_ms", "ttft_p50_ms", "ttft_p90_ms", "ttft_p99_ms", "e2el_p50_ms", "e2el_mean_ms", "tpot_mean_ms")
_SHAPES = {
    "llama-3-8b": (32, 4096, 32, 14336, 128256),
    "mistral-7b": (32, 4096, 32, 14336, 32000),
    "qwen3-14b": (40, 5120, 40, 17408, 151936),
    "llama-3-70b": (80, 8192, 64, 28672, 128256),
}


class Loads(NamedTuple):
    """Models with device and tp; lengths of prompts and answers; (max_num_seqs, max_num_batched_tokens); random seeds;
    numbers of requests."""

    models: tuple[tuple[str, str, float], ...]
    traffic: tuple[tuple[Any, Any], ...]
    limits: tuple[tuple[float, float], ...]
    draws: range
    requests: tuple[int, ...]


CHOSEN_ON = Loads(
    (("llama-3-8b", "a100", 1), ("llama-3-8b", "a40", 1), ("qwen3-14b", "h100", 1), ("llama-3-8b", "h100", 2)),
    (
        ([100, 500, 3000], [10, 150, 600]),
        ([2, 400, 1000, 1300, 14000], [7, 100, 180, 400, 1000]),
        ([500, 2000, 8000], [5, 20, 100]),
        (1000, 200),
        ([20, 100, 300], [50, 300, 900]),
        ([200, 1500, 2500], [100, 400, 800]),
    ),
    ((256, 2048), (64, 8192), (24, 2048), (256, 512)),
    range(4),
    (400, 200, 1000),
)
UNSEEN = Loads(
    (("llama-3-70b", "h100", 4), ("mistral-7b", "a100", 2), ("qwen3-14b", "a100", 1)),
    (
        ([1000, 3000, 4000, 6000, 12000], [20, 150, 300]),
        ([50, 300, 2500, 8000], [5, 30, 60, 500]),
        (300, 600),
        ([50, 200, 600, 20000], [20, 200, 400, 2000]),
        (4000, 50),
    ),
    ((256, 4096), (48, 2048), (128, 1024), (16, 8192)),
    range(10, 14),
    (400, 200, 800),
)


def columns_of(model: str, gpu: str, tp: float, limits: tuple[float, float]) -> dict[str, Any]:
    layers, hidden, heads, ffn, vocab = _SHAPES[model]
    shape = {"layers": layers, "hidden": hidden, "heads": heads, "kv_heads": 8, "head_dim": 128, "ffn": ffn}
    knobs = {"tp": tp, "max_num_seqs": limits[0], "max_num_batched_tokens": limits[1]}
    same = {"vocab": vocab, "gated": True, "tied": False, "dtype": "bfloat16", "gpu": gpu}
    return {**shape, **same, **{name: np.array([float(value)]) for name, value in knobs.items()}}


def errors(loads: Loads) -> dict[float, list[list[float]]]:
    """By utilization: log(fluid / events) of each load and metric."""
    found: dict[float, list[list[float]]] = {use: [] for use in _USES}
    for i, (model, lengths, limits) in enumerate(product(loads.models, loads.traffic, loads.limits)):
        columns, on = columns_of(*model, limits), device(model[1])
        count = loads.requests[i % len(loads.requests)]
        traffic = Traffic(rate=1.0, input_len=lengths[0], output_len=lengths[1], requests=count)
        most = 1 / float(fluid(setup({**columns, "traffic": traffic}, on, 1), ())["load"][0])
        for use in _USES if most == most else ():
            traffic = msgspec.structs.replace(traffic, rate=use * most)
            s = setup({**columns, "traffic": traffic}, on, 1)
            front_end = float(s.front_end_s[0]), float(s.request_s[0])
            asked = (of_traffic(traffic, seed, count) for seed in loads.draws)
            runs = [metrics_of_run(open_run(engine_of(s, 0), limits_of(s, 0), each, *front_end)) for each in asked]
            said = fluid(s, set(_METRICS))
            found[use].append([float(np.log(said[m][0]) - np.mean([np.log(run[m]) for run in runs])) for m in _METRICS])
    return found


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--chosen-on", action="store_true")
    off = errors(CHOSEN_ON if parser.parse_args().chosen_on else UNSEEN)
    of_each = {use: np.abs(np.array(rows)).mean(axis=0) for use, rows in off.items()}
    lines = [[metric, *(f"{of_each[use][i]:.2f}" for use in _USES)] for i, metric in enumerate(_METRICS)]
    print(table(lines, ["of what can be answered", *(f"{use:.0%}" for use in _USES)]))


if __name__ == "__main__":
    main()
