"""The user's folders, as defined by the XDG base directory specification."""

import os
import pwd
from pathlib import Path

from kb.refusal import AutoscoutError


def user_folder(variable: str, usual: str) -> Path:
    """`$XDG_…` if that is an absolute path (others are ignored, as specified), else `usual` in the home directory.

    Errors: AutoscoutError for a user without a home directory."""
    path = Path(os.environ.get(variable, ""))
    return path if path.is_absolute() else _home(variable) / usual


def _home(instead: str) -> Path:
    path = Path(os.environ.get("HOME", ""))
    if path.is_absolute():
        return path
    try:
        return Path(pwd.getpwuid(os.getuid()).pw_dir)
    except KeyError:
        raise AutoscoutError(
            f"this user has no home folder; set HOME or {instead} to a folder that you may write to"
        ) from None
