"""The files of settings that a server's line names: YAML, of which JSON is a part."""

from pathlib import Path
from typing import Any

from autoscout.job.yaml_text import settings
from autoscout.line.flags import said
from autoscout.targets.command.preset import Served


def files_named(words: list[str], served: Served) -> list[str]:
    values = (said(words, flag) for flag in served.unread)
    return [str(value) for value in values if value is not None]


def settings_in(name: str) -> dict[str, Any]:
    """Errors: OSError, ValueError."""
    return settings(Path(name).read_text(encoding="utf-8-sig"))
