"""Reads a published sweep of layouts (Hagemann et al. 2023, 984 trials of 13B to 65B models on A100) and prints the
errors of the analytic models on it, without and with three rows of a job: a table of docs/lab/simulators.md.

    git clone https://github.com/Aleph-Alpha/NeurIPS-WANT-submission-efficient-parallelization-layouts sweep
    python -m tests.tools.layout_sweep sweep/data [--csv sweep.csv]

The sheets are CC BY-NC-SA, so this repository contains none of their rows. --csv writes them for `autoscout predict
--against sweep.csv`."""

import argparse
import csv
import re
import zipfile
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import numpy as np

from autoscout.simulate.encode import take
from autoscout.simulate.training.memory import Memory
from autoscout.simulate.training.step import Training
from autoscout.simulate.validation.column_names import number
from autoscout.simulate.validation.training_tables import columns_of, step_seconds

SHEET = "{http://schemas.openxmlformats.org/spreadsheetml/2006/main}"
SHAPES = {"13B": (40, 5120, 40, 13824), "30B": (60, 6656, 52, 17920), "65B": (80, 8192, 64, 22016)}
LOOKED_AT = "llama-13B"  # whose residuals were seen during development
DRAWS, GIVEN = 5, 3


def cells(path: Path) -> list[dict[str, str]]:
    """The rows of a sheet, by the column names in its second line; the first is a title."""
    with zipfile.ZipFile(path) as file:
        texts = ElementTree.fromstring(file.read("xl/sharedStrings.xml"))
        shared = ["".join(t.text or "" for t in text.iter(f"{SHEET}t")) for text in texts.iter(f"{SHEET}si")]
        sheet = ElementTree.fromstring(file.read("xl/worksheets/sheet1.xml"))
    lines = []
    for row in sheet.iter(f"{SHEET}row"):
        line = {}
        for cell in row.iter(f"{SHEET}c"):
            if (value := cell.find(f"{SHEET}v")) is not None and value.text:
                column = re.sub(r"\d", "", cell.get("r", ""))
                line[column] = shared[int(value.text)] if cell.get("t") == "s" else value.text
        lines.append(line)
    names = lines[1]
    return [{names[column]: value for column, value in line.items() if column in names} for line in lines[2:]]


def trials(folder: Path) -> list[dict[str, Any]]:
    """The trials as rows of a table of measured runs, with batch, vocabulary and ZeRO-1 of the paper's section 3."""
    found = []
    for path in sorted(folder.rglob("*.xlsx")):
        model = path.name.split("_")[1]
        layers, hidden, heads, ffn = SHAPES[model]
        shape = {"model": f"llama-{model}", "layers": layers, "hidden": hidden, "heads": heads, "ffn": ffn, "gated": 1}
        fixed = {"vocab": 128000, "bias": 0, "tied": 0, "gpu": "a100", "gpus_per_node": 8, "distopt": 1}
        length = (
            {"seq_len": 8192, "global_batch": 512} if "8k" in path.name else {"seq_len": 2048, "global_batch": 2048}
        )
        for row in cells(path):
            seconds = row["Average Step Time"]
            # Other texts are "Kernel not available" and "Other Error".
            status = "oom" if seconds == "OOM Error" else "ok" if number(seconds) else "failed"
            layout = {
                "n_gpus": row["World Size"],
                "micro_batch": row["micro_batch_size"],
                "tp": row["model_parallel_size"],
                "pp": row["pipe_parallel_size"],
                "sp": row.get("sequence_parallel", "0"),
                "recompute": "full" if row["activation_checkpointing_type"] == "every_layer" else "none",
                "attention": row["kernel"],
            }
            measured = {"status": status, "step_time_s": seconds if status == "ok" else "", "source": path.stem}
            found.append({**shape, **fixed, **length, **layout, **measured})
    return found


