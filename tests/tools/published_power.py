"""Compares joules.py, serving_joules.py and power_limit.py with the power of published runs: MLPerf's power
submissions, whose logs are not in this repository (Apache-2.0).

    git clone https://github.com/mlcommons/training_results_v4.0 pages/training_v4.0
    git clone https://github.com/mlcommons/training_results_v4.1 pages/training_v4.1
    git clone https://github.com/mlcommons/training_results_v5.0 pages/training_v5.0
    git clone https://github.com/mlcommons/inference_results_v4.1 pages/v4.1
    git clone https://github.com/mlcommons/inference_results_v5.1 pages/v5.1
    git clone https://github.com/openshift-psap/performance-dashboard pages/lengths
    PYTHONPATH=. .venv/bin/python -m tests.tools.published_power pages

Meters measure whole nodes. The power of an idle node minus its idle devices (_IDLE) is attributed to the rest of the
node; the power in a run minus this rest is attributed to the devices. So higher power of fans and processors in a run
counts as the devices'. The constants were chosen on immersed nodes without fans (SMC, direct current), and on NVIDIA's
runs with a limit of 500 W."""

import argparse
import json
import re
from collections.abc import Iterator
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from autoscout.simulate.hardware.device import hardware
from autoscout.simulate.joules import TrainingEnergy, watts
from autoscout.simulate.serving.serving_joules import drawn
from autoscout.simulate.training.step import Training
from autoscout.simulate.validation.serving_tables import columns_of_rows
from autoscout.simulate.validation.training_tables import columns_of
from kb.records import Traffic
from tests.tools.mlperf_inference import Row, rows_of
from tests.tools.published_training_mlperf import GPT3, LORA
from tui.text import table

_IDLE = {"h100": 70.0, "h200": 75.0, "b200": 140.0}  # watts of an idle device according to its driver; assumed
_OF_ALTERNATING = 0.94  # assumed efficiency of power supplies, if the log states none
_READING = re.compile(r'"time_ms": (\d+)[^\n]*"key": "power_reading", "value": ([\d.]+)')
_MARK = re.compile(r'"time_ms": (\d+)[^\n]*"key": "(run_start|run_stop)"')
_SAMPLES = re.compile(r'"throughput": ([\d.]+)')
_STEP = re.compile(r'"train_step_timing in s": ([\d.]+)')
_EFFICIENCY = re.compile(r'"conversion_eff", "value": ([\d.]+)')
_TIME = "%m-%d-%Y %H:%M:%S.%f"

_FP8 = {"precision": "fp8", "framework": "NeMo", "tp_comm_overlap": 1}
_LORA = LORA | _FP8
_GPT3 = GPT3 | _FP8 | {
    "mbs": 2, "tp": 4, "cp": 1, "pp": 8, "vpp": 12, "dp": 16, "sp": 1, "n_gpus": 512, "global_batch": 2048,
    "gpu": "h100",
}  # fmt: skip
# Layouts from the logs and configurations; the model from the benchmark's definition.
_TRAINED: dict[str, dict[str, Any]] = {
    "training_v4.0/smc-dc-power/results/1xSMC-H100-SXM-80GB/llama2_70b_lora": _LORA
    | {"gpu": "h100", "n_gpus": 8, "global_batch": 8, "tp": 4, "cp": 1, "dp": 2, "sp": 1},
    "training_v4.0/smc-dc-power/results/8xSMC-H100-SXM-80GB/llama2_70b_lora": _LORA
    | {"gpu": "h100", "n_gpus": 64, "global_batch": 8, "tp": 4, "cp": 2, "dp": 8, "sp": 1},
    "training_v4.0/smc-dc-power/results/64xSMC-H100-SXM-80GB/llama2_70b_lora": _LORA
    | {"gpu": "h100", "n_gpus": 512, "global_batch": 64, "tp": 4, "cp": 2, "dp": 64, "sp": 1},
    "training_v4.0/smc-dc-power/results/64xSMC-H100-SXM-80GB/gpt3": _GPT3,
    "training_v4.1/Dell/results/8xXE9680x8H100-SXM-80GB-POWER/llama2_70b_lora": _LORA
    | {"gpu": "h100", "n_gpus": 64, "global_batch": 8, "tp": 4, "cp": 2, "dp": 8, "sp": 1, "graphs": 1},
    "training_v5.0/Lenovo/results/SR780aV3-8xB200_SXM_180GB/llama2_70b_lora": _LORA
    | {"gpu": "b200", "n_gpus": 8, "global_batch": 8, "tp": 1, "cp": 1, "dp": 8, "sp": 0, "transposes": 0},
}


class Metered(NamedTuple):
    """Mean watts of a node of eight devices in a run, after the power supply, and watts of the rest of the node."""

    node: float
    rest: float

    @property
    def device(self) -> float:
        return (self.node - self.rest) / 8


