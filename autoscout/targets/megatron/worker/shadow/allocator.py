"""Simulates torch's caching allocator, to compute how much memory it reserves for a sequence of allocations and frees.

It follows c10/cuda/CUDACachingAllocator.cpp with one stream: sizes are rounded up to 512 bytes. Requests up to 1 MiB
share segments of 2 MiB; requests below 10 MiB share segments of 20 MiB; larger requests have their own segment, rounded
up to 2 MiB. Blocks are chosen by best fit, split and merged. Empty segments are returned to the device only when memory
runs out."""

import bisect
from typing import Any

_MIB = 2**20


class OutOfMemory(Exception):
    pass


class Allocator:
    """The state of the simulated allocator. `capacity`: available bytes of the device. `most`: peak of reserved bytes.
    `flushes`: how often empty segments had to be returned to the device."""

    def __init__(self, capacity: float) -> None:
        self.capacity, self.reserved, self.most, self.flushes, self._segments = capacity, 0, 0, 0, 0
        self._pools: dict[bool, list[Any]] = {True: [], False: []}
        self._used: dict[int, dict[str, Any]] = {}

    def take(self, key: int, size: int) -> None:
        """Allocates `size` bytes for the storage `key`. Errors: OutOfMemory."""
        small = size <= _MIB
        pool = self._pools[small]
        at = bisect.bisect_left(pool, (size,))
        block = pool.pop(at)[2] if at < len(pool) else self._segment(size, small)
        rest = block["size"] - size
        if rest >= 512 if small else rest > _MIB:
            tail = {**block, "at": block["at"] + size, "size": rest, "prev": block, "free": True}
            if block["next"]:
                block["next"]["prev"] = tail
            block["next"], block["size"] = tail, size
            bisect.insort(pool, (rest, tail["at"], tail))
        block["free"] = False
        self._used[key] = block

    def give(self, key: int) -> None:
        block = self._used.pop(key)
        pool = self._pools[block["small"]]
        for side, opposite in (("prev", "next"), ("next", "prev")):
            other = block[side]
            if other and other["free"]:
                pool.pop(bisect.bisect_left(pool, (other["size"], other["at"])))
                block["size"] += other["size"]
                block["at"] = min(block["at"], other["at"])
                block[side] = other[side]
                if block[side]:
                    block[side][opposite] = block
        block["free"] = True
        bisect.insort(pool, (block["size"], block["at"], block))

    def _segment(self, size: int, small: bool) -> dict[str, Any]:
        room = 2 * _MIB if small else 20 * _MIB if size < 10 * _MIB else -(-size // (2 * _MIB)) * 2 * _MIB
        if self.reserved + room > self.capacity:
            self._flush()
        if self.reserved + room > self.capacity:
            raise OutOfMemory(f"{size / 2**30:.2f} GiB more than {self.reserved / 2**30:.2f} GiB reserved")
        self._segments += 1
        self.reserved += room
        self.most = max(self.most, self.reserved)
        return {"at": self._segments << 44, "size": room, "prev": None, "next": None, "free": True, "small": small}

    def _flush(self) -> None:
        self.flushes += 1
        for pool in self._pools.values():
            for entry in [e for e in pool if e[2]["prev"] is None and e[2]["next"] is None]:
                pool.remove(entry)
                self.reserved -= entry[0]


def replayed(events: list[tuple[int, int]], capacity: float) -> Allocator:
    """Returns the allocator's state after `events`: (storage number, bytes), with negative bytes for a free. Errors:
    OutOfMemory."""
    allocator = Allocator(capacity)
    for number, size in events:
        if size > 0:
            allocator.take(number, size)
        elif size < 0:
            allocator.give(number)
    return allocator
