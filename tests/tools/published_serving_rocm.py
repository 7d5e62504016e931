"""Compares the serving simulator with AMD's table: Llama-3.1 in FP8 on eight MI300X, vLLM 0.10.

    The page is not in this repository: docs/dev-docker/README.md of https://github.com/ROCm/vllm, at 040de12
    PYTHONPATH=. .venv/bin/python -m tests.tools.published_serving_rocm README.md [--rows]

32 latencies of batches of 1 to 128 requests (`benchmark_latency.py`, nearly only decoding, so they measure TPOT) and
eight throughputs with all requests sent at once (`benchmark_throughput.py`, the cache in FP8). All are held out."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from autoscout.simulate.validation.serving_tables import columns_of_rows
from kb.records import Traffic
from tests.tools.published_serving import AT_ONCE, asked, compare, of_serving

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
            yield {**row, **lengths, "e2el_mean_ms": float(cells[6]) * 1e3}
        else:
            input_len, output_len, requests, seqs = (int(cell) for cell in cells[3:7])
            server = {"kv_dtype": "fp8", "max_num_seqs": seqs, "max_num_batched_tokens": 131072, "max_model_len": 8192}
            lengths = {"input_len": input_len, "output_len": output_len, "requests": requests}
            yield {**row, **server, **lengths, "output_tokens_per_s": float(cells[7])}


def predicted(row: Row) -> dict[str, tuple[float, float]]:
    columns: dict[str, Any] = columns_of_rows([{**row, "requests": 1}])[0]
    if "batch" not in row:
        lengths = {name: row[name] for name in ("input_len", "output_len", "requests")}
        columns["traffic"] = Traffic(rate=AT_ONCE, **lengths)
    return of_serving(columns, ["e2el_mean_ms" if "batch" in row else "output_tokens_per_s"])


def main() -> None:
    options = asked("How far the serving simulator is from AMD's table.")
    compare(rows_of(options.pages), predicted, lambda row: [row["model"]], _label if options.rows else None)


def _label(row: Row) -> str:
    of = f"batch {row['batch']}" if "batch" in row else f"{row['requests']} requests"
    return f"{row['model']} {row['input_len']}/{row['output_len']} {of}"


if __name__ == "__main__":
    main()
