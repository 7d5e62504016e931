"""Reads runs of language models in MLPerf Inference (closed division) as rows, from clones of v4.1's, v5.1's and v6.0's
results, and of a dashboard with the tokens of each request of the data sets ("lengths"). Their text is not in this
repository.

A row has a table's columns (see serving_tables.py), `held_out`, the lengths of its requests, and measurements by our
metrics' names. A run that cannot be expressed is a reason instead."""

import csv
import json
import re
from collections import Counter
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from scipy.stats import norm

from autoscout.simulate.hardware.device import hardware
from autoscout.simulate.serving.serving_device import has_constants
from autoscout.simulate.validation.serving_tables import device_name
from tests.tools.mlperf_configs import told

Row = dict[str, Any]

# Chosen before any prediction of it was made. Until v6.0, it was other submitters' rows and two models of v4.1 and
# v5.1.
HELD_OUT = ("v6.0",)

# data set → (file with the tokens of its prompts in openshift-psap/performance-dashboard, longest answer)
DATA_SETS = {
    "llama2-70b": ("mlperf-data/summaries/llama2-70b-99.csv", 1024),
    "mixtral-8x7b": ("mlperf-data/summaries/mixtral-8x7b.csv", 1024),
    "llama3.1-8b": ("mlperf-data/summaries/llama3-1-8b-datacenter.csv", 128),
    "llama3.1-405b": ("mlperf-data/summaries/llama3-1-405b.csv", 2000),
    "deepseek-r1": ("mlperf-data/summaries/deepseek-r1.csv", 20000),
    "gpt-oss-120b": ("datasets/summaries/gpt-oss.csv", 10240),
}
_EVENLY = np.linspace(0.005, 0.995, 41)
_UNSAID = 0.22
_LINE = re.compile(r"^(.+?)\s*: +([\d.e+]+)\s*$", re.M)
_MEASURED = {
    "Mean First Token latency (ns)": "ttft_mean_ms",
    "99.00 percentile first token latency (ns)": "ttft_p99_ms",
    "Mean Time to Output Token (ns)": "tpot_mean_ms",
    "Mean Time per Output Token (ns)": "tpot_mean_ms",
    "99.00 percentile time to output token (ns)": "tpot_p99_ms",
}
# TensorRT's release in `systems` → the release of TensorRT-LLM that was built with it (by its release notes).
_RELEASES = {
    "9": "0.9",
    "10.2": "0.12",
    "10.8": "0.17",
    "10.10": "0.20",
    "10.11": "0.21",
    "10.13": "1.1",
    "10.14": "1.2",
}


def rows_of(folder: Path) -> tuple[list[Row], Counter[str]]:
    """(rows, reasons for excluded runs) of all rounds below a folder."""
    rows, reasons, seen = list[Row](), Counter[str](), set[Any]()
    for path in sorted(folder.glob("*/closed/*/results/*/*/*/performance/run_1/mlperf_log_summary.txt")):
        scenario, model, system = path.parts[-4].capitalize(), path.parts[-5], path.parts[-6]
        name = re.sub(r"-99(\.9)?$", "", model).replace("3_1", "3.1")
        key = (path.parts[-10], path.parts[-8], system, name, scenario)
        if name not in DATA_SETS:
            reasons["beams, or another kind of model"] += 1
        elif key in seen:  # "-99" and "-99.9"
            reasons["another accuracy of the same configuration"] += 1
        else:
            seen.add(key)
            found = _row(path, name, scenario)
            if isinstance(found, str):
                reasons[found] += 1
            else:
                rows.append(found)
    return rows, reasons


