"""The file of a `vllm serve --config FILE.yaml`, as the flags that vLLM makes of it (utils/argparse_utils.py)."""

import json
from pathlib import Path
from typing import Any


def with_file(words: list[str], notes: list[str]) -> list[str]:
    """The server's words with the settings of a `--config FILE.yaml` in its place, before those that override them."""
    at = next((i for i, word in enumerate(words) if word.partition("=")[0] == "--config"), None)
    if at is None:
        return words
    name = words[at].partition("=")[2] or "".join(words[at + 1 : at + 2])
    others = [*words[:at], *words[at + (1 if "=" in words[at] else 2) :]]
    try:
        settings = _yaml(Path(name).read_text(encoding="utf-8-sig"))
        said = [word for key, value in settings.items() if key != "model" for word in _flag_words(f"--{key}", value)]
    except (OSError, ValueError, RecursionError) as error:
        notes.append(f"launch.current: write what {name} says as flags; it cannot be read here ({error})")
        return words
    positional = bool(others) and not others[0].startswith("-")
    model = [others[0]] if positional else [str(settings["model"])] if "model" in settings else []
    return [*model, *said, *others[positional:]]


def _yaml(text: str) -> dict[str, Any]:
    """Errors: ValueError, also without PyYAML."""
    try:
        import yaml
    except ImportError as error:
        raise ValueError("the package pyyaml is not installed") from error
    try:
        found = yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise ValueError("it is no YAML") from error
    if not isinstance(found, dict):
        raise ValueError("it has no settings")
    return found


def _flag_words(flag: str, value: Any) -> list[str]:
    if isinstance(value, bool):
        return [flag if value else flag.replace("--", "--no-", 1)]
    if isinstance(value, list):
        return [flag, *map(str, value)] if value else []
    return [flag, json.dumps(value) if isinstance(value, dict) else str(value)]
