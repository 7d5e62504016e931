"""What a server's line and the knobs of its preset mean to the serving simulator: its `[simulated]`, and flags that no
knob sets."""

import shlex
from pathlib import Path
from typing import Any

from autoscout.job.model_folder import described, folder_of
from autoscout.job.published_models import published
from autoscout.job.yaml_text import documents
from autoscout.targets.command.flags import said
from autoscout.targets.command.preset import Preset, Served
from kb import door
from kb.records import Job


def simulated(job: Job, preset: Preset) -> dict[str, str]:
    """Expressions by the simulator's columns; {} where `lacking` says why."""
    if preset.served is None or lacking(job, preset):
        return {}
    words = shlex.split(job.launch.current)
    told = {column: said(words, flag) for flag, column in preset.served.columns.items()}
    if told.get("ep") == 1:  # of one device: each has a part of every expert
        told["ep"] = None
    own = {column: repr(value) for column, value in told.items() if value is not None}
    return preset.simulated | own | _attention_dp(_settings(words, preset.served))


def _settings(words: list[str], served: Served) -> dict[str, Any]:
    """What the line's files of settings say, of those that are here."""
    found: dict[str, Any] = {}
    for path in (Path(str(said(words, flag))) for flag in served.unread):
        try:
            pages = documents(path.read_text(encoding="utf-8"))
        except (OSError, ValueError):
            continue
        found |= next((page for page in pages if isinstance(page, dict)), {})
    return found


def _attention_dp(settings: dict[str, Any]) -> dict[str, str]:
    """TensorRT-LLM's devices that each have the attention of requests of their own, and share experts; and how long
    they wait for each other's prompts (LlmArgs, AttentionDpConfig)."""
    if settings.get("enable_attention_dp") is not True:
        return {}
    told, balance = {"tp": "1", "dp": "tp"}, settings.get("attention_dp_config")
    if isinstance(balance, dict) and balance.get("enable_balance") is True:
        waits = balance.get("timeout_iters", 50), balance.get("batching_wait_iters", 10)
        names = ("adp_timeout_iters", "adp_wait_iters")
        told |= {name: repr(value) for name, value in zip(names, waits, strict=True) if isinstance(value, int)}
    return told


def lacking(job: Job, preset: Preset) -> str:
    """ "" or why nothing of a server is predicted, as a clause."""
    if preset.served is None:
        return ""
    if not job.model.layers:
        return "no [model]"
    words = shlex.split(job.launch.current)
    flag = next((flag for flag in preset.served.unpriced if said(words, flag) is not None), "")
    return f"nothing models {flag}" if flag else ""


def not_read(job: Job, served: Served) -> list[str]:
    """Flags of the line that name files whose settings predictions do not know."""
    words = shlex.split(job.launch.current)
    but = " but attention data parallelism" if _attention_dp(_settings(words, served)) else ""
    return [f"what {flag} names{but}" for flag in served.unread if said(words, flag) is not None]


def model_of_line(named: str, notes: list[str]) -> dict[str, Any]:
    """[model] for the served model: from a folder, the download cache, or a known shape of that name; {} with a note
    where there is none."""
    if (folder := folder_of(named)) is not None:
        return described(folder / "config.json", "serve", "nothing is predicted", notes)
    if known := published(named):
        return known
    notes.append(
        f"model: {door.shown(named)} is not here; to have it predicted write [model] with from = its config.json"
    )
    return {}
