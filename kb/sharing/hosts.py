"""Names of machines in stored and shared data, which may be hashed or left out for privacy."""

import os
import socket

from kb.records import content_hash


def hashed_host(name: str) -> str:
    return f"host-{content_hash(name)[:8]}"


def host() -> str:
    """This machine's name as sessions record it. $AUTOSCOUT_HOST: its `hash` (the default), its `name`, or `none`."""
    return named(socket.gethostname())


def named(name: str) -> str:
    """Like `host`, for another machine of the cluster."""
    wanted = os.environ.get("AUTOSCOUT_HOST", "hash")
    return {"name": name, "none": ""}.get(wanted, hashed_host(name))
