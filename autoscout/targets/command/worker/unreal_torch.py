"""Torch without devices, storage or other ranks, for a user's own unmodified script. The docstring of each patch gives
its reason.

Tensors are fake and on the CPU, even if the script moves them to a GPU, because fake CUDA tensors abort in autograd's
C++ code in CPU builds."""

import contextlib
import functools
import importlib
import inspect
import sys
from typing import Any

import for_each
import torch
import torch.distributed as dist
import torch.nn.parallel.distributed as data_parallel
import torch.utils.checkpoint
import torch.utils.data
from torch._subclasses.fake_tensor import FakeTensor
from torch.overrides import TorchFunctionMode
from torch.testing._internal.distributed.fake_pg import FakeStore
from torch.utils._python_dispatch import _disable_current_modes
from watch import Watch

# Functions of Transformers that a shadow replaces. tests/tools/record_seams.py records which releases have them.
TRANSFORMERS = {
    "transformers.utils.import_utils.is_fake_tensor": lambda tensor: False,
    "transformers.masking_utils.find_packed_sequence_indices": lambda position_ids: None,
}
_NOTHING = (
    *("set_device", "empty_cache", "synchronize", "manual_seed", "manual_seed_all", "reset_peak_memory_stats"),
    *("reset_max_memory_allocated", "ipc_collect", "init", "set_per_process_memory_fraction"),
)
# Operators that autocast computes in fp32 on CUDA but not on a CPU (torch/amp's documentation, "CUDA Ops that can
# autocast to float32").
_IN_FP32 = frozenset({
    "__pow__", "__rpow__", "acos", "asin", "cdist", "cosh", "cosine_similarity", "cross_entropy", "cumprod", "cumsum",
    "dist", "exp", "expm1", "group_norm", "kl_div", "l1_loss", "layer_norm", "log", "log10", "log1p", "log2",
    "log_softmax", "mse_loss", "nll_loss", "norm", "normalize", "pow", "prod", "reciprocal", "rsqrt", "sinh",
    "smooth_l1_loss", "softmax", "softmin", "softplus", "sum", "tan",
})  # fmt: skip
_ZERO = ("current_device", "memory_allocated", "max_memory_allocated", "memory_reserved", "max_memory_reserved")


class ScriptWatch(Watch):
    """A memory tracker (watch.py) that ignores results that are not tensors."""

    def see(self, tensor: Any, tag: str) -> None:
        if isinstance(tensor, torch.Tensor):  # the parts of a DTensor include its mesh, which is not a tensor
            super().see(tensor, tag)


class Buckets:
    """A wrapper of DDP's reducer that does not rebuild buckets after the first step, because that would read data from
    other ranks. Rebuilding would not change bucket sizes."""

    def __init__(self, reducer: Any) -> None:
        self._reducer = reducer

    def __getattr__(self, name: str) -> Any:
        return getattr(self._reducer, name)

    def _rebuild_buckets(self) -> bool:
        return False


class OnCpu(TorchFunctionMode):
    """Redirects GPU devices to the CPU. Under autocast, computes those operators in fp32 that a GPU would."""

    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if function is torch.device:  # naming a GPU is harmless until a tensor is placed there
            return function(*args, **(kwargs or {}))
        kwargs = {name: _on_cpu(value) for name, value in (kwargs or {}).items()}
        args = tuple(map(_on_cpu, args))
        if getattr(function, "__name__", "") in _IN_FP32 and torch.is_autocast_enabled("cpu"):
            args, kwargs = tuple(map(_widened, args)), {name: _widened(value) for name, value in kwargs.items()}
        return function(*args, **kwargs)


def _widened(value: Any) -> Any:
    half = isinstance(value, torch.Tensor) and value.dtype in (torch.bfloat16, torch.float16)
    return value.float() if half else value


def _on_cpu(value: Any) -> Any:
    if isinstance(value, torch.device) and value.type == "cuda":
        return torch.device("cpu")
    if isinstance(value, str) and (value == "cuda" or value.startswith("cuda:")):
        return "cpu"
    return value


def install(watch: ScriptWatch, rank: int, world: int, gpu: bool) -> None:
    _processes(rank, world)
    _data_parallel(watch)
    _modules()
    _pointers()
    _checkpoints()
    _loaders()
    _values()
    if gpu:
        _gpu(world)


def _processes(rank: int, world: int) -> None:
    """Replaces process groups by torch's fake process groups, which need no other ranks."""
    begin, new_group = dist.init_process_group, dist.new_group

    def began(*_: Any, **__: Any) -> None:
        with _disable_current_modes():
            begin("fake", rank=rank, world_size=world, store=FakeStore())

    def grouped(*args: Any, **kwargs: Any) -> Any:
        with _disable_current_modes():
            return new_group(*args, **{**kwargs, "backend": "fake"})

    functions: Any = dist
    functions.init_process_group, functions.new_group = began, grouped
    functions.barrier = functions.monitored_barrier = lambda *args, **kwargs: None
    functions.all_gather_object = lambda out, value, group=None: out.__setitem__(slice(None), [value] * len(out))
    functions.broadcast_object_list = lambda *args, **kwargs: None
    functions.is_nccl_available = lambda: True
    _meshes()


