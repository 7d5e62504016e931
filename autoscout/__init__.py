"""Reasoning: spaces, search, simulators, profilers, sessions. No screens, no SQL strings.

space = autoscout.Space.load("job.toml")
strategy = autoscout.strategy("autoscout", space, seed=0)
batch = strategy.ask()
strategy.tell([measure(configuration) for configuration in batch])
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from autoscout.search.strategy import strategy
    from autoscout.targets.jobs import JobSpace as Space
    from autoscout.targets.target import Target

__all__ = ["Space", "Target", "strategy"]

# Imported on first use: `autoscout --help` must not pay for numpy and networkx.
_WHERE = {
    "Space": ("autoscout.targets.jobs", "JobSpace"),
    "Target": ("autoscout.targets.target", "Target"),
    "strategy": ("autoscout.search.strategy", "strategy"),
}


def __getattr__(name: str) -> Any:
    if name not in _WHERE:
        raise AttributeError(f"module 'autoscout' has no attribute '{name}'")
    module, attribute = _WHERE[name]
    return getattr(importlib.import_module(module), attribute)
