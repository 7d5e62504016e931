"""Who may read and write a file that takes the place of another: whoever might before."""

import contextlib
import os
import shutil
from pathlib import Path

_ACL = "system.posix_acl_access"


def like(new: Path, old: Path) -> None:
    """Gives `new` the group, the permissions and the access list of `old`, as far as we may."""
    with contextlib.suppress(OSError):  # a group that we are not in
        os.chown(new, -1, old.stat().st_gid)
    with contextlib.suppress(OSError):  # another person's file
        shutil.copymode(old, new)
        os.setxattr(new, _ACL, os.getxattr(old, _ACL))


def put(new: Path, old: Path) -> None:
    """Puts `new` in the place of `old`, for the same people."""
    if old.exists():
        like(new, old)
    os.replace(new, old)
