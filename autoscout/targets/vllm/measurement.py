"""Creates a serving experiment's measurement from the files in its folder."""

import json
from pathlib import Path
from typing import Any

import msgspec

from autoscout.job.metrics import HIGHEST_RATE
from autoscout.running import power
from autoscout.running.results import About
from autoscout.targets.vllm import load_plan
from kb.records import Configuration, Job, Measurement


def measurement(folder: Path) -> Measurement | None:
    """Returns the measurement of a finished experiment from its folder; None if the result is incomplete, or refers to
    an experiment that no longer exists."""
    try:
        experiment = json.loads((folder / "experiment.json").read_bytes())
        about = msgspec.convert(experiment["about"], About)
        measured = json.loads((folder / "rank-0.json").read_bytes())
    except (OSError, KeyError, ValueError, msgspec.ValidationError):
        return None
    cost = measured.get("took_s", 0.0)
    own = {
        "configuration": about.configuration,
        "name": about.name,
        "context": about.context,
        "environment": about.environment,
        "cost_s": cost,
        "device_s": cost * about.ranks,
        "at": measured["time"],
    }
    if same := measured.get("same_as"):
        found = measurement(folder.parent / same)
        same_engine = f"vLLM makes the same engine as for {found.name}" if found else ""
        evidence = f"{same_engine}, so this configuration is not run again" if found else ""
        return msgspec.structs.replace(found, **own, evidence=evidence) if found else None
    job = msgspec.convert(experiment["job"], Job)
    passes = msgspec.convert(measured["passes"], list[load_plan.Pass])
    failed = load_plan.failed(passes)
    metrics = load_plan.metrics(passes, job)
    if not metrics["cpu_s"]:
        del metrics["cpu_s"]  # 0 means that it was not measured, as for servers
    metrics |= load_plan.per_device(metrics, job, about.configuration)
    evidence = failed or load_plan.saturation(passes, experiment["plan"]["arrival_s"])
    if load_plan.searches_rate(job):
        evidence = failed or load_plan.of_search(measured, metrics)
        metrics |= {HIGHEST_RATE: measured["max_rate"]} if measured["max_rate"] else {}
    known = _json(folder / "effective.json") | _json(folder / "server.json")
    for name in ("peak_memory_gib", "kv_cache_tokens"):
        if value := measured.get(name) or known.get(name):
            metrics[name] = float(value)
    if not failed:
        metrics["kv_needed_tokens"] = load_plan.kv_needed_tokens(passes)
    return Measurement(
        **own,
        status="error" if failed else "ok",
        metrics={} if failed else metrics,
        evidence=evidence,
        iterations_s=[p.duration_s for p in passes],
        conditions={"warmup_iterations": float(measured["warmup"])} if "warmup" in measured else {},
        losses=[float(token) for answer in measured["guard"] for token in answer],
    )


def engines(experiments: Path, configuration: Configuration) -> dict[str, str]:
    """Returns engine identity → folder name of the first experiment with this engine and the power limit of
    `configuration`. Experiments with `configuration` itself are excluded, because they are repeated on purpose."""
    found: dict[str, str] = {}
    for path in sorted(experiments.glob("*/effective.json")):
        knobs = _json(path.with_name("experiment.json")).get("about", {}).get("configuration", {}).get("knobs")
        if knobs is None or knobs.get(power.KNOB) != configuration.knobs.get(power.KNOB):
            continue
        if knobs != configuration.knobs and "passes" in _json(path.with_name("rank-0.json")):
            found.setdefault(_json(path)["identity"], path.parent.name)
    return found


def _json(path: Path) -> dict[str, Any]:
    try:
        return json.loads(path.read_bytes())
    except (OSError, ValueError):
        return {}
