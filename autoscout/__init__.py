"""Reasoning: spaces, search, simulators, profilers, sessions. No screens, no SQL strings.

space = autoscout.Space.load("job.toml")
strategy = autoscout.strategy("autoscout", space, seed=0)
batch = strategy.ask()
strategy.tell([measure(configuration) for configuration in batch])
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from autoscout.search.strategy import strategy
    from autoscout.space.graph import Space

__all__ = ["Space", "strategy"]


def __getattr__(name: str) -> Any:
    # Imported on first use: `autoscout --help` must not pay for numpy and networkx.
    if name == "Space":
        from autoscout.space.graph import Space

        return Space
    if name == "strategy":
        from autoscout.search.strategy import strategy

        return strategy
    raise AttributeError(name)