def _row(path: Path, model: str, scenario: str) -> Row | str:
    system, folder = path.parts[-6], path.parents[6]
    described = folder / "systems" / f"{system}.json"
    if not described.exists():
        return "a system that is not described"
    about = json.loads(described.read_text(encoding="utf-8"))
    chip, framework = str(about["accelerator_model_name"]), str(about["framework"])
    gpus = int(about["accelerators_per_node"] or 0) * int(about["number_of_nodes"] or 1)
    gpu = device_name(chip)
    if not (gpu and has_constants(gpu)) or "H100-NVL" in chip or "x16" in chip:
        return "a device without constants"
    if " and " in chip:
        return "devices of several kinds"
    settings = told(folder, system, model, scenario)
    if isinstance(settings, str):
        return settings
    if not settings["max_num_seqs"]:
        return "no configuration of that system"
    per_engine = settings["tp"] * settings.get("pp", 1)
    replicas = max(gpus // per_engine, 1)
    if (watts := settings.pop("power_watts", None)) and (known := hardware(gpu)):
        settings["power_cap"] = 100 * watts / known.watts
    said = {name.strip(): float(value) for name, value in _LINE.findall(path.read_text(encoding="utf-8"))}
    offline = scenario == "Offline"
    samples = said["Samples per second" if offline else "Completed samples per second"]
    tokens = said["Tokens per second" if offline else "Completed tokens per second"]
    limits = (
        {f"{name}_limit_ms": said[f"{name}_latency (ns)"] / 1e6 for name in ("ttft", "tpot")} if not offline else {}
    )
    measured = {ours: said[name] / 1e6 for name, ours in _MEASURED.items() if not offline and name in said}
    return {
        "page": f"{path.parts[-10]} {path.parts[-8]} {system}",
        "submitter": path.parts[-8],
        "model": model,
        "scenario": scenario,
        "gpu": gpu,
        "chip": chip,
        "gpus": gpus,
        "replicas": replicas,
        "version": _version(framework, settings, path.parts[-10]),
        "rate": 0.0 if offline else said["Scheduled samples per second"],
        "in_flight": 0.0 if offline else samples * said["Mean latency (ns)"] / 1e9,
        "input_len": prompts(model, path.parents[9]),
        "output_len": answers(model, tokens / samples, path.parents[9]),
        "held_out": path.parts[-10] in HELD_OUT,
        "output_tokens_per_s": tokens,
        "requests_per_s": 0.0 if offline else said["Scheduled samples per second"],
        **limits,
        **measured,
        **settings,
    }


def _version(framework: str, settings: Row, round_: str) -> str:
    """The engine's release. For TensorRT-LLM, 1.0 or newer represents its PyTorch backend, even if an older release ran
    it (v6.0 used 1.2, by its containers' names), and 0.21 its compiled engines, even if a newer one ran them."""
    if settings["framework"] == "vLLM":
        return (re.search(r"vllm[- ]([\d.]+)", framework, re.I) or ["", "0.14" if round_ == "v6.0" else "0.6"])[1]
    tensorrt = (re.search(r"TensorRT (\d+\.\d+)", framework) or ["", ""])[1]
    release = _RELEASES.get(tensorrt) or _RELEASES.get(tensorrt.split(".")[0], "0.21")
    if settings.pop("in_python"):
        return "1.2" if round_ == "v6.0" else max(release, "1.0")
    return min(release, "0.21")


@cache
def prompts(model: str, folder: Path) -> list[int]:
    """Tokens of a data set's prompts, at evenly spaced quantiles."""
    with (folder / "lengths" / DATA_SETS[model][0]).open(encoding="utf-8", newline="") as rows:
        lengths = np.array([float(row["input_length"]) for row in csv.DictReader(rows)])
    return _scaled(np.quantile(lengths, _EVENLY), float(lengths.mean()), lengths.max())


def answers(model: str, mean: float, folder: Path) -> list[int]:
    """Lengths like those of test TEST06 (a hundred requests in each submission), scaled to the log's mean. GPT-OSS has
    no such test: 99 % of its requests take at most 1.59 times the mean time, 90 % at most 1.29 times, which corresponds
    to a standard deviation of 0.22."""
    lengths = _sampled(folder, model)
    spread = np.quantile(lengths, _EVENLY) if len(lengths) else 1 + _UNSAID * norm.ppf(_EVENLY)
    return _scaled(spread, mean, DATA_SETS[model][1])


def _scaled(lengths: np.ndarray, mean: float, longest: int) -> list[int]:
    for _ in range(20):
        lengths = np.minimum(lengths * mean / lengths.mean(), longest)
    return [max(round(length), 1) for length in lengths.tolist()]


@cache
def _sampled(folder: Path, model: str) -> np.ndarray:
    """Tokens of the answers in all TEST06 logs of a model (4 bytes each, in hexadecimal)."""
    lengths = []
    for path in sorted(folder.glob("*/closed/*/compliance/*/*/*/TEST06/accuracy/mlperf_log_accuracy.json")):
        if path.parts[-5].replace("3_1", "3.1").startswith(model):
            lengths += [
                len(data) / 8 for data in re.findall(r'"data" : "([0-9A-F]+)"', path.read_text(encoding="utf-8"))
            ]
    return np.array(lengths)
