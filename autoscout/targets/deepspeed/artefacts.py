"""Writes the results of a tuning session in the file layout of DeepSpeed's autotuner, for tools that read these files:
exps/, results/ with a folder per experiment, ds_config_optimal.json, cmd_optimal.txt and summary.txt.

Files are written under temporary names and renamed, so that readers never see incomplete files. Files of an earlier
tuning are kept unless `overwrite` is set. Folders that no autotuning created are never deleted."""

import json
import os
import shlex
import shutil
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from autoscout.job.objective import cost
from autoscout.running import results as writing
from autoscout.targets.command.arguments import export_place
from autoscout.targets.deepspeed.arguments import rendered_config, started
from autoscout.targets.deepspeed.autotuning import folders, settings
from autoscout.targets.deepspeed.config_space import STAGE, choices_of, read_config
from autoscout.targets.deepspeed.ds_config import Config, at
from autoscout.targets.deepspeed.tuning_space import canonical_name
from autoscout.targets.launch import Launch
from kb.records import AutoscoutError, Configuration, Job, Measurement

MARK = ".autoscout"  # file name that marks folders as created by AutoScout
OPTIMAL = "ds_config_optimal.json"


def as_ds_config(launch: Launch) -> str:
    """Returns the ds_config of an exported launch. Errors: AutoscoutError (exit 2) if it has none."""
    found = next((text for name, text in launch.files.items() if name.endswith(".json")), None)
    if found is None:
        raise AutoscoutError("this launch has no ds_config; export it with --format command", 2)
    return found


def name_of(job: Job, configuration: Configuration) -> str:
    """Returns DeepSpeed's name for an experiment, such as z2_tmbspg4_gas2_rbs5.0e+06."""
    config = read_config(job)
    keys = {path.rpartition(".")[2] for path in choices_of(config, settings(config), job)} - {"stage"}
    found = rendered_config(job, configuration)
    offloads = {"offload_optimizer", "offload_param"}
    zero = {n: v for n, v in found.get("zero_optimization", {}).items() if n not in offloads or "device" in keys}
    return canonical_name({**found, "zero_optimization": zero}, keys, f"z{at(found, STAGE) or 0}_")


def prepared(job: Job, working: Path) -> tuple[Path, Path]:
    """Creates the folders (exps, results). With `overwrite`, first deletes the results of an earlier autotuning.
    Errors: AutoscoutError (exit 2) if a folder to delete was not created by an autotuner."""
    found = settings(read_config(job))
    made = folders(found, working)
    for folder in made:
        strange = folder.is_dir() and any(folder.iterdir()) and not _ours(folder)
        if found.overwrite and folder.exists():
            if strange:
                raise AutoscoutError(
                    f"autotuning.overwrite would delete {folder}, which does not contain results of DeepSpeed's "
                    "autotuner; name a different folder",
                    2,
                )
            shutil.rmtree(folder)
        with writing.writing(folder):
            folder.mkdir(parents=True, exist_ok=True)
            (folder / MARK).touch()
    return made


def write(job: Job, working: Path, measured: Sequence[Measurement], best: Measurement | None, seconds: float) -> Path:
    """Writes a session's files; returns the path of the results folder. Errors: AutoscoutError if the folder cannot be
    written."""
    exps, results = prepared(job, working)
    typical = _typical(job, measured)
    for found in typical.values():
        _experiment(job, found, exps, results)
    if best is not None:
        config = rendered_config(job, best.configuration)
        _put(results / OPTIMAL, json.dumps(config, indent=2) + "\n")
        _put(results / "cmd_optimal.txt", command(job, best.configuration, results / OPTIMAL) + "\n")
        best = typical.get(best.configuration.id, best)
    _put(results / "summary.txt", summary(job, list(typical.values()), best, seconds))
    return results


def command(job: Job, configuration: Configuration, config: Path) -> str:
    """Returns the command line for a configuration whose ds_config is at the path `config`."""
    run = started(job, configuration, export_place(job))
    files = [name for name in run.files if name.endswith(".json")]
    words = [str(config) if files and word == files[0] else word for word in run.words]
    return shlex.join(words)