def _meshes() -> None:
    """Creates device meshes from real tensors, because a mesh reads the values of its tensor of ranks."""
    # FSDP's modules import init_device_mesh by name. They are loaded first, so that the loop below replaces it there.
    importlib.import_module("torch.distributed.fsdp")
    from torch.distributed import device_mesh

    make = device_mesh.init_device_mesh

    @functools.wraps(make)
    def begun(device_type: str, *args: Any, **kwargs: Any) -> Any:
        with _disable_current_modes():
            return make("cpu", *args, **kwargs)

    for module in list(sys.modules.values()):
        if getattr(module, "init_device_mesh", None) is make:
            module.init_device_mesh = begun  # type: ignore[attr-defined]
    mesh: Any = device_mesh.DeviceMesh
    for name in ("__init__", "__getitem__", "_flatten"):
        setattr(mesh, name, _really(getattr(mesh, name)))


def _really(function: Any) -> Any:
    @functools.wraps(function)
    def run(*args: Any, **kwargs: Any) -> Any:
        with _disable_current_modes():
            return function(*map(_on_cpu, args), **kwargs)

    return run


def _data_parallel(watch: ScriptWatch) -> None:
    wrapped: Any = data_parallel.DistributedDataParallel
    # Disables functions that read tensor values.
    data_parallel._verify_param_shape_across_processes = lambda *args, **kwargs: None  # type: ignore[assignment]
    data_parallel._sync_module_states = lambda *args, **kwargs: None  # type: ignore[assignment]
    make, buckets = wrapped.__init__, wrapped._ddp_init_helper
    functions: Any = dist
    assigned = functions._compute_bucket_assignment_by_size

    @functools.wraps(buckets)
    def bucketed(self: Any, *args: Any, **kwargs: Any) -> None:
        """Creates at once the buckets that DDP creates only after its first step. (In the first step, DDP has a single
        bucket.)"""
        limits = [self.bucket_bytes_cap]
        functions._compute_bucket_assignment_by_size = lambda tensors, _, *more: assigned(tensors, limits, *more)
        with watch.in_phase("gradients"):
            buckets(self, *args, **kwargs)

    def reduced(_, bucket):  # without annotations, which DDP would check
        """Replaces the communication of the C++ reducer, which reads the result of a work handle. Fake process groups
        return handles without a result."""
        dist.all_reduce(bucket.buffer())
        done = torch.futures.Future()
        done.set_result(bucket.buffer())
        return done

    @functools.wraps(make)
    def made(self: Any, *args: Any, **kwargs: Any) -> None:
        make(self, *args, **{**kwargs, "device_ids": None, "output_device": None})
        hook(self, None, reduced)
        self.reducer = Buckets(self.reducer)

    hook = wrapped.register_comm_hook
    wrapped.__init__, wrapped._ddp_init_helper = made, bucketed
    wrapped.register_comm_hook = lambda *args, **kwargs: None
    watch.resizes()


def _modules() -> None:
    module: Any = torch.nn.Module
    tensor: Any = torch.Tensor

    def applied(self: Any, change: Any, recurse: bool = True) -> Any:
        """Replaces Module._apply. Copies parameters instead of swapping their tensors, because torch cannot swap fake
        tensors with weak references."""
        made: dict[int, Any] = {}  # by identity of the old parameter, so that tied parameters stay tied
        with torch.no_grad():
            for part in self.modules() if recurse else [self]:
                for held in (part._parameters, part._buffers):
                    for name, old in held.items():
                        if old is None:
                            continue
                        if id(old) not in made:
                            new, trained = change(old), held is part._parameters and old.requires_grad
                            whole = new is old or held is part._buffers
                            made[id(old)] = new if whole else torch.nn.Parameter(new.detach(), trained)
                        held[name] = made[id(old)]
        return self

    module._apply = applied
    module.cuda = tensor.cuda = tensor.pin_memory = lambda self, *args, **kwargs: self


def _pointers() -> None:
    """Makes accelerate compare parameters by identity instead of data pointers, which are equal for all fake
    tensors."""
    data_ptr = torch.Tensor.data_ptr

    def pointer(self: Any) -> int:
        if not isinstance(self, FakeTensor):
            return data_ptr(self)
        return self.untyped_storage()._cdata + self.storage_offset() * self.element_size()

    classes: Any = (torch.Tensor, FakeTensor)
    for each in classes:
        each.data_ptr = pointer


def _checkpoints() -> None:
    """Enables this module's function mode (OnCpu) during recomputation, because torch disables function modes in a
    backward pass."""
    keep = torch.utils.checkpoint.checkpoint

    @functools.wraps(keep)
    def of_both(function: Any, *args: Any, **kwargs: Any) -> Any:
        def again(*inputs: Any, **named: Any) -> Any:
            inside = torch._C._len_torch_function_stack() > 0
            with contextlib.nullcontext() if inside else OnCpu():
                return function(*inputs, **named)

        return keep(again, *args, **kwargs)

    for module in list(sys.modules.values()):
        for name in ("checkpoint", "torch_utils_checkpoint"):
            if getattr(module, name, None) is keep:
                setattr(module, name, of_both)


