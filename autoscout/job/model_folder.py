"""A model's files on this machine: its shape, and the number of tokens that its tokenizer knows."""

import os
from pathlib import Path
from typing import Any

from autoscout.job.hf_config import shape_of
from autoscout.job.published_models import published
from kb import door
from kb.records import AutoscoutError, Task


def folder_of(named: str) -> Path | None:
    """The folder with a model's config.json: the named folder, or the one in the download cache."""
    home = Path(os.environ.get("HF_HOME") or "~/.cache/huggingface").expanduser()
    cached = sorted((home / "hub" / f"models--{named.replace('/', '--')}" / "snapshots").glob("*/config.json"))
    return next((path.parent for path in [Path(named) / "config.json", *cached] if path.is_file()), None)


def of_name(named: str, notes: list[str], task: Task = "serve") -> dict[str, Any]:
    """[model] for the model that a line serves or trains: from a folder, a config.json, the download cache, or a known
    model of that name (for training without its stored format); {} with a note if nothing is found."""
    folder = folder_of(named)
    path = Path(named) if folder is None else folder / "config.json"
    if path.is_file():
        return described(path, task, "nothing is predicted", notes)
    if known := published(named):
        return known if task == "serve" else {"preset": known["preset"]}
    notes.append(
        f"model: {door.shown(named)} is not on this machine; to predict it, write [model] with from = its config.json"
    )
    return {}


def described(config: Path, task: Task, lost: str, notes: list[str]) -> dict[str, Any]:
    """[model] of a server's or a DeepSpeed line, from a config.json; {} if we do not support the shape, with a note on
    what is `lost`, and why."""
    try:
        found = shape_of(config, task)
    except AutoscoutError as error:
        notes.append(f"model: {lost}: {str(error).removeprefix(f'{config}: ')}")
        return {}
    if "latent" in found and task != "serve":
        notes.append(
            f"model: {lost}: it has latent attention, which is modelled for Megatron-core and for servers only"
        )
        return {}
    # In a download cache the file is a link to one whose name means nothing to people.
    return {"from": str(config.parent.resolve() / config.name)}


def tokens_of(named: str) -> int:
    """The number of tokens that a model's tokenizer knows: len() of the tokenizer.json in the given folder, or in the
    model's; else the vocabulary in config.json; 0 if neither can be read here."""
    for folder in (Path(named), folder_of(named)):
        if folder is None:
            continue
        tokenizer = _read(folder / "tokenizer.json")
        known = tokenizer.get("model", {}).get("vocab", ()) if isinstance(tokenizer.get("model"), dict) else ()
        added = [each.get("id") for each in tokenizer.get("added_tokens", []) if isinstance(each, dict)]
        words = known.values() if isinstance(known, dict) else range(len(known))
        if known:
            return len({*words, *added})
        if isinstance(count := _read(folder / "config.json").get("vocab_size"), int) and count > 0:
            return count
    return 0


def _read(path: Path) -> dict[str, Any]:
    try:
        found = door.parsed_json(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}