def summary(job: Job, measured: Sequence[Measurement], best: Measurement | None, seconds: float) -> str:
    """Returns a text table with a row per ZeRO stage and one for all stages: number of experiments, best value, name of
    the best experiment."""
    metric = job.objective.metric
    spaces: dict[str, list[Measurement]] = {}
    for m in measured:
        stage = at(rendered_config(job, m.configuration), STAGE) or 0
        spaces.setdefault(f"z{stage}", []).append(m)
    rows = [("tuning_space", "num_experiments", f"best_{metric}", "best_exp_name")]
    for space, runs in [*sorted(spaces.items()), ("global", list(measured))]:
        top = best if space == "global" else _best(job, runs)
        value = f"{top.metrics.get(metric, float('nan')):.6g}" if top else "none ran"
        rows.append((space, str(len(runs)), value, name_of(job, top.configuration) if top else ""))
    widths = [max(len(row[i]) for row in rows) for i in range(4)]
    lines = ["| " + " | ".join(cell.ljust(w) for cell, w in zip(row, widths, strict=True)) + " |" for row in rows]
    lines.insert(1, "|" + "|".join("-" * (w + 2) for w in widths) + "|")
    failed = [m for m in measured if m.status != "ok"]
    lines += ["", f"Tuning completed in {seconds:.0f} s. Total number of experiments: {len(measured)}."]
    lines += [f"{name_of(job, m.configuration)}: {m.status}: {m.evidence[:200]}" for m in failed]
    return "\n".join(lines) + "\n"


def metrics_of(job: Job, found: Measurement, batch: int) -> dict[str, float]:
    """Converts metrics to DeepSpeed's names and units: samples per second, latency in microseconds."""
    metrics: dict[str, float] = {}
    if found.metrics.get("samples_per_s"):
        metrics["throughput"] = found.metrics["samples_per_s"]
    if found.metrics.get("step_time_s"):
        metrics["latency"] = found.metrics["step_time_s"] * 1e6
        metrics.setdefault("throughput", batch / found.metrics["step_time_s"])
    if found.metrics.get("flops_per_gpu"):
        metrics["FLOPS_per_gpu"] = found.metrics["flops_per_gpu"]
    return metrics


def _experiment(job: Job, found: Measurement, exps: Path, results: Path) -> None:
    name, config = name_of(job, found.configuration), rendered_config(job, found.configuration)
    counts = [node.count for node in job.cluster.nodes]
    about: dict[str, Any] = {"name": name, "ds_config": config, "num_gpus": max(counts), "num_nodes": len(counts)}
    about["hostfile"] = job.cluster.hosts or None
    _put(exps / f"{name}.json", json.dumps(about))
    folder = results / name
    with writing.writing(folder):
        folder.mkdir(exist_ok=True)
    _put(folder / "ds_config.json", json.dumps(config))
    _put(folder / "exp.json", json.dumps({**about, "result_dir": str(folder)}))
    _put(folder / "cmd.txt", command(job, found.configuration, folder / "ds_config.json") + "\n")
    _put(folder / "stdout.log", f"{found.status}, measured by autoscout\n")
    _put(folder / "stderr.log", "" if found.status == "ok" else f"{found.status}: {found.evidence}\n")
    if found.status == "ok":
        _put(folder / "metrics.json", json.dumps(metrics_of(job, found, _batch(config))))
    else:
        (folder / "metrics.json").unlink(missing_ok=True)


def _typical(job: Job, measured: Iterable[Measurement]) -> dict[str, Measurement]:
    """Returns configuration id → its successful run with the median cost, or its last run if none succeeded."""
    runs: dict[str, list[Measurement]] = {}
    for m in measured:
        runs.setdefault(m.configuration.id, []).append(m)
    found = {}
    for of, all_of_it in runs.items():
        worked = [(c, i) for i, m in enumerate(all_of_it) if (c := cost(job.objective, m)) is not None]
        found[of] = all_of_it[sorted(worked)[(len(worked) - 1) // 2][1]] if worked else all_of_it[-1]
    return found


def _batch(config: Config) -> int:
    size = config.get("train_batch_size")
    return size if isinstance(size, int) else 1


def _best(job: Job, measured: Iterable[Measurement]) -> Measurement | None:
    costs = [(c, m) for m in measured if (c := cost(job.objective, m)) is not None]
    return min(costs, key=lambda pair: pair[0])[1] if costs else None


def _ours(folder: Path) -> bool:
    """Whether AutoScout or DeepSpeed's autotuner created the folder, as far as its files show."""
    if (folder / MARK).exists():
        return True
    left = [*folder.glob("*/exp.json"), *folder.glob("*/cmd.txt"), folder / "summary.txt", *folder.glob("*.json")]
    return any(path.exists() and (path.suffix != ".json" or "ds_config" in path.read_text()[:4000]) for path in left)


def _put(path: Path, text: str) -> None:
    with writing.writing(path):
        fresh = path.with_name(f".{path.name}.new")
        fresh.write_text(text)
        os.replace(fresh, path)
