"""How this machine is named in stored and shared data."""

import os
import socket

from kb.records import content_hash


def hashed_host(name: str) -> str:
    return f"host-{content_hash(name)[:8]}"


def host() -> str:
    """This machine's name as sessions record it. $AUTOSCOUT_HOST: `hash` (default), `name`, or `none`."""
    return named(socket.gethostname())


def named(name: str) -> str:
    """Like `host`, for any machine of the cluster by its name."""
    wanted = os.environ.get("AUTOSCOUT_HOST", "hash")
    return {"name": name, "none": ""}.get(wanted, hashed_host(name))
