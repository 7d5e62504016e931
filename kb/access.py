"""Permissions of files that we write: in a group's folder, members of the group can write them, and a file that
replaces another one is accessible to the same users."""

import contextlib
import os
import stat
import struct
from pathlib import Path

_ACL = "system.posix_acl_access"
_VERSION, _ENTRY = struct.pack("<I", 2), struct.Struct("<HHI")  # as in the kernel's posix_acl_xattr.h
_OWNER, _USER, _GROUP, _NAMED_GROUP, _MASK, _OTHER = 1, 2, 4, 8, 16, 32
_NO_ID = 0xFFFFFFFF

_List = dict[tuple[int, int], int]  # an access control list: (tag, id) → permissions


def with_group(folder: Path) -> None:
    """If `folder` belongs to a group (it is setgid and group-writable), makes all files that this process will create
    group-writable."""
    with contextlib.suppress(OSError):
        if folder.stat().st_mode & (stat.S_ISGID | stat.S_IWGRP) == stat.S_ISGID | stat.S_IWGRP:
            os.umask(os.umask(0o077) & ~0o070)


def like(new: Path, old: Path) -> None:
    """Gives the file `new` the owner, group, permissions and access control list (ACL) of `old`. Where this process may
    not change the owner or the group, ACL entries give the former owner and group the same access."""
    was = old.stat()
    for ids in ((was.st_uid, was.st_gid), (-1, was.st_gid)):
        with contextlib.suppress(OSError):
            os.chown(new, *ids)
            break
    now, mode = new.stat(), stat.S_IMODE(was.st_mode)
    before, after = (was.st_uid, was.st_gid), (now.st_uid, now.st_gid)
    listed = _listed(old, mode)
    if before != after:
        listed = _with_former(listed, before, after)
        if before[1] != after[1]:  # the new group must not get more access than other users
            mode = mode & ~0o070 | (mode & 0o007) << 3
    with contextlib.suppress(OSError):  # some filesystems have no permissions
        os.chmod(new, mode)
    with contextlib.suppress(OSError):  # some filesystems have no ACLs
        os.setxattr(
            new, _ACL, _VERSION + b"".join(_ENTRY.pack(tag, may, who) for (tag, who), may in sorted(listed.items()))
        )


def put(new: Path, old: Path) -> None:
    """Replaces the file `old` by `new`, with the same access."""
    if old.exists():
        like(new, old)
    os.replace(new, old)


def _listed(path: Path, mode: int) -> _List:
    """A file's ACL; made from `mode` if the file has none."""
    with contextlib.suppress(OSError):
        return {(tag, who): may for tag, may, who in _ENTRY.iter_unpack(os.getxattr(path, _ACL)[len(_VERSION) :])}
    return {(tag, _NO_ID): mode >> shift & 7 for tag, shift in ((_OWNER, 6), (_GROUP, 3), (_OTHER, 0))}


def _with_former(listed: _List, before: tuple[int, int], after: tuple[int, int]) -> _List:
    """An ACL in which named entries preserve the access of the former owner and group after the file got new ones."""
    mask = listed.get((_MASK, _NO_ID), 7)
    made = {key: may & mask if key[0] in (_USER, _GROUP, _NAMED_GROUP) else may for key, may in listed.items()}
    if before[0] != after[0]:
        made[_USER, before[0]] = made[_OWNER, _NO_ID]
    if before[1] != after[1]:
        made[_NAMED_GROUP, before[1]] = made[_GROUP, _NO_ID]
        made[_GROUP, _NO_ID] = made[_OTHER, _NO_ID]
    made[_MASK, _NO_ID] = 0
    for (tag, _), may in list(made.items()):
        made[_MASK, _NO_ID] |= may if tag in (_USER, _GROUP, _NAMED_GROUP) else 0
    return made