def trained(folder: Path, row: dict[str, Any]) -> tuple[float, float, float]:
    """(mean watts of a node over the runs, the smallest of a run, seconds per step)."""
    nodes, least, steps = [], [], []
    for log in sorted(folder.glob("result_*.txt")):
        text = log.read_text(encoding="utf-8", errors="replace")
        marks = {name: int(at) for at, name in _MARK.findall(text)}
        rates = [float(rate) for rate in _SAMPLES.findall(text)]
        steps += [float(s) for s in _STEP.findall(text)] or [row["global_batch"] / rate for rate in rates]
        for file in sorted((folder / "power" / log.stem).glob("node_*.txt")):
            told = file.read_text(encoding="utf-8")
            scale = float(said[1]) if (said := _EFFICIENCY.search(told)) else 1.0
            read = [(int(at), scale * float(value)) for at, value in _READING.findall(told)]
            within = [value for at, value in read if marks["run_start"] <= at <= marks["run_stop"]]
            if within:
                nodes.append(float(np.mean(within)))
                least.append(min(value for _, value in read if value > 0))
    return float(np.mean(nodes)), float(np.median(least)), float(np.median(steps))


def served(folder: Path, gpu: str) -> Metered:
    """`folder`: the logs of a run, with spl.txt."""
    read = []
    for fields in (line.split(",") for line in (folder / "spl.txt").read_text(encoding="utf-8").splitlines()):
        if fields[0] == "Time":
            read.append((datetime.strptime(fields[1], _TIME), _OF_ALTERNATING * float(fields[3])))
    log = (folder / "mlperf_log_detail.txt").read_text(encoding="utf-8", errors="replace")
    begin, end = (datetime.strptime(_said(log, f"power_{name}"), _TIME) for name in ("begin", "end"))
    # the meter's clock is in another time zone
    hours = timedelta(hours=round((read[0][0] - begin).total_seconds() / 3600))
    within = [value for at, value in read if begin <= at - hours <= end]
    return Metered(float(np.mean(within)), min(value for _, value in read) - 8 * _IDLE[gpu])


def _said(log: str, key: str) -> str:
    return json.loads(f'"{found[1]}"') if (found := re.search(rf'"key": "{key}", "value": "([^"]+)"', log)) else ""


def of_training(pages: Path) -> Iterator[list[str]]:
    told = {place: trained(pages / place, row) for place, row in _TRAINED.items() if (pages / place).is_dir()}
    idle = dict[str, float]()  # watts by submitter, whose nodes are equal; only some logs have idle phases
    for place, (_, least, _) in told.items():
        idle[place.split("/")[1]] = min(least, idle.get(place.split("/")[1], least))
    for place, (node, _, seconds) in told.items():
        row = _TRAINED[place]
        meter = Metered(node, idle[place.split("/")[1]] - 8 * _IDLE[row["gpu"]])
        columns = columns_of([{**{name: str(value) for name, value in row.items()}, "iteration_time_s": "1"}])
        step, tokens = Training().predict(columns), row["global_batch"] * row["seq_len"]
        said = float(watts(columns, step)[0]) / row["n_gpus"]
        joules = float(TrainingEnergy().predict(columns).value[0])
        measured = meter.device * row["n_gpus"] * seconds / tokens
        yield [
            place.split("/")[-2], row["gpu"], str(row["n_gpus"]), place.split("/")[-1],
            *_watts(meter, said), f"{measured:.3f}", f"{joules:.3f}", f"{seconds:.2f}", f"{float(step.value[0]):.2f}",
        ]  # fmt: skip


def of_serving(pages: Path, rows: list[Row]) -> Iterator[list[str]]:
    for row in rows:
        base = pages / row["page"].split()[0] / "closed" / row["submitter"] / "results" / row["page"].split()[2]
        runs = [base / name / row["scenario"] / "performance/run_1" for name in (f"{row['model']}-99", row["model"])]
        folder = next((run for run in runs if (run / "spl.txt").exists()), None)
        hw = hardware(row["gpu"])
        if folder is None or hw is None:
            continue
        one = {"dp": 1, "dtype": "fp16", "input_len": 1, "output_len": 1, "requests": 1}
        columns, _ = columns_of_rows([{**row, **one}])
        lengths = {name: row[name] for name in ("input_len", "output_len")}
        asked = {**columns, "traffic": Traffic(rate=row["rate"] or 1000.0, **lengths, requests=100)}
        each = row["output_tokens_per_s"] / float(np.mean(row["output_len"])) / row["replicas"]
        said = float(drawn(asked, row["gpu"], np.array([each]))[0][0]) * hw.watts / (row["tp"] * row.get("pp", 1))
        meter = served(folder, row["gpu"])
        limit = "" if "power_cap" not in row else f"{row['power_cap'] / 100 * hw.watts:.0f}"
        yield [row["page"], row["gpu"], limit, row["model"], row["scenario"], *_watts(meter, said)]


def _watts(meter: Metered, said: float) -> list[str]:
    return [f"{meter.node:,.0f}", f"{meter.rest:,.0f}", f"{meter.device:.0f}", f"{said:.0f}"]


def main() -> None:
    parser = argparse.ArgumentParser(description="Watts of published runs, and as predicted.")
    parser.add_argument("folder", type=Path, help="with clones of the rounds' results")
    pages = parser.parse_args().folder
    watts_of = ["node W", "rest", "device", "predicted"]
    header = ["training", "gpu", "gpus", "job", *watts_of, "J/token", "predicted", "s/iter", "predicted"]
    print(table(list(of_training(pages)), header))
    rows, _ = rows_of(pages)
    print("\n" + table(list(of_serving(pages, rows)), ["serving", "gpu", "limit", "model", "load", *watts_of]))


if __name__ == "__main__":
    main()
