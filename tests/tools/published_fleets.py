"""Compares the serving simulator with published runs of several engines: behind a router, or with separate engines for
prompts (published_fleets.csv). Whole pairs of (model, device) are in half a or b by their hash; what the simulator
believes may be chosen on half a.

    PYTHONPATH=. .venv/bin/python -m tests.tools.published_fleets a|b [--rows] [--source eagle]

Columns: `reads`, `answers`: engines × devices of each, for prompts alone and for the others; `users`: of a closed loop,
or else `rate` per second. `more`: further columns of the simulator, and of the load: `spread` (half the range of
lengths by the mean), `lengths`, `across` (prompts are read on other nodes, whose links are not expressed), and for
requests about `documents`, each `asked` so many different questions: the figures are those after every question was
asked once. Times to the first token are left out where a benchmark asked the same prompts before. Sources:

    eagle         gist of a benchmark of EAGLE-3 with NixlConnector, without the runs that guess (vLLM c4e744dbd)
    pace          ealbalas/disaggregated-prefill-decode-research @ aa134bb, results/dynamo
    study         bandham-manikanta/vllm-pd-disaggregation-study @ 8bb5ba5, docs; vLLM 0.28.1rc1
    mooncake-*    kvcache-ai/Mooncake @ 3b5a594, docs/source/performance. a10: lengths from the ratio of its figures
    llm-d-pd      llm-d/llm-d @ 027a053, guides/pd-disaggregation (H200), and a report of v0.8.0 (H100); its tokens are
                  counted again by another tokenizer, so the throughput is 250 times its requests per second.
                  The H200 together were measured with an older release, which is not told
    llm-d-router  llm-d/llm-d @ 17e359c and 53c5b20, guides/optimized-baseline/benchmark-results: a Kubernetes service
                  (taken for turns) against llm-d's prefix affinity (taken for vllm-router's cache_aware)

Not expressed: DeepSeek-V3 on 96 H100 (lmsys.org/blog/2025-05-05-large-scale-ep), whose figures are per phase and with
redundant experts; llm-d's transfers of caches between equal engines; routers whose load is a trace that is not told.
"""

import argparse
import csv
import hashlib
import itertools
import json
import random
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from autoscout.job.requests import poisson
from autoscout.job.trace import BLOCK
from autoscout.simulate.serving.fleet_run import Fleets
from autoscout.simulate.serving.serving_device import device
from autoscout.simulate.serving.setup import setup
from autoscout.simulate.validation.serving_tables import columns_of_rows
from kb.records import Traffic
from tests.tools.published_serving import METRICS, compare, lengths, of_serving

Row = dict[str, Any]
TABLE = Path(__file__).with_suffix(".csv")
_OURS = ("prefill", "prefill_tp")  # columns that tables of single engines lack
_ALIKE = 0.05  # pairs whose logarithms differ by less have no order
_WARM_RATE = 15.0  # requests per second while each question is asked for the first time


def half(row: Row) -> str:
    return "ab"[hashlib.sha256(f"{row['model']} {row['gpu']}".encode()).digest()[0] % 2]


def rows() -> Iterator[Row]:
    with TABLE.open(encoding="utf-8", newline="") as file:
        for told in csv.DictReader(file):
            row: Row = {name: text for name, text in told.items() if text and name != "more"}
            row |= dict(one.split("=") for one in told["more"].split(";") if one)
            row |= {metric: float(row[metric]) for metric in METRICS if metric in row}
            count, tp = map(int, row["answers"].split("x"))
            row |= {"tp": tp, "dp": count, "dtype": "bf16"}
            if "reads" in row:
                readers, size = map(int, row["reads"].split("x"))
                row |= {"prefill": readers * size, "prefill_tp": size}
            yield row


def predicted(row: Row) -> dict[str, tuple[float, float]]:
    """Our metric → (prediction, its log standard deviation), for the measured metrics."""
    plain = {name: value for name, value in row.items() if name not in ("users", "rate", *METRICS)}
    columns: dict[str, Any] = columns_of_rows([{**plain, "requests": 1}])[0]
    columns |= {name: np.array([float(row[name])]) for name in _OURS if name in row}
    columns |= {"router": np.array([row["router"]])} if "router" in row else {}
    columns["engines_apart"] = np.ones(1)  # servers of their own share no experts
    metrics = [metric for metric in METRICS if metric in row]
    if "documents" in row:
        return _after_warm_up(row, columns, metrics)
    columns["traffic"] = Traffic(
        rate=float(row.get("rate", 0)),
        concurrency=int(row.get("users", 0)),
        requests=int(row["requests"]),
        **{name: _lengths(row, float(row[name])) for name in ("input_len", "output_len")},
    )
    return of_serving(columns, metrics)


