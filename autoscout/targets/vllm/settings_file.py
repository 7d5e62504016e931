"""Converts the file of `vllm serve --config FILE.yaml` to flags, like vLLM (utils/argparse_utils.py)."""

import json
from typing import Any

from autoscout.job.yaml_text import documents
from autoscout.line.launch_line import Line


def with_file(line: Line, notes: list[str]) -> Line:
    """Returns the line with `--config FILE.yaml` replaced by the file's settings. They are placed before the line's
    flags, which override them."""
    if line.value("--config") is None:
        return line
    name, others = str(line.value("--config")), line.without("--config").words
    try:
        settings = _settings(line.text_of(name))
        flags = [word for key, value in settings.items() if key != "model" for word in _flag_words(f"--{key}", value)]
    except (OSError, ValueError, RecursionError) as error:
        notes.append(f"launch.current: write the settings of {name} as flags; the file cannot be read here ({error})")
        return line
    positional = bool(others) and not others[0].startswith("-")
    model = [others[0]] if positional else [str(settings["model"])] if "model" in settings else []
    return line.of([*model, *flags, *others[positional:]])


def _settings(text: str) -> dict[str, Any]:
    """Parses the file. Errors: ValueError."""
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
