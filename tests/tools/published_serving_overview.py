"""Compares the serving simulator with TensorRT-LLM 1.2's performance overview: output tokens/s, all requests at once.

    Pages (not in this repository): docs/source/developer-guide/perf-overview.md of
    https://github.com/NVIDIA/TensorRT-LLM at 03e27c7, and 1.0's, docs/source/performance/perf-overview.md at 00f3768
    PYTHONPATH=. .venv/bin/python -m tests.tools.published_serving_overview perf-overview.md [--held-out] [--rows]

Held out, before any prediction was made: the models that are also held out of other pages (Qwen3-235B, gpt-oss-20b,
Llama-70B), the RTX cards, and all of 1.0. On n devices, engines are tensor parallel (TPn), or data parallel except for
the sharded experts (DEPn). Rows use 1.2's default limits on a step's tokens and on requests, and 0.95 of the free
memory. 1.2's figures are per device, 1.0's of all devices."""

import re
from collections.abc import Iterator
from pathlib import Path

from tests.tools.published_serving import asked, compare, predicted
from tests.tools.published_serving_pages import Row

_MODELS = {
    "deepseek r1": "deepseek-r1",
    "gpt-oss 120b": "gpt-oss-120b",
    "gpt-oss 20b": "gpt-oss-20b",
    "llama v3.3 70b": "llama-3.1-70b",
    "llama 3.3 70b": "llama-3.1-70b",
    "llama 3.1 405b": "llama-3.1-405b",
    "llama 3.1 8b": "llama-3.1-8b",
    "qwen3 235b": "qwen3-235b-a22b",
    "qwen3-235b": "qwen3-235b-a22b",
    "qwen3-30b": "qwen3-30b-a3b",
    "qwen3 30b": "qwen3-30b-a3b",
}
_HELD_OUT = ("qwen3-235b-a22b", "gpt-oss-20b", "llama-3.1-70b")
_REQUESTS = {
    "1.2": {(8192, 1024): 1500, (1024, 8192): 1500, (32768, 1024): 1000, (1024, 32768): 1000},
    "1.0": {(128, 4096): 1500, (1000, 2000): 1500, (2048, 2048): 1500, (5000, 500): 1500, (20000, 2000): 1000},
}
_EIGHT = {"deepseek-r1": "fp8_block"}
_STEP = 8192  # default tokens per step; prompts of this length are assumed to be chunked


def rows_of(path: Path) -> Iterator[Row]:
    model, rtx, head = "", False, list[str]()
    page = path.read_text(encoding="utf-8")
    release = "1.0" if "#### Llama 3.1 405B" in page else "1.2"
    for text in page.splitlines():
        if re.match(r"#+ ", text):
            model = next((ours for name, ours in _MODELS.items() if name in text.lower()), "")
            rtx = "RTX" in text
        rtx = rtx or text.startswith("RTX")
        cells = [cell.strip() for cell in text.split("|")[1:-1]]
        if cells and cells[0].startswith("Sequence Length"):
            head = cells
        lengths = re.fullmatch(r"(\d+)/(\d+)", cells[0]) if cells else None
        if lengths is None or not model:
            continue
        for said, value in zip(head[1:], cells[1:], strict=True):
            if value:
                yield _row(model, "rtx-pro-6000" if rtx else said.split("<")[0], said, lengths, value, release)


def _row(model: str, gpu: str, said: str, lengths: re.Match[str], value: str, release: str) -> Row:
    degree = int((re.search(r"(?:DEP|TP)(\d+)", said) or ["", "1"])[1])
    stages = int((re.search(r"PP(\d+)", said) or ["", "1"])[1])
    together = "DEP" in said
    input_len, output_len = int(lengths[1]), int(lengths[2])
    eight, mx = "FP8" in said, model.startswith("gpt-oss")
    return {
        "page": f"{model} {gpu.lower()} {'DEP' if together else 'TP'}{degree}",
        "model": model,
        "gpu": gpu,
        "framework": "TensorRT-LLM",
        "version": release,
        "tp": 1 if together else degree,
        "dp": degree if together else 1,
        "ep": degree if together else 1,
        "pp": stages,
        "quantization": "mxfp4" if mx else _EIGHT.get(model, "fp8") if eight else "nvfp4",
        "kv_dtype": "auto" if mx and eight else "fp8",
        "dtype": "bf16",
        "gpu_memory_utilization": 0.95,
        "chunked_prefill": int(input_len >= _STEP),
        "front_end_ms": 1e-3,  # trtllm-bench runs the engine in its own process
        "request_ms": 1e-3,
        "input_len": input_len,
        "output_len": output_len,
        "requests": _REQUESTS[release].get((input_len, output_len), 3000),
        "concurrency": 0,
        "random": True,
        "held_out": release == "1.0" or model in _HELD_OUT or gpu.startswith("rtx"),
        "output_tokens_per_s": float(value.replace(",", "")) * (degree * stages if release == "1.2" else 1),
    }


def main() -> None:
    options = asked("How far the serving simulator is from TensorRT-LLM's own overview.", held_out=True)
    rows = [row for row in rows_of(options.pages) if row["held_out"] == options.held_out]
    compare(rows, predicted, lambda row: ("all", row["page"]), _label if options.rows else None)


def _label(row: Row) -> str:
    return f"{row['page']} {row['input_len']}/{row['output_len']}"


if __name__ == "__main__":
    main()
