"""Values that the screens store between runs, as files in the user's state folder (XDG)."""

import contextlib
import json
from pathlib import Path
from typing import Any

from kb.user_folders import user_folder


def remembered(name: str, otherwise: Any) -> Any:
    """The value stored under a name; `otherwise` if there is none, or it has another type."""
    try:
        found = json.loads(_file(name).read_text())
    except (OSError, ValueError):
        return otherwise
    return found if isinstance(found, type(otherwise)) else otherwise


def remember(name: str, what: Any) -> None:
    file = _file(name)
    with contextlib.suppress(OSError):  # the screens also work if nothing can be stored
        file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        file.write_text(json.dumps(what))


def state_folder() -> Path:
    """AutoScout's own folder in the user's state folder."""
    return user_folder("XDG_STATE_HOME", ".local/state") / "autoscout"


def _file(name: str) -> Path:
    return state_folder() / name
