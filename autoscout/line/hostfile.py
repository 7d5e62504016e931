"""Reads host files of DeepSpeed and MPI ("node1 slots=8" per line), and DeepSpeed's --include and --exclude."""

import re
from pathlib import Path

from kb.records import AutoscoutError

_LINE = re.compile(r"^([\w.@:-]+)(?:\s+(?:slots|slots_per_host)\s*=\s*(\S+))?(?:\s+max[_-]slots\s*=\s*\d+)?\s*$")
_MOST = 4096  # largest number of slots on one host


def read(path: Path) -> dict[str, int]:
    """Returns the slots of each host, in the file's order. Errors: AutoscoutError (exit 2) naming the line."""
    try:
        lines = path.read_text(encoding="utf-8-sig").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        why = error.strerror if isinstance(error, OSError) else "the file is not text"
        raise AutoscoutError(f"cluster.hosts: {path} cannot be read ({why})", 2) from error
    found: dict[str, int] = {}
    for number, line in enumerate(lines, 1):
        bare = line.partition("#")[0].strip()
        if not bare:
            continue
        parts = _LINE.match(bare)
        slots = parts[2] or "1" if parts else "0"
        if parts is None or not slots.isdecimal() or not 0 < int(slots) <= _MOST:
            raise AutoscoutError(
                f"{path}, line {number}: '{bare[:80]}' does not have the form 'HOST slots=N' with N from 1 to {_MOST}",
                2,
            )
        if parts[1] in found:
            raise AutoscoutError(f"{path}, line {number}: {parts[1]} is named twice; write one line per host", 2)
        found[parts[1]] = int(slots)
    if not found:
        raise AutoscoutError(f"{path}: the file names no host; write 'HOST slots=N', one per line", 2)
    return found


def part(slots: dict[str, int], include: str = "", exclude: str = "") -> dict[str, list[int]]:
    """Returns host → indices of the devices that remain after DeepSpeed's --include or --exclude ("node1@node2:0,2").

    Errors: AutoscoutError (exit 2) for an unknown host or device, or if both options are given."""
    if include and exclude:
        raise AutoscoutError("cluster.include and cluster.exclude are both set; remove one of the two", 2)
    everything = {host: list(range(count)) for host, count in slots.items()}
    if include:
        chosen = _named(include, everything, "include")
        return {host: chosen[host] for host in everything if host in chosen}
    left = dict(everything)
    for host, devices in _named(exclude, everything, "exclude").items() if exclude else ():
        left[host] = [index for index in left[host] if index not in devices]
    found = {host: devices for host, devices in left.items() if devices}
    if not found:
        raise AutoscoutError(f"cluster.exclude = '{exclude}' excludes all devices; keep at least one", 2)
    return found


def _named(words: str, known: dict[str, list[int]], key: str) -> dict[str, list[int]]:
    found: dict[str, list[int]] = {}
    for word in words.split("@"):
        host, _, listed = word.strip().partition(":")
        if host not in known:
            raise AutoscoutError(f"cluster.{key}: there is no host '{host}'; the hosts are {', '.join(known)}", 2)
        indices = listed.split(",") if listed else [str(index) for index in known[host]]
        for index in indices:
            if not index.strip().isdecimal() or int(index) not in known[host]:
                raise AutoscoutError(
                    f"cluster.{key}: {host} has devices 0 to {known[host][-1]}, so there is no device '{index}'", 2
                )
        found[host] = sorted({*found.get(host, []), *(int(index) for index in indices)})
    return found
