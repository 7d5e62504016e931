"""Compares the serving simulator with SGLang's cookbook, which has launch commands with outputs of SGLang's benchmark.

    The pages are not in this repository (Apache-2.0):
    git clone https://github.com/sgl-project/sgl-cookbook pages/cookbook    # docs/autoregressive, at 7b5bd9c
    PYTHONPATH=. .venv/bin/python -m tests.tools.published_serving_cookbook pages/cookbook [--held-out] [--rows]

SGLang 0.5.6 to 0.5.10 on A100, H100, B200, GB300 and MI300X. Held out, before any prediction was made: all models but
Llama-3.1-70B, Qwen3-235B, DeepSeek-V3.1 and MiniMax-M2.5. The benchmark's `random` draws uniform lengths from 1 to the
given one (its default range); outputs have their sums. Runs with speculative decoding, images or layers unknown to the
model are excluded, and pages with several kinds of device."""

import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from autoscout.simulate.validation.serving_tables import columns_of_rows, device_name, served_model
from kb.records import Traffic
from tests.tools.published_serving import METRICS, asked, compare, of_serving

Row = dict[str, Any]
_IN_SIGHT = ("llama-3.1-70b", "qwen3-235b", "deepseek-v3.1", "minimax-m2.5")
_BLOCK = re.compile(r"^ *(`{3,})[^\n]*\n(.*?)^ *\1 *$", re.M | re.S)
_HARDWARE = re.compile(r"Hardware:?\**:? *(.*)|[Ss][Gg][Ll]ang [Vv]ersion:?\**:? *v?(\d+\.\d+[.\d]*)")
_CHIP = re.compile(r"\b(?:A100|H100|H200|B200|GB300|MI\d{3}X)\b", re.I)
_SAID = re.compile(r"^ *([A-Z][\w /()]+?):? +([\d.]+) *$", re.M)
_EIGHT = ("deepseek", "minimax", "-fp8")
_EVENLY = np.linspace(0.0125, 0.9875, 40) * 2


def rows_of(folder: Path) -> tuple[list[Row], Counter[str]]:
    rows, reasons = list[Row](), Counter[str]()
    for path in sorted(folder.rglob("docs/autoregressive/*/*.md")):
        for found in _of_page(path.read_text(encoding="utf-8")):
            if isinstance(found, str):
                reasons[found] += 1
            else:
                rows.append(found)
    return rows, reasons


def _of_page(text: str) -> Iterator[Row | str]:
    hardware = version = server = asked = ""
    at = 0
    for block in _BLOCK.finditer(text):
        for kind, release in _HARDWARE.findall(text, at, block.start()):
            hardware, version = kind or hardware, release or version
        at, body = block.end(), block[2].replace("\\\n", " ")
        if "Mean TPOT (ms)" in body:
            for result in body.split("Serving Benchmark Result")[1:]:
                yield _row(hardware, version, server, asked, dict(_SAID.findall(result)))
        elif "bench_serving" in body or "--dataset-name" in body:
            asked = body
        elif "launch_server" in body or "sglang serve" in body:
            server = body


def _row(hardware: str, version: str, server: str, asked: str, said: dict[str, str]) -> Row | str:
    chips = {chip.upper() for chip in _CHIP.findall(hardware)}
    model = re.search(r"--model(?:-path)? +\"?([\w./-]+)", server)
    if len(chips) != 1 or not model or not device_name(*chips):
        return "no device, or several kinds"
    if "--speculative" in server:
        return "guessed tokens"
    name = model[1].split("/")[-1].lower().rstrip("\\")
    if not served_model(name):
        return "a model of another kind"
    if "dataset-name random" not in asked or "Mean TTFT (ms)" not in said:
        return "another load"
    tp, dp, ep = (_number(server, rf"--{word}(?:-size)?[ =]+(\d+)") for word in ("tp", "dp", "ep"))
    requests = int(float(said["Successful requests"]))
    concurrency = float(said.get("Max request concurrency", 0) or 0)
    mean = {kind: float(said[f"Total {kind} tokens"]) / requests for kind in ("input", "generated")}
    apart = dp > 1 and "enable-dp-attention" in server
    return {
        "page": f"{name} {min(chips)}",
        "model": name,
        "gpu": min(chips),
        "framework": "SGLang",
        "version": version,
        "tp": tp // dp if apart else tp,
        "dp": dp,
        "ep": ep if ep > 1 else int(apart),
        "quantization": "mxfp4" if "gpt-oss" in name else "fp8_block" if any(w in name for w in _EIGHT) else "none",
        "dtype": "bf16",
        "input_len": _spread(mean["input"], asked),
        "output_len": _spread(mean["generated"], asked),
        "concurrency": int(concurrency),
        "requests": requests,
        "held_out": not name.startswith(_IN_SIGHT),
        "ttft_mean_ms": float(said["Mean TTFT (ms)"]),
        "tpot_mean_ms": float(said["Mean TPOT (ms)"]),
        "output_tokens_per_s": float(said["Output token throughput (tok/s)"]),
    }


def _number(text: str, pattern: str) -> int:
    return int((re.search(pattern, text) or ["", "1"])[1])


def _spread(mean: float, asked: str) -> list[int]:
    alike = re.search(r"random-range-ratio +1", asked)
    return [max(round(mean), 1)] if alike else [max(round(mean * at), 1) for at in _EVENLY.tolist()]


def predicted(row: Row) -> dict[str, tuple[float, float]]:
    load = {name: row[name] for name in ("input_len", "output_len", "concurrency", "requests")}
    traffic = Traffic(rate=0.0 if row["concurrency"] else 1e5, **load)
    columns, _ = columns_of_rows([{**row, "input_len": 1, "output_len": 1}])
    return of_serving({**columns, "traffic": traffic}, METRICS)


def main() -> None:
    options = asked("How far the serving simulator is from SGLang's cookbook.", held_out=True)
    rows, reasons = rows_of(options.pages)
    rows = [row for row in rows if row["held_out"] == options.held_out]
    compare(rows, predicted, lambda row: ("all", row["page"]), _label if options.rows else None, reasons)


def _label(row: Row) -> str:
    lengths = f"{np.mean(row['input_len']):.0f}/{np.mean(row['output_len']):.0f}"
    return f"{row['page']} tp{row['tp']} {lengths} c{row['concurrency']}"


if __name__ == "__main__":
    main()
