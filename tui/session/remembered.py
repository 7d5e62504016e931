"""What the screens remember from one time to the next: files of the user's state folder."""

import contextlib
import json
import os
from pathlib import Path
from typing import Any


def remembered(name: str, otherwise: Any) -> Any:
    """What was kept under a name; `otherwise` where there is nothing of its kind."""
    try:
        found = json.loads(_file(name).read_text())
    except (OSError, ValueError):
        return otherwise
    return found if isinstance(found, type(otherwise)) else otherwise


def remember(name: str, what: Any) -> None:
    file = _file(name)
    with contextlib.suppress(OSError):  # screens without a memory still work
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(json.dumps(what))


def state_folder() -> Path:
    """Of the user, for AutoScout alone."""
    return Path(os.environ.get("XDG_STATE_HOME") or Path.home() / ".local/state") / "autoscout"


def _file(name: str) -> Path:
    return state_folder() / name
