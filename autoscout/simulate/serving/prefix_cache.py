"""What an engine's prefix cache holds of the beginnings that requests share.

Prompts and answers are paths in a tree: (node, tokens) pairs, where equal nodes have equal tokens and equal
predecessors. Blocks of ended requests stay in the cache until others need them: those of the request that ended first
are evicted first, and of one request the last ones first (vLLM's free_block_queue)."""

from collections.abc import Sequence

from autoscout.job.requests import Requests
from autoscout.job.trace import BLOCK
from autoscout.simulate.serving.cache_tiers import Tier

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
        # Equal nodes have equal tokens, so a part of a shared beginning counts as the request's own.
        for node, length in [*begun, (i, tokens)]:
            if left > 0:
                path.append((node if length <= left else i, min(length, left)))
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


class PrefixCache:
    """The cache of one engine with blocks of `block` tokens. `tiers`: those behind the device, nearest first, which are
    not used if the nearest one cannot hold a block."""

    def __init__(self, paths: SharedPaths, block: int, tiers: Sequence[Tier] = ()) -> None:
        self.tiers: Sequence[Tier] = tiers if tiers and tiers[0].room >= block else ()
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

    def behind(self, i: int, cached: int) -> list[int]:
        """Tokens of a prompt in whole blocks that each tier contributes, each block from the nearest tier that has it.
        `cached`: those that the device has. All others are in the nearest tier at once before they reach the device, so
        they cannot exceed its room."""
        found = [0] * len(self.tiers)
        most = min(self._most[i], cached + self.tiers[0].room)
        whole, begun = cached, 0  # tokens found in whole blocks, and those of the nodes before this one
        for node, size in self._prompts[i]:
            reached = begun
            for k, tier in enumerate(self.tiers):
                reached = max(reached, begun + min(tier.held(node), size))
                end = min(reached, most) // self._block * self._block
                found[k] += max(end - whole, 0)
                whole = max(end, whole)
            begun += size
            if reached < begun and begun > cached:
                break
        return found

    def promote(self, i: int, tokens: int) -> None:
        """Puts the first tokens of a prompt into the nearest tier."""
        nearest, path = self.tiers[0], Path()
        for node, size in self._prompts[i]:
            if tokens > 0:
                path.append((node, max(min(size, tokens), nearest.held(node))))
            tokens -= size
        nearest.keep(path)

    def take(self, i: int) -> None:
        for tier in self.tiers:
            tier.keep(self._prompts[i])
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
            for tier in self.tiers:
                tier.keep([(self._answers[i], answered)])
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
        """Evicts what does not fit into `free` blocks (fewer than 0 after a request was admitted without a place)."""
        over = self._spare - max(free, 0) * self._block
        while over > 0:
            node = next(iter(self._idle))
            gone = min(over, self._tokens[node])
            over -= gone
            self._spare -= gone
            self._tokens[node] -= gone
            if not self._tokens[node]:
                del self._idle[node], self._tokens[node]
