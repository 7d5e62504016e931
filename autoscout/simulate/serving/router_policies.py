"""The policies of existing routers, by the values of the knob `router` (routers.toml)."""

import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

_ROUTERS = tomllib.loads(Path(__file__).with_name("routers.toml").read_text())


def policy_of(router: str) -> dict[str, Any]:
    return _ROUTERS[router]


def rules_of(columns: Mapping[str, Any], n: int) -> np.ndarray:
    """(n,) the rule by which a configuration's router assigns requests."""
    return np.array([policy_of(name)["deals"] for name in routers(columns, n)])


def own_servers(columns: Mapping[str, Any], n: int) -> np.ndarray:
    """(n,) whether the router is a program in front of servers with one engine each."""
    return np.array([bool(policy_of(name)["exports"]) for name in routers(columns, n)])


def routers(columns: Mapping[str, Any], n: int) -> list[str]:
    """The value of the knob `router` in each of n configurations."""
    return np.broadcast_to(np.asarray(columns.get("router", "engine"), dtype=str).ravel(), (n,)).tolist()
