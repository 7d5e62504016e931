"""Finds a model's shape and vocabulary in its files on this machine."""

import os
from pathlib import Path
from typing import Any

from autoscout.job.hf_config import shape_of
from autoscout.job.published_models import published
from kb import door
from kb.records import AutoscoutError, Task


def folder_of(named: str) -> Path | None:
    """Returns the folder with a model's config.json: `named` itself, or the model's snapshot in the Hugging Face cache.
    None if there is neither."""
    home = Path(os.environ.get("HF_HOME") or "~/.cache/huggingface").expanduser()
    cached = sorted((home / "hub" / f"models--{named.replace('/', '--')}" / "snapshots").glob("*/config.json"))
    return next((path.parent for path in [Path(named) / "config.json", *cached] if path.is_file()), None)


def of_name(named: str, notes: list[str], task: Task = "serve") -> dict[str, Any]:
    """Returns the [model] table for the model that a launch line names: from its folder, its config.json, the Hugging
    Face cache, or the known model of this name (for training, without the format of stored weights). {} if nothing is
    found; a note is then added."""
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
    """Returns the [model] table for a config.json. If the shape is unsupported, returns {} and adds a note with the
    reason. `lost`: the consequence, as a text for the note, such as "nothing is predicted"."""
    try:
        found = shape_of(config, task)
    except AutoscoutError as error:
        notes.append(f"model: {lost}: {str(error).removeprefix(f'{config}: ')}")
        return {}
    if "latent" in found and task != "serve":
        notes.append(
            f"model: {lost}: the model has latent attention, which predictions cover only for Megatron-core and for "
            "serving"
        )
        return {}
    # In the cache, config.json is a link to a file named by a hash, so the last component must not be resolved.
    return {"from": str(config.parent.resolve() / config.name)}


def tokens_of(named: str) -> int:
    """Returns the number of tokens in a model's tokenizer.json, else the vocabulary size in the model's config.json; 0
    if neither file is on this machine. `named`: a folder, or the name of a model in the Hugging Face cache."""
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