def _lengths(row: Row, most: float) -> int | list[int]:
    if spread := float(row.get("spread", 0)):
        return [round(most * at) for at in (1 - spread, 1)]
    return lengths(most, row.get("lengths") != "exponential")


def _after_warm_up(row: Row, columns: dict[str, Any], metrics: list[str]) -> dict[str, tuple[float, float]]:
    """Runs a stage of requests after one in which every question is asked once. The error is not estimated."""
    asked, count = int(row["documents"]) * int(row["asked"]), int(row["requests"])
    questions = [(d, q) for d in range(int(row["documents"])) for q in range(int(row["asked"]))]
    random.Random(0).shuffle(questions)
    rng = np.random.default_rng(0)
    first = poisson(_WARM_RATE, asked, rng)
    then = first[-1] + 60 + poisson(float(row["rate"]), count, rng)
    prompt, alike = int(row["input_len"]), 6000 // BLOCK
    with tempfile.TemporaryDirectory() as folder:
        trace = Path(folder) / "documents.jsonl"
        with trace.open("w", encoding="utf-8") as file:
            for at, (d, q) in zip([*first, *then], itertools.cycle(questions)):
                own = [10_000_000 + 1000 * d + 100 * q + k for k in range(prompt // BLOCK - alike)]
                each = {"timestamp": 1000 * at, "input_length": prompt, "output_length": int(row["output_len"])}
                file.write(json.dumps({**each, "hash_ids": [100 * d + k for k in range(alike)] + own}) + "\n")
        columns["traffic"] = Traffic(trace=str(trace))
        run = Fleets(columns, setup(columns, device(str(columns["gpu"][0])), 1)).run(0)
    if run is None:
        return dict.fromkeys(metrics, (np.nan, np.nan))
    arrival, begun, end = run.arrival_s[asked:], run.first_s[asked:], run.end_s[asked:]
    outputs = run.output_len[asked:]
    found = {
        "ttft_mean_ms": 1e3 * float(np.mean(begun - arrival)),
        "tpot_mean_ms": 1e3 * float(np.mean((end - begun) / (outputs - 1))),
        "output_tokens_per_s": float(outputs.sum() / (end.max() - arrival.min())),
    }
    return {metric: (found[metric], np.nan) for metric in metrics}


def main() -> None:
    parser = argparse.ArgumentParser(description="How far the serving simulator is from published fleets.")
    parser.add_argument("half", choices=("a", "b"))
    parser.add_argument("--rows", action="store_true", help="prints each row, too")
    parser.add_argument("--source", default="")
    options = parser.parse_args()
    some = [row for row in rows() if half(row) == options.half and row["source"].startswith(options.source)]
    found = {id(row): predicted(row) for row in some}
    compare(some, lambda row: found[id(row)], _names, _label if options.rows else None)
    pairs = [
        (found[id(a)][metric][0] < found[id(b)][metric][0]) == (a[metric] < b[metric])
        for a, b in itertools.combinations(some, 2)
        for metric in METRICS
        if _question(a) == _question(b) and metric in a and metric in b and abs(np.log(a[metric] / b[metric])) > _ALIKE
    ]
    print(f"\nOrder of alternatives under one load: {sum(pairs)} of {len(pairs)} pairs")


def _question(row: Row) -> tuple[object, ...]:
    names = ("source", "model", "gpu", "framework", "users", "rate", "requests", "input_len", "output_len", "eager")
    return tuple(row.get(name) for name in names)


def _names(row: Row) -> tuple[str, str]:
    kind = "together" if "reads" not in row else "across nodes" if "across" in row else "apart"
    return "all", f"{row['source']} {row['model']} {kind}"


def _label(row: Row) -> str:
    fleet = f"{row.get('reads', '')}+{row['answers']} {row.get('router', '')}"
    load = f"{row['input_len']}/{row['output_len']} " + (f"c{row['users']}" if "users" in row else f"r{row['rate']}")
    return f"{row['source']} {row['framework']} {fleet} {load}"


if __name__ == "__main__":
    main()
