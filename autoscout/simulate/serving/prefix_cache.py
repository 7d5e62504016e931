"""What an engine's prefix cache holds of the beginnings that requests share.

Prompts and answers are paths in a tree: (node, tokens) pairs, where equal nodes have equal tokens and equal
predecessors. Blocks of ended requests stay in the cache until others need them: those of the request that ended first
are evicted first, and of one request the last ones first (vLLM's free_block_queue)."""

from collections.abc import Sequence

from autoscout.job.requests import Requests
from autoscout.job.trace import BLOCK

Path = list[tuple[int, int]]


class SharedPaths:
    """The paths of a load's requests. `prompts`: of each request; `answers`: node of each answer. `beginnings`: hashes
    of each prompt's beginnings in whole blocks. `common`: node and tokens of the beginnings that all loads have. `any`:
    whether any two requests share a beginning."""

    def __init__(self, requests: Requests) -> None:
        self.n = n = len(requests)
        self.answers = range(n, 2 * n)
        self._next = 2 * n
        self._nodes: dict[tuple[int, int], int] = {}
        self.prompts = _talking(self, requests) if requests.talks else _alone(self, requests)
        begun = set(self._nodes.values()) if requests.blocks is None else set()
        self.common = {path[0] for path in self.prompts if path[0][0] in begun}
        self.any = len({node for path in self.prompts for node, _ in path}) < sum(map(len, self.prompts))
        self._begun: dict[int, list[list[int]]] = {}
        self._whole: dict[int, list[int]] = {}

    def node(self, kind: int, number: int) -> int:
        """The node of a beginning that several requests may have."""
        if (kind, number) not in self._nodes:
            self._nodes[kind, number] = self._next
            self._next += 1
        return self._nodes[kind, number]

    def beginnings(self, block: int) -> list[list[int]]:
        if block not in self._begun:
            self._begun[block] = [_beginnings(path, block) for path in self.prompts]
        return self._begun[block]

    def whole(self, block: int) -> list[int]:
        """Tokens of each prompt that can be found in a cache: whole blocks, without the prompt's last token."""
        if block not in self._whole:
            self._whole[block] = [(sum(size for _, size in path) - 1) // block * block for path in self.prompts]
        return self._whole[block]


def _talking(paths: SharedPaths, requests: Requests) -> list[Path]:
    talks, shared, found = requests.talks, requests.shared_prefix, list[Path]()
    assert talks is not None
    answered = talks.output_len.tolist()
    for i, (on, group, own) in enumerate(zip(talks.on.tolist(), talks.group.tolist(), talks.own.tolist(), strict=True)):
        first: Path = [(paths.node(0, group), shared)] if shared else []
        before = [*found[on], (paths.answers[on], answered[on])] if on >= 0 else first
        found.append([*before, (i, own)])
    return found


def _alone(paths: SharedPaths, requests: Requests) -> list[Path]:
    found, shared = list[Path](), requests.shared_prefix
    for i, tokens in enumerate(requests.input_len.tolist()):
        hashed = requests.blocks[i] if requests.blocks else []
        begun: Path = [(paths.node(1, block), BLOCK) for block in hashed]
        if not begun and shared:
            begun = [(paths.node(0, 0), shared)]
        path, left = Path(), tokens
        for node, length in [*begun, (i, tokens)]:
            if left > 0:
                path.append((node, min(length, left)))
                left -= length
        found.append(path)
    return found


def _beginnings(path: Path, block: int) -> list[int]:
    found, at = list[int](), block
    begun = 0
    for node, size in path:
        end = begun + size
        while at <= end:
            found.append((node << 24) + at)
            at += block
        begun = end
    return found


class HostTier:
    """A second tier of the cache in the host's memory, for `room` tokens. As with vLLM's OffloadingConnector, it gets
    all blocks when they are computed, and evicts those that were not used for the longest time."""

    def __init__(self, room: int) -> None:
        self._room = room
        self._tokens: dict[int, int] = {}  # node → its tokens, next to be evicted first

    def keep(self, path: Path) -> None:
        for node, tokens in reversed(path):
            self._room += self._tokens.pop(node, 0) - tokens
            self._tokens[node] = tokens
        while self._room < 0:
            node = next(iter(self._tokens))
            gone = min(-self._room, self._tokens[node])
            self._room += gone
            self._tokens[node] -= gone
            if not self._tokens[node]:
                del self._tokens[node]

    def found(self, path: Path, begun: int) -> int:
        """Tokens of the path that are here, if the first `begun` are in the device's cache."""
        end = 0
        for node, size in path:
            end += size
            here = self._tokens.get(node, 0)
            if end > begun and here < size:
                return max(end - size + here - begun, 0)
        return max(end - begun, 0)


class PrefixCache:
    """The cache of one engine with blocks of `block` tokens. `host_room`: tokens of its second tier, 0 for none."""

    def __init__(self, paths: SharedPaths, block: int, host_room: int = 0) -> None:
        self.host = HostTier(host_room) if host_room >= block else None
        self._prompts, self._answers, self._block = paths.prompts, paths.answers, block
        self._most = paths.whole(block)
        self._tokens: dict[int, int] = {}  # node → its cached tokens
        self._held: dict[int, int] = {}  # node → number of running requests that hold it
        self._idle: dict[int, None] = {}  # nodes that no running request holds, next to be evicted first
        self._spare = 0  # tokens of idle nodes

    def keep(self, path: Sequence[tuple[int, int]]) -> None:
        """Caches a path that no running request holds."""
        for node, tokens in path:
            self._spare += tokens - self._tokens.get(node, 0)
            self._tokens[node] = tokens
            self._idle[node] = None

    def found(self, i: int) -> tuple[int, int]:
        """(cached tokens of a prompt, blocks of them that running requests hold)"""
        cached = held = 0
        for node, size in self._prompts[i]:
            here = self._tokens.get(node, 0)
            cached += here if here < size else size
            if node in self._held:
                held = cached
            if here < size:
                break
        most = self._most[i]
        return min(cached // self._block * self._block, most), min(held, most) // self._block

    def on_host(self, i: int, cached: int) -> int:
        """Tokens of a prompt in whole blocks that only the second tier has. `cached`: those that the device has."""
        if self.host is None:
            return 0
        end = min(cached + self.host.found(self._prompts[i], cached), self._most[i])
        return max(end // self._block * self._block - cached, 0)

    def take(self, i: int) -> None:
        if self.host is not None:
            self.host.keep(self._prompts[i])
        for node, size in self._prompts[i]:
            if node in self._idle:
                del self._idle[node]
                self._spare -= self._tokens[node]
            self._held[node] = self._held.get(node, 0) + 1
            if self._tokens.get(node, 0) < size:
                self._tokens[node] = size

    def give(self, i: int, answered: int) -> int:
        """Ends a request's use of its blocks. Returns how many of them others still hold. `answered`: cached tokens of
        its answer."""
        if answered:
            self.keep([(self._answers[i], answered)])
            if self.host is not None:
                self.host.keep([(self._answers[i], answered)])
        shared = 0
        for node, size in reversed(self._prompts[i]):
            self._held[node] -= 1
            if self._held[node]:
                shared += size
            else:
                del self._held[node]
                self._idle[node] = None
                self._spare += self._tokens[node]
        return min(shared, self._most[i]) // self._block

    def trim(self, free: int) -> None:
        """Evicts what does not fit into `free` blocks."""
        over = self._spare - free * self._block
        while over > 0:
            node = next(iter(self._idle))
            gone = min(over, self._tokens[node])
            over -= gone
            self._spare -= gone
            self._tokens[node] -= gone
            if not self._tokens[node]:
                del self._idle[node], self._tokens[node]
