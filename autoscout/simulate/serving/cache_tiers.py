"""Tiers of the KV cache behind the devices' memory, as vLLM's OffloadingConnector has them: the host's memory, and
files below it (TieringOffloadingSpec with a secondary tier of type fs).

Every tier gets all blocks: those of a prompt when its first step begins, those of an answer at its end. Files have no
limit on their size. What is read from files goes to the host's memory first, which evicts blocks for it, and from there
to the device."""

from collections.abc import Sequence


class Link:
    """Moves tokens in one transfer after another. `once_s`: seconds of each transfer; `each_s`: seconds per token."""

    def __init__(self, once_s: float = 0.0, each_s: float = 0.0) -> None:
        self._once_s, self._each_s = once_s, each_s
        self._free_at = 0.0

    def arrival(self, at: float, tokens: int) -> float:
        """The end of a transfer that is asked for at `at`."""
        self._free_at = max(at, self._free_at) + self._once_s + self._each_s * tokens
        return self._free_at


class Tier:
    """One tier with space for `room` tokens, which evicts those that were not used for the longest time. `each_s`:
    seconds per token to the next nearer tier."""

    def __init__(self, room: int, each_s: float = 0.0) -> None:
        self.room, self.link = room, Link(each_s=each_s)
        self._spare = room
        self._tokens: dict[int, int] = {}  # node → its tokens, next to be evicted first

    def keep(self, path: Sequence[tuple[int, int]]) -> None:
        for node, tokens in reversed(path):
            self._spare += self._tokens.pop(node, 0) - tokens
            self._tokens[node] = tokens
        while self._spare < 0:
            node = next(iter(self._tokens))
            gone = min(-self._spare, self._tokens[node])
            self._spare += gone
            self._tokens[node] -= gone
            if not self._tokens[node]:
                del self._tokens[node]

    def held(self, node: int) -> int:
        """Tokens of a node that are here."""
        return self._tokens.get(node, 0)