def _loaders() -> None:
    """Loads batches in this process, because fake tensors cannot be sent between processes."""
    loader: Any = torch.utils.data.DataLoader
    make = loader.__init__
    signature = inspect.signature(make)
    alone = {"num_workers": 0, "prefetch_factor": None, "persistent_workers": False, "multiprocessing_context": None}

    @functools.wraps(make)
    def made(*args: Any, **kwargs: Any) -> None:
        given = signature.bind(*args, **kwargs).arguments
        make(**{**given, **alone, "pin_memory": False, "timeout": 0})

    loader.__init__ = made


def _values() -> None:
    """Disables operations that need real values: the check for non-finite gradients and the writing of checkpoints."""
    scaler: Any = importlib.import_module("torch.amp.grad_scaler").GradScaler
    scaler._maybe_opt_step = lambda self, optimizer, state, *args, **kwargs: optimizer.step(*args, **kwargs)
    torch.save = lambda *args, **kwargs: None  # type: ignore[assignment]


def hugging_face() -> None:
    """Patches Transformers after a script has imported this package. Otherwise, Transformers would create attention
    masks (and copies of keys and values) that a real run does not have, and would read the values of positions to
    detect packed sequences."""
    for name, instead in TRANSFORMERS.items():
        module, _, own = name.rpartition(".")
        if hasattr(found := sys.modules.get(module), own):
            setattr(found, own, instead)


def _gpu(world: int) -> None:
    cuda: Any = torch.cuda
    for name in _NOTHING:
        setattr(cuda, name, lambda *args, **kwargs: None)
    for name in _ZERO:
        setattr(cuda, name, lambda *args, **kwargs: 0)
    for name in ("range_push", "range_pop", "mark"):
        setattr(cuda.nvtx, name, lambda *args, **kwargs: None)
    cuda.is_available = lambda: True
    cuda.is_bf16_supported = lambda *args, **kwargs: True
    cuda.device_count = lambda: world
    cuda.get_device_capability = lambda *args: (8, 0)
    cuda.mem_get_info = lambda *args: (80 * 2**30, 80 * 2**30)
    _accelerator(world)
    state = torch.get_rng_state()
    cuda.get_rng_state = cuda.random.get_rng_state = lambda *args, **kwargs: state
    cuda.set_rng_state = lambda *args, **kwargs: None
    torch.set_default_device = lambda device: None
    autocast: Any = torch.autocast
    make = autocast.__init__

    @functools.wraps(make)
    def cast(self: Any, device_type: str, *args: Any, **kwargs: Any) -> None:
        make(self, _on_cpu(device_type), *args, **kwargs)

    autocast.__init__ = cast
    # A GPU's dropout saves a mask of one byte per element, but a CPU's saves the noise in the input's dtype.
    functional: Any = torch.nn.functional
    functional.dropout = lambda x, p=0.5, training=True, inplace=False: (
        torch.native_dropout(x, p, True)[0] if training and p else x
    )
    _attention(functional)
    for_each.as_on_a_gpu()


def _attention(functional: Any) -> None:
    attend = functional.scaled_dot_product_attention

    @functools.wraps(attend)
    def attended(
        query: Any,
        key: Any,
        value: Any,
        attn_mask: Any = None,
        dropout_p: float = 0.0,
        is_causal: bool = False,
        scale: float | None = None,
        enable_gqa: bool = False,
    ) -> Any:
        """Attention that needs as much memory as GPU kernels: keys shared by several heads are not repeated, and
        dropout saves no scores."""
        if attn_mask is None and query.dim() == 4 and query.shape[-1] == value.shape[-1]:
            fused: Any = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu
            return fused(query, key, value, 0.0, is_causal, scale=scale)[0]
        return attend(query, key, value, attn_mask, 0.0, is_causal, scale=scale, enable_gqa=enable_gqa)

    functional.scaled_dot_product_attention = attended


class _Stream:
    """A stream on which nothing runs."""

    def is_capturing(self) -> bool:
        return False


def _accelerator(world: int) -> None:
    """Applies the same patches to torch.accelerator, which newer scripts use. Adam queries torch.accelerator for a
    graph capture, which would initialize the driver in CUDA builds."""
    if not hasattr(torch, "accelerator"):
        return
    ours: Any = torch.accelerator
    for name in (*_NOTHING, "set_device_index", "set_device_idx", "set_stream", "reset_accumulated_memory_stats"):
        setattr(ours, name, lambda *args, **kwargs: None)
    for name in (*_ZERO, "current_device_index", "current_device_idx"):
        setattr(ours, name, lambda *args, **kwargs: 0)
    ours.is_available = lambda: True
    ours.device_count = lambda: world
    ours.current_accelerator = lambda check_available=False: torch.device("cuda")
    ours.current_stream = lambda *args: _Stream()
