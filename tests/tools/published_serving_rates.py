"""Compares the serving simulator with AccelMark's open loads (scenario `online`), on which nothing was chosen: medians
of TTFT and TPOT of requests that arrive as a Poisson process.

    PYTHONPATH=. .venv/bin/python -m tests.tools.published_serving_rates pages [--rows]

The clone is that of published_serving.py, which has rows of the same machines with 1 to 32 users. Prompt lengths are
the median on a suite's page; answer lengths are uniform up to the suite's limit around their mean in the clone's
scenario `sustained`, which has the same prompts."""

import json
import re
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from autoscout.simulate.validation.serving_tables import columns_of_rows, device_name
from kb.records import Traffic
from tests.tools.published_serving import asked, compare, of_serving
from tests.tools.published_serving_later import FORMATS, answers
from tests.tools.published_serving_pages import Row, told_runner

_FORMATS = {name: ours for name, ours in FORMATS.items() if name != "W4A16"}  # excluded: it uses GPTQ's own kernels
METRICS = ("ttft_p50_ms", "tpot_p50_ms")
_PROMPTS, _LONGEST = {"suite_D": 28650, "suite_F": 95}, {"suite_D": 256, "suite_F": 256}
_CONTEXT, _REQUESTS = {"suite_D": 30208, "suite_F": 2048}, {"suite_B": 200, "suite_D": 200}


def rows_of(folder: Path) -> Iterator[Row]:
    for path in sorted(folder.rglob("result.json")):
        said = json.loads(path.read_text(encoding="utf-8"))
        metrics, chip, suite = said.get("metrics") or {}, said["chip"]["name"], said.get("suite_id", "")
        rates, many = (metrics.get("online") or {}).get("results_by_qps"), metrics.get("sustained")
        precision = said.get("model", {}).get("precision")
        unknown = said["chip"]["vendor"] != "NVIDIA" or re.search(r"4090 D|H20\b|H20-", chip)
        if not rates or not many or unknown or not device_name(chip) or precision not in _FORMATS:
            continue
        steady = [s for s in many["samples"] if not s["is_warmup"] and s["requests_completed"]]
        mean = sum(s["tokens_out"] for s in steady) / max(sum(s["requests_completed"] for s in steady), 1)
        for rate in rates:
            yield {
                "name": f"{said['software']['framework']} {said['software']['framework_version'][:4]} {suite} {chip}",
                "model": re.sub(r"-FP8$|-quantized.*", "", said["model"]["model_id"]).replace(
                    "Meta-Llama-3.1", "Llama-3.1"
                ),
                "framework": said["software"]["framework"],
                "version": said["software"]["framework_version"],
                "gpu": chip,
                "memory_gib": said["chip"]["memory_gb"],
                "tp": (said["task"].get("parallelism") or {}).get("tensor_parallel_size", 1),
                "quantization": _FORMATS[precision],
                "max_model_len": _CONTEXT.get(suite, 4096),
                "input_len": _PROMPTS.get(suite, 280),
                "output_len": answers(mean, _LONGEST.get(suite, 512)),
                "rate": rate["target_qps"],
                "requests": _REQUESTS.get(suite, 300),
                "ttft_p50_ms": rate["ttft_ms_p50"],
                "tpot_p50_ms": rate["tpot_ms_p50"],
                **told_runner(said),
            }


def predicted(row: Row) -> dict[str, tuple[float, float]]:
    """Our metric → (prediction, its log standard deviation). The engine runs in the client's process, where vLLM's V1
    engine runs at most 128 requests (SchedulerConfig.DEFAULT_MAX_NUM_SEQS)."""
    columns, _ = columns_of_rows([{"dtype": "bf16", **row, "output_len": 1, "requests": 1}])
    if row["framework"] == "vLLM" and not columns["scheduler_v0"][0]:
        columns["max_num_seqs"] = np.array([128.0])
    columns |= {"front_end_ms": np.array([5.0]), "request_ms": np.array([1e-3])}
    traffic = Traffic(**{name: row[name] for name in ("rate", "input_len", "output_len", "requests")})
    return of_serving({**columns, "traffic": traffic}, METRICS)


def main() -> None:
    options = asked("How far the serving simulator is from AccelMark's runs at a rate.")
    rows = rows_of(options.pages / "accelmark/results")
    compare(rows, predicted, _names, _label if options.rows else None)


def _names(row: Row) -> tuple[str, ...]:
    engine = row["framework"]
    return f"all {engine} {row['version'][:4]}", f"{engine} {row['quantization']}", row["name"]


def _label(row: Row) -> str:
    return f"{row['name']} {row['quantization']} tp{row['tp']} {row['rate']}/s"


if __name__ == "__main__":
    main()