def judged(rows: list[dict[str, Any]]) -> list[tuple[str, int, float]]:
    """(what, rows, percent), for the held-out models and for all."""
    columns, seconds = columns_of(rows), step_seconds(rows)
    model, job, status = (np.array([row[name] for row in rows]) for name in ("model", "source", "status"))
    told, chance = Training().predict(columns), Memory().oom_probability(columns)
    off = np.log(told.value / seconds)
    died, known = status == "oom", status != "failed"
    found: list[tuple[str, int, float]] = []
    for name, some in (("30B and 65B", model != LOOKED_AT), ("all", np.full(len(rows), True))):
        timed, tried = some & np.isfinite(off), some & known
        low = tried & (chance < 0.05)
        inside = np.abs(off[timed]) < 1.645 * told.error[timed]
        found += [
            (f"{name}: step time, MAPE", int(timed.sum()), 100 * float(np.abs(np.expm1(off[timed])).mean())),
            (f"{name}: in the 90 % interval", int(timed.sum()), 100 * float(inside.mean())),
            (f"{name}: does it fit, right", int(tried.sum()), 100 * float(((chance > 0.5) == died)[tried].mean())),
            (f"{name}: died of those given less than 5 %", int(low.sum()), 100 * float(died[low].mean())),
        ]
    jobs = [np.flatnonzero((job == one) & known & (chance <= 0.5)) for one in np.unique(job)]
    favourites = np.array([some[np.argmin(told.value[some])] for some in jobs])
    found.append(("favourites that die", len(jobs), 100 * float(died[favourites].mean())))
    held_out = take(columns, known & (model != LOOKED_AT)), died[known & (model != LOOKED_AT)]
    return found + with_rows(columns, seconds, job) + with_runs(*held_out, job[known & (model != LOOKED_AT)])


def with_rows(columns: dict[str, np.ndarray], seconds: np.ndarray, job: np.ndarray) -> list[tuple[str, int, float]]:
    rng = np.random.default_rng(1)
    off, inside = [], []
    for one in np.repeat(np.unique(job), DRAWS):
        timed = np.flatnonzero((job == one) & np.isfinite(seconds))
        given = rng.choice(timed, GIVEN, replace=False)
        others = np.setdiff1d(timed, given)
        model = Training()
        model.fit(take(columns, given), seconds[given])
        told = model.predict(take(columns, others))
        residual = np.abs(np.log(told.value / seconds[others]))
        off.append(np.abs(told.value / seconds[others] - 1))
        inside.append(residual < 1.645 * told.error)
    every, within = np.concatenate(off), np.concatenate(inside)
    return [
        (f"with {GIVEN} rows of the job: step time, MAPE", len(every), 100 * float(every.mean())),
        (f"with {GIVEN} rows of the job: in the 90 % interval", len(every), 100 * float(within.mean())),
    ]


def with_runs(columns: dict[str, np.ndarray], died: np.ndarray, job: np.ndarray) -> list[tuple[str, int, float]]:
    """(what, rows, percent) for the held-out models, given whether some of a job's runs fitted (there are no peaks)."""
    rng = np.random.default_rng(1)
    chances, deaths = [], []
    for one in np.repeat(np.unique(job), DRAWS):
        runs = np.flatnonzero(job == one)
        given = rng.choice(runs, GIVEN, replace=False)
        others = np.setdiff1d(runs, given)
        memory = Memory()
        memory.fit(take(columns, given), np.where(died[given], np.inf, 0.0))
        chances.append(memory.oom_probability(take(columns, others)))
        deaths.append(died[others])
    chance, dead = np.concatenate(chances), np.concatenate(deaths)
    name = f"30B and 65B, with {GIVEN} runs of the job"
    found = [(f"{name}: does it fit, right", len(dead), 100 * float(((chance > 0.5) == dead).mean()))]
    for low, high in ((0.0, 0.05), (0.05, 0.2), (0.2, 0.5), (0.5, 0.8), (0.8, 1.01)):
        here = (chance >= low) & (chance < high)
        said = f"{name}: died of those given {low:.0%} to {min(high, 1):.0%}, {chance[here].mean():.0%} in the mean"
        found.append((said, int(here.sum()), 100 * float(dead[here].mean())))
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description="How right the analytic models are on a published sweep of layouts.")
    parser.add_argument("folder", type=Path, help="with the sheets")
    parser.add_argument("--csv", type=Path, help="writes the trials there, too")
    options = parser.parse_args()
    rows = trials(options.folder)
    if options.csv:
        with options.csv.open("w", newline="") as file:
            writer = csv.DictWriter(file, list(rows[0]))
            writer.writeheader()
            writer.writerows(rows)
    print("| | n | % |\n|---|---|---|")
    print("\n".join(f"| {what} | {n} | {percent:.1f} |" for what, n, percent in judged(rows)))


if __name__ == "__main__":
    main()
