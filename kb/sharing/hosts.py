"""How this machine is named in what is stored and shared."""

import os
import socket

from kb.records import content_hash


def hashed_host(name: str) -> str:
    return f"host-{content_hash(name)[:8]}"


def host() -> str:
    """This machine's name as sessions record it. $AUTOSCOUT_HOST: `name` (default), `hash`, or `none`."""
    return named(socket.gethostname())


def named(name: str) -> str:
    """A machine of this cluster, likewise."""
    wanted = os.environ.get("AUTOSCOUT_HOST", "name")
    return {"hash": hashed_host(name), "none": ""}.get(wanted, name)
