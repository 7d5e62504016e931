"""The tuning engine: spaces, search, simulators, profilers, sessions. It contains no screens and no SQL.

Users' scripts should only use the names exported here (docs/api.md); everything else may change.
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from autoscout.search.strategy import Kind as Strategy
    from autoscout.search.strategy import register, strategy
    from autoscout.targets.jobs import JobSpace as Space
    from autoscout.targets.target import Target
    from autoscout.tuning.study import Study

__all__ = ["Space", "Strategy", "Study", "Target", "register", "strategy"]

# Imported on first use, so that `autoscout --help` does not wait for numpy.
_WHERE = {
    "Strategy": ("autoscout.search.strategy", "Kind"),
    "Study": ("autoscout.tuning.study", "Study"),
    "register": ("autoscout.search.strategy", "register"),
    "Space": ("autoscout.targets.jobs", "JobSpace"),
    "Target": ("autoscout.targets.target", "Target"),
    "strategy": ("autoscout.search.strategy", "strategy"),
}


def __getattr__(name: str) -> Any:
    if name not in _WHERE:
        raise AttributeError(f"module 'autoscout' has no attribute '{name}'")
    module, attribute = _WHERE[name]
    return getattr(importlib.import_module(module), attribute)
