"""The file of a `vllm serve --config FILE.yaml`, as the flags that vLLM makes of it (utils/argparse_utils.py)."""

import json
from pathlib import Path
from typing import Any

from autoscout.job.yaml_text import documents


def with_file(words: list[str], notes: list[str]) -> list[str]:
    """The server's words with the settings of a `--config FILE.yaml` in its place, before those that override them."""
    at = next((i for i, word in enumerate(words) if word.partition("=")[0] == "--config"), None)
    if at is None:
        return words
    name = words[at].partition("=")[2] or "".join(words[at + 1 : at + 2])
    others = [*words[:at], *words[at + (1 if "=" in words[at] else 2) :]]
    try:
        settings = _settings(Path(name).read_text(encoding="utf-8-sig"))
        said = [word for key, value in settings.items() if key != "model" for word in _flag_words(f"--{key}", value)]
    except (OSError, ValueError, RecursionError) as error:
        notes.append(f"launch.current: write what {name} says as flags; it cannot be read here ({error})")
        return words
    positional = bool(others) and not others[0].startswith("-")
    model = [others[0]] if positional else [str(settings["model"])] if "model" in settings else []
    return [*model, *said, *others[positional:]]


def _settings(text: str) -> dict[str, Any]:
    """Errors: ValueError."""
    found = documents(text)
    if len(found) != 1 or not isinstance(found[0], dict):
        raise ValueError("it has no settings")
    return found[0]


def _flag_words(flag: str, value: Any) -> list[str]:
    if isinstance(value, bool):
        return [flag if value else flag.replace("--", "--no-", 1)]
    if isinstance(value, list):
        return [flag, *map(str, value)] if value else []
    return [flag, json.dumps(value) if isinstance(value, dict) else str(value)]
