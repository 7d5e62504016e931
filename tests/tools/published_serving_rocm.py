"""How far the serving simulator is from AMD's own table: Llama-3.1 in FP8 on eight MI300X, vLLM 0.10.

    The page stays outside: docs/dev-docker/README.md of https://github.com/ROCm/vllm, at 040de12
    PYTHONPATH=. .venv/bin/python -m tests.tools.published_serving_rocm README.md [--rows]

32 latencies of batches of 1 to 128 requests (`benchmark_latency.py`, nearly all decoding: TPOT by another name) and
eight throughputs with all requests sent at once (`benchmark_throughput.py`, the cache in FP8). All are held out.
"""

import argparse
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from autoscout.simulate.serving.simulator import ServingSimulator
from autoscout.simulate.validation.serving_tables import columns_of_rows
from kb.records import Traffic
from tests.tools.published_serving import AT_ONCE, line
from tui.text import table

Row = dict[str, Any]
_SERVER: Row = {"gpu": "MI300X", "framework": "vLLM", "version": "0.10.0", "quantization": "fp8", "dtype": "fp16"}


def rows_of(path: Path) -> Iterator[Row]:
    model = tp = ""
    for text in path.read_text(encoding="utf-8").splitlines():
        cells = [cell.strip() for cell in text.split("|")[1:-1]]
        if len(cells) not in (7, 8) or not re.fullmatch(r"[\d.]+", cells[-1]):
            continue
        model = (re.search(r"3\.1 (\d+B)", cells[0]) or ["", model])[1]
        tp = cells[2] or tp
        row = {**_SERVER, "model": f"llama-3.1-{model.lower()}", "tp": int(tp)}
        if len(cells) == 7:
            batch, input_len, output_len = (int(cell) for cell in cells[3:6])
            lengths = {"batch": batch, "input_len": input_len, "output_len": output_len}
            yield {**row, **lengths, "metric": "e2el_mean_ms", "measured": float(cells[6]) * 1e3}
        else:
            input_len, output_len, requests, seqs = (int(cell) for cell in cells[3:7])
            server = {"kv_dtype": "fp8", "max_num_seqs": seqs, "max_num_batched_tokens": 131072, "max_model_len": 8192}
            lengths = {"input_len": input_len, "output_len": output_len, "requests": requests}
            yield {**row, **server, **lengths, "metric": "output_tokens_per_s", "measured": float(cells[7])}


def predicted(row: Row) -> tuple[float, float]:
    columns: dict[str, Any] = columns_of_rows([{**row, "requests": 1}])[0]
    if "batch" not in row:
        lengths = {name: row[name] for name in ("input_len", "output_len", "requests")}
        columns["traffic"] = Traffic(rate=AT_ONCE, **lengths)
    told = ServingSimulator(row["metric"]).predict(columns)
    return float(told.value[0]), float(told.error[0])


def main() -> None:
    parser = argparse.ArgumentParser(description="How far the serving simulator is from AMD's table.")
    parser.add_argument("page", type=Path)
    parser.add_argument("--rows", action="store_true", help="prints each row, too")
    options = parser.parse_args()
    groups: dict[str, list[tuple[float, float, float]]] = {}
    for row in rows_of(options.page):
        value, error = predicted(row)
        groups.setdefault(f"{row['metric']} {row['model']}", []).append((value, row["measured"], error))
        if options.rows:
            of = f"batch {row['batch']}" if "batch" in row else f"{row['requests']} requests"
            print(row["model"], f"{row['input_len']}/{row['output_len']}", of,
                  f"{row['measured']:.5g} {value:.5g} {value / row['measured'] - 1:+.2f}")  # fmt: skip
    header = ["", "rows", "MAPE %", "median %", "bias %", "in 90 %"]
    print(table([line(name, groups[name]) for name in sorted(groups)], header))


if __name__ == "__main__":
    main()
