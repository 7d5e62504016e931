"""How this machine is named in what is stored and shared."""

import os
import socket

from kb.records import content_hash


def hashed_host(name: str) -> str:
    return f"host-{content_hash(name)[:8]}"


def host() -> str:
    """This machine's name as sessions record it. $AUTOSCOUT_HOST: `name` (default), `hash`, or `none`."""
    wanted = os.environ.get("AUTOSCOUT_HOST", "name")
    name = socket.gethostname()
    return {"hash": hashed_host(name), "none": ""}.get(wanted, name)
