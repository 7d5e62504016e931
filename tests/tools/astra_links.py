"""An event model of ASTRA-sim's congestion-aware multi-dimensional network: messages queue for links.

Documented in astra-network-analytical (branch will/congestion-multidim @ a035d9e) and in ASTRA-sim's system layer
(Ring, PacketBundle and MemBus of November 2024): a message crosses the dimensions in order (store and forward); a ring
sends in the shorter direction, a switch is two links. A link serves messages in the order of arrival, is occupied for
size / bandwidth, and the message arrives after its latency. A GB of a link is 2^30 bytes. A member of a logical ring
sends once it has received; every packet costs 10 ns at the endpoint, and a reduced one also three passes over local
memory. Times are in ns."""

import heapq
import itertools

ENDPOINT = 10
_GIB = 2**30 / 1e9  # bytes a ns of a link's GB/s


class Links:
    """Size, GB/s per link and ns per hop of each dimension. NPU numbers vary fastest along the first dimension."""

    def __init__(self, topology: list[str], sizes: list[int], gb_s: list[float], latency: list[float]) -> None:
        self._topology, self._sizes = topology, sizes
        self._strides = [1, *itertools.accumulate(sizes, lambda a, b: a * b)]
        self.npus = self._strides[-1]
        self._speed = [(latency[d], gb_s[d] * _GIB) for d in range(len(sizes))]
        self._numbers: dict[tuple, int] = {}
        self._of: list[tuple[float, float]] = []  # (latency, bytes a ns) of each link

    def path(self, source: int, target: int) -> list[int]:
        """The links from one NPU to another."""
        links, at = [], source
        for d, size in enumerate(self._sizes):
            here, there = (npu // self._strides[d] % size for npu in (at, target))
            for a, b in self._hops(d, here, there, at - here * self._strides[d]):
                links.append(self._link(d, a, b))
            at += (there - here) * self._strides[d]
        return links

    def send(self, pairs: list[tuple[int, int]], size: int) -> int:
        """Sends `size` bytes between all pairs at once; returns when the last message arrives, in ns."""
        free: dict[int, int] = {}
        paths = [self.path(a, b) for a, b in pairs]
        heap = [(0, number, 0) for number in range(len(paths))]
        last = 0
        while heap:
            now, number, hop = heapq.heappop(heap)
            if hop == len(paths[number]):
                last = max(last, now)
            else:
                heapq.heappush(heap, (self._over(paths[number][hop], size, now, free), number, hop + 1))
        return last

    def ring(self, rings: list[list[int]], size: int, steps: int, reduced: int, reduction: int) -> int:
        """When the last member of all concurrent rings has its last packet, in ns. `size`: bytes per message; `steps`:
        messages per member, of which the first `reduced` are reduced on arrival, in `reduction` ns."""
        after = {npu: ring[(i + 1) % len(ring)] for ring in rings for i, npu in enumerate(ring)}
        paths = {npu: self.path(npu, after[npu]) for npu in after}
        free: dict[int, int] = {}
        sent, came, taken = (dict.fromkeys(after, 0) for _ in range(3))
        order = itertools.count()
        heap = [(ENDPOINT, next(order), npu, -1) for npu in after]
        last = 0

        def take(npu: int, now: int) -> None:
            taken[npu] += 1
            ready = now + ENDPOINT + (reduction if taken[npu] <= reduced else 0)
            heapq.heappush(heap, (ready, next(order), npu, -1))

        while heap:
            now, _, npu, hop = heapq.heappop(heap)
            if hop == len(paths[npu]):  # its message has arrived
                receiver = after[npu]
                came[receiver] += 1
                if taken[receiver] < sent[receiver]:
                    take(receiver, now)
                continue
            if hop < 0:  # the member may send
                if sent[npu] == steps:
                    last = max(last, now)
                    continue
                sent[npu] += 1
                if taken[npu] < came[npu]:
                    take(npu, now)
                hop = 0
            there = self._over(paths[npu][hop], size, now, free)
            heapq.heappush(heap, (there, next(order), npu, hop + 1))
        return last

    def _over(self, link: int, size: int, now: int, free: dict[int, int]) -> int:
        latency, speed = self._of[link]
        begun = max(now, free.get(link, 0))
        free[link] = begun + int(size / speed)
        return begun + int(latency + size / speed)

    def _hops(self, d: int, here: int, there: int, base: int) -> list[tuple[int, int]]:
        """The (from, to) hops within dimension `d`; -1 is its switch."""
        if here == there:
            return []
        stride, size = self._strides[d], self._sizes[d]
        if self._topology[d] == "Switch":
            return [(base + here * stride, -1 - base), (-1 - base, base + there * stride)]
        if self._topology[d] == "FullyConnected":
            return [(base + here * stride, base + there * stride)]
        up = (there - here) % size
        step = 1 if up <= size - up else -1
        places = [(here + step * i) % size for i in range(min(up, size - up) + 1)]
        return [(base + a * stride, base + b * stride) for a, b in itertools.pairwise(places)]

    def _link(self, d: int, a: int, b: int) -> int:
        number = self._numbers.setdefault((d, a, b), len(self._of))
        if number == len(self._of):
            self._of.append(self._speed[d])
        return number
