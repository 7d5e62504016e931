"""Common parts of the shadow runs (runs of an engine's own code without a GPU) of all targets: the request, cached
answers next to the knowledge base, checks of ranks, and the memory of the devices that a configuration uses."""

from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, Protocol, TypeVar

import msgspec

from autoscout.job.device_names import is_cpu
from autoscout.simulate.hardware.capacity import capacity
from autoscout.simulate.hardware.device import hardware
from autoscout.simulate.shadow.served import ServingShadow
from autoscout.simulate.shadow.traced import Shadow
from kb import shadowed, traces
from kb.records import AutoscoutError, Configuration, Job, Node

_CONTEXT_GIB = 0.7  # GiB used by the driver and communicators on a device whose constants are unknown


class ShadowAsked(msgspec.Struct, frozen=True):
    """A request for a shadow run. `kb`: the knowledge base next to which answers are cached; None: no cache. `limit_s`:
    time limit in seconds; 0 allows only cached answers. `ranks`: the ranks to trace; [] for one rank of each distinct
    kind. `parts`: whether to compose the result from traces of small jobs, which several configurations share.
    `losses`: (seconds after the start of the load, index of the engine that fails at that time)."""

    job: Job
    configuration: Configuration
    name: str = ""
    kb: Path | None = None
    limit_s: float = 300.0
    ranks: list[int] = []
    stopping: Callable[[], bool] = lambda: False
    parts: bool = False
    losses: list[tuple[float, int]] = []


class Answer(Protocol):
    @property
    def verdict(self) -> str: ...


A = TypeVar("A", bound=Answer)


def answered(
    keys: list[str], kind: type[A], asked: ShadowAsked, ask: Callable[[list[int]], Iterable[A]]
) -> tuple[list[A], int]:
    """Returns (answers in the order of the keys, number of cached answers). `ask`: yields the answers that are not
    cached, given their indices. Each answer is cached when it arrives, except after a timeout. Errors: AutoscoutError
    if `asked.limit_s` is 0 and an answer is not cached."""
    kb = asked.kb
    found: list[A | None] = [traces.known(kb, key, kind) if kb is not None else None for key in keys]
    unknown = [i for i, known in enumerate(found) if known is None]
    if unknown and asked.limit_s <= 0:
        raise AutoscoutError("the configuration has not been traced yet; run `autoscout shadow`")
    if unknown:
        for i, answer in zip(unknown, ask(unknown), strict=True):
            found[i] = answer
            if kb is not None and answer.verdict != "timeout":
                traces.keep(kb, keys[i], answer)  # type: ignore[arg-type]
    return [one for one in found if one is not None], len(keys) - len(unknown)


def remember(asked: ShadowAsked, found: Shadow | ServingShadow, columns: dict[str, Any]) -> None:
    """Stores the result of a new shadow run in the knowledge base's table `shadow`, for SQL queries. `columns`: those
    that depend on the engine. Errors: AutoscoutError."""
    if asked.kb is None or asked.limit_s <= 0 or found.verdict == "timeout":
        return
    versions = ", ".join(f"{package} {version}" for package, version in found.versions.items())
    alike = {name: getattr(found, name) for name in ("name", "world", "verdict", "sentence", "device_gib", "cpu_s")}
    shadowed.remember(asked.kb, asked.job, asked.configuration, {"versions": versions, **alike, **columns})


def existing(ranks: list[int], world: int) -> None:
    """Checks that the ranks exist. Errors: AutoscoutError (exit 2)."""
    if outside := [r for r in ranks if not 0 <= r < world]:
        raise AutoscoutError(f"--rank {outside[0]}: the configuration has the ranks 0 to {world - 1}", 2)


def room(nodes: Sequence[Node]) -> tuple[float | None, float]:
    """Returns (GiB of the smallest device, GiB that the driver and communicators use on it); (None, 0) for CPUs."""
    if all(is_cpu(node.device) for node in nodes):
        return None, 0.0
    sizes, overhead = [], 0.0
    for node in nodes:
        known = hardware(node.device)
        sizes.append(capacity(node))
        overhead = max(overhead, known.context_gib if known else _CONTEXT_GIB)
    return (min(sizes) or None), overhead
