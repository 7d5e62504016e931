"""Records what one rank of a shadow run allocates (storages, by weak references), computes (kernels, by shape) and
sends (collectives, by group).

A fake tensor has a shape but no storage, so that a rank of any model needs only some hundred MB. A storage counts from
its creation by an operator until the last reference to it disappears, rounded up to 512 bytes, as in torch's caching
allocator. Tensors created in a compiled region count only if they outlive the region."""

import contextlib
import functools
import weakref
from collections import Counter, defaultdict
from typing import Any

import torch
import torch.distributed as dist
from torch.utils._python_dispatch import TorchDispatchMode, is_traceable_wrapper_subclass
from torch.utils._pytree import tree_flatten

GRANULE = 512
PRODUCTS = ("aten.mm", "aten.addmm", "aten.bmm", "aten.baddbmm", "aten._grouped_mm")
# Operators that move no data.
FREE = ("view", "detach", "transpose", "split", "slice", "select", "as_strided", "alias", "empty", "expand", "permute")
FREE += (".t.", "squeeze", "chunk", "unbind", "is_same_size", "prim.", "profiler")
_BUFFERS = ("workspace", "batch", "placeholder", "communication")


class Watch(TorchDispatchMode):
    """`now`, `peak`: bytes. `events`: (storage number, ±bytes) in order, since `record()` was called. `born`: storage
    number → (tag, phase). `died`: storage number → phase."""

    def __init__(self) -> None:
        super().__init__()
        self.phase = "build"
        self.tag = ""
        self.now = self.peak = 0
        self.operators = 0
        self.live: dict[int, tuple[Any, int, int]] = {}  # id of storage → reference, bytes, number
        self.born: dict[int, tuple[str, str]] = {}
        self.died: dict[int, str] = {}
        self.events: list[tuple[int, int]] = []
        self.kernels: Counter[tuple[Any, ...]] = Counter()
        self.collectives: Counter[tuple[Any, ...]] = Counter()
        self.order: list[list[Any]] = []
        self.chunk = 0  # the chunk of an interleaved pipeline that is running
        self.of_chunks: defaultdict[int, tuple[Counter, Counter]] = defaultdict(lambda: (Counter(), Counter()))
        self.names: dict[str, str] = {}  # process group's name in torch → in Megatron
        # operator → function from its first tensor to a temporary tensor of its GPU kernel
        self.scratch: dict[str, Any] = {}
        self.selected = 1.0  # fraction of elements that a mask selects
        self._fused = 0
        self._pending: list[tuple[Any, int, str, str]] = []
        self._number = 0
        self._recording = False

    def record(self) -> None:
        """Starts recording kernels, collectives and events. The first events are the existing storages."""
        self._recording = True
        self.events = [(number, size) for _, size, number in list(self.live.values()) if size]

    def where(self) -> str:
        """Returns the current phase, which is the backward pass while autograd's engine runs."""
        if self.phase == "forward" and torch._C._current_graph_task_id() != -1:
            return "backward"
        return self.phase

    def kernel(self, name: str, *shapes: Any) -> None:
        if self._recording:
            self.kernels[(name, self.where(), *shapes)] += 1
            self.of_chunks[self.chunk][0][(name, self.where(), *shapes)] += 1
            self.order.append([name, self.where(), *shapes])

    def in_chunk(self, chunk: int) -> None:
        """Assigns subsequent forward and backward passes to this chunk of an interleaved pipeline."""
        self.chunk = chunk
        if self._recording:
            self.order.append(["pass", self.where(), chunk])

    @contextlib.contextmanager
    def tagged(self, name: str) -> Any:
        before, self.tag = self.tag, name
        try:
            yield
        finally:
            self.tag = before

    @contextlib.contextmanager
    def in_phase(self, name: str) -> Any:
        before, self.phase = self.phase, name
        yield  # after an exception, the phase is not reset, because the error report names it
        self.phase = before

    def see(self, tensor: torch.Tensor, tag: str) -> None:
        if is_traceable_wrapper_subclass(tensor):  # such as a DTensor, whose own storage has only a nominal size
            for name in tensor.__tensor_flatten__()[0]:
                self.see(getattr(tensor, name), tag)
            return
        storage = tensor.untyped_storage()
        key = id(storage)
        if key in self.live and self.live[key][0]() is storage:
            return
        size = -(-storage.nbytes() // GRANULE) * GRANULE
        if self._fused:
            self._pending.append((weakref.ref(storage), size, tag, self.where()))
            self.live[key] = (weakref.ref(storage, lambda _: self.live.pop(key, None)), 0, 0)
        else:
            self._count(storage, size, tag, self.where())

    def _count(self, storage: Any, size: int, tag: str, phase: str) -> None:
        key, number = id(storage), self._number + 1
        self._number = number

        def gone(_: Any) -> None:
            left = self.live.pop(key, (None, size, 0))[1]
            self.died[number] = self.where()
            self._moved(number, -left)

        self.live[key] = (weakref.ref(storage, gone), size, number)
        self.born[number] = (tag, phase)
        self._moved(number, size)

    def resizes(self) -> None:
        """Starts tracking storages that are resized without an operator: Megatron's CheckpointWithoutOutput frees
        outputs by resizing them to 0 until they are recomputed, and FSDP frees and refills buffers."""
        storage: Any = torch.UntypedStorage
        resize, copy = storage.resize_, storage.copy_

        def resized(held: Any, size: int) -> Any:
            out = resize(held, size)
            reference, before, number = self.live.get(id(held), (None, 0, 0))
            if reference is not None and reference() is held:
                after = -(-size // GRANULE) * GRANULE
                self.live[id(held)] = (reference, after, number)
                self._moved(number, -before)
                self._moved(number, after)
            return out

        def copied(held: Any, source: Any, *args: Any) -> Any:  # torch never frees a fake tensor that was deep-copied
            return held if held.device.type == "meta" else copy(held, source, *args)

        storage.resize_, storage.copy_ = resized, copied

    def _moved(self, number: int, size: int) -> None:
        self.now += size
        self.peak = max(self.peak, self.now)
        if self._recording and size:
            self.events.append((number, size))

    def rename(self, tensor: torch.Tensor, tag: str, phase: str) -> None:
        """Changes the purpose of a tensor's storage, which may become known only after the storage's creation."""
        entry = self.live.get(id(tensor.untyped_storage()))
        if entry:
            self.born[entry[2]] = (tag, phase)

    def fused(self, function: Any) -> Any:
        """Replaces torch.compile: the region is one kernel, and only tensors that outlive it are counted."""

        @functools.wraps(function)
        def run(*args: Any, **kwargs: Any) -> Any:
            self._fused += 1
            try:
                with self.tagged(function.__name__):
                    out = function(*args, **kwargs)
            finally:
                self._fused -= 1
                if not self._fused:
                    pending, self._pending = self._pending, []
                    for reference, size, tag, phase in pending:
                        if (storage := reference()) is not None:
                            self._count(storage, size, tag, phase)
            self.kernel(f"fused {function.__name__}", _bytes((args, out)))
            return out

        return run

    def __torch_dispatch__(self, f: Any, kinds: Any, args: Any = (), kwargs: Any = None) -> Any:
        name, kwargs = str(f), kwargs or {}
        if "_local_scalar_dense" in name:  # reads a value; fake tensors have none, so return a plausible one
            value = args[0]
            return False if value.dtype == torch.bool else 1.0 if value.is_floating_point() else 1
        self.operators += 1
        if name.startswith("c10d."):
            self._collective(name, args)
            if "coalesced" in name:  # this operator has no implementation for fake tensors
                return torch._C._distributed_c10d.FakeWork().boxed()
        if name.startswith("aten.masked_select"):
            out = args[0].new_empty(round(args[1].numel() * self.selected))
        else:
            out = f(*args, **kwargs)
        scratch = self.scratch.get(name.rpartition(".")[0], lambda tensor: None)(args[0] if args else None)
        if scratch is not None:
            self.see(scratch, "scratch")
        if name.startswith("prim."):
            return out
        if self._recording and not name.startswith("c10d."):
            self._operator(name, args, out)
        for tensor in tree_flatten(out)[0]:
            if isinstance(tensor, torch.Tensor):
                self.see(tensor, self.tag or name)
        del scratch
        return out

    def _operator(self, name: str, args: Any, out: Any) -> None:
        if name.startswith(PRODUCTS):
            # addmm has its matrices last; a grouped GEMM has the group offsets last.
            a, b = [tuple(t.shape) for t in args if isinstance(t, torch.Tensor) and t.ndim > 1][-2:]
            self.kernel("matmul", (*a, b[-1]))
        elif not self._fused and not any(word in name for word in FREE):
            self.kernel(name.removeprefix("aten."), _bytes((args, out)))

    def _collective(self, name: str, args: Any) -> None:
        if not self._recording:
            return
        boxed = next((a for a in args if isinstance(a, torch.ScriptObject) and "ProcessGroup" in str(a._type())), None)
        group = dist.ProcessGroup.unbox(boxed) if boxed is not None else None
        tensors = [t for t in tree_flatten(args)[0] if isinstance(t, torch.Tensor)]
        size = max((_bytes(t) for t in tensors), default=0)
        if "coalesced" in name:  # takes lists of inputs and of outputs
            size = max(_bytes(args[0]), _bytes(args[1]) if len(args) > 1 else 0)
        ranks = group.size() if group is not None else 1
        named = self.names.get(group.group_name, "world") if group is not None else ""
        entry = (name.removeprefix("c10d.").removesuffix(".default").strip("_"), named, ranks, size)
        self.collectives[(*entry, self.where())] += 1
        self.of_chunks[self.chunk][1][(*entry, self.where())] += 1
        self.order.append(["collective", self.where(), *entry])


def _bytes(values: Any) -> int:
    return sum(t.numel() * t.element_size() for t in tree_flatten(values)[0] if isinstance(t, torch.Tensor))


def kind(tag: str, born: str, died: str) -> str:
    """Returns a storage's purpose (weights, gradients, optimizer, ...) by where it was created and freed."""
    if any(word in tag for word in _BUFFERS):
        return "buffers"
    if born in ("weights", "gradients", "optimizer"):
        return born if born != "optimizer" or not died or died == "after" else "temporary"
    if born == "build":
        return "weights"
    if born == "forward" and died != "forward":
        return "activations"
    if born == "step" and not died:
        return "optimizer"
    return "temporary"


watch = Watch()
