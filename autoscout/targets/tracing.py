"""What shadows of every target have in common: answers that are known from beside the knowledge base, ranks that there
are, and the room of the devices that a configuration uses."""

from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Protocol, TypeVar

from autoscout.job.device_names import is_cpu
from autoscout.simulate.hardware.capacity import capacity
from autoscout.simulate.hardware.device import hardware
from kb import traces
from kb.records import AutoscoutError, Node

_CONTEXT_GIB = 0.7  # of a device without constants: what the driver and the communicators hold


class Answer(Protocol):
    @property
    def verdict(self) -> str: ...


A = TypeVar("A", bound=Answer)


def answered(
    keys: list[str], kind: type[A], kb: Path | None, limit_s: float, ask: Callable[[list[int]], Iterable[A]]
) -> tuple[list[A], int]:
    """In the order of the keys, and how many were known. `ask`: for those (by position) that were not; each is kept as
    it comes, but what ran out of time. `kb`: None remembers nothing. Errors: AutoscoutError where `limit_s`
    is 0 and something is not known."""
    found: list[A | None] = [traces.known(kb, key, kind) if kb is not None else None for key in keys]
    unknown = [i for i, known in enumerate(found) if known is None]
    if unknown and limit_s <= 0:
        raise AutoscoutError("it has not been traced yet; `autoscout shadow` does it")
    if unknown:
        for i, told in zip(unknown, ask(unknown), strict=True):
            found[i] = told
            if kb is not None and told.verdict != "timeout":
                traces.keep(kb, keys[i], told)  # type: ignore[arg-type]
    return [one for one in found if one is not None], len(keys) - len(unknown)


def existing(ranks: list[int] | None, world: int) -> None:
    """Errors: AutoscoutError (exit 2) for a rank that a person asks for and the configuration has not."""
    if outside := [r for r in ranks or [] if not 0 <= r < world]:
        raise AutoscoutError(f"--rank {outside[0]}: the configuration has the ranks 0 to {world - 1}", 2)


def room(nodes: Sequence[Node]) -> tuple[float | None, float]:
    """(GiB of the smallest device, GiB that the driver and the communicators hold there); (None, 0) of CPUs."""
    if all(is_cpu(node.device) for node in nodes):
        return None, 0.0
    sizes, beside = [], 0.0
    for node in nodes:
        known = hardware(node.device)
        sizes.append(capacity(node))
        beside = max(beside, known.context_gib if known else _CONTEXT_GIB)
    return (min(sizes) or None), beside
