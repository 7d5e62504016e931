"""The result of a shadow run: one rank's trace, and the conclusions for a configuration from its traced ranks.

A shadow is the framework's own code, run for one rank with tensors without storage, over a process group without other
ranks. Its memory is what the framework would have allocated on a device; times are predicted elsewhere.
"""

from typing import Literal

import msgspec

from kb.records import Value

GIB = 2.0**30  # bytes
KINDS = ("weights", "gradients", "optimizer", "activations", "buffers", "temporary")
# Standard deviations of log(measured / traced): for dense recipes (docs/lab/shadow.md); and for recipes with experts,
# as well as a cautious value for cases without measurements (8-bit products, context parallelism).
ERROR, DOUBTED_ERROR = 0.003, 0.03
# Tokens of the experts on the fullest rank relative to the mean: after routing has settled, and in the first steps. The
# last figure is the standard deviation around the settled value, for the probability of running out of memory.
OUT_OF_BALANCE, EARLY, ROUTING_SPREAD = 1.2, 1.8, 0.15

Verdict = Literal["starts", "refused", "untraceable", "timeout"]


class Step(msgspec.Struct, frozen=True, kw_only=True):
    """Bytes: the peak of the forward and backward passes, the peak of the optimizer's step, and the remainder after
    it."""

    forward_backward: int
    optimizer: int
    left: int


class Chunk(msgspec.Struct, frozen=True):
    """One of several chunks of a stage, with the fields of a rank."""

    kernels: list[list]
    collectives: list[list]


class Rank(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One rank's trace. Bytes; `at_peak` and `left` by kind; `largest`: [tag, kind, bytes] at the peak; `timeline`:
    rows of [event, bytes by kind …]; `kernels`: [count, name, phase, shapes …]; `collectives`: [count, operation,
    group, ranks, bytes, phase]; `chunks`: kernels and collectives by chunk, if a stage has several; `order`: the first
    occurrence of each, in order, with the starts of passes. Counts cover `micro_batches_traced`."""

    rank: int
    verdict: Verdict
    imbalance: float = 1.0
    type: str = ""  # type, message and where: the exception that a refusal raised
    message: str = ""
    where: str = ""
    phase: str = ""
    traceback: str = ""
    cpu_s: float = 0.0
    parameters: int = 0
    built: int = 0
    peak: int = 0
    reserved: int = 0  # bytes reserved by torch's caching allocator, replayed
    steps: list[Step] = []
    micro_batches: int = 0
    micro_batches_traced: int = 0
    replicas: int = 1
    at_peak: dict[str, int] = {}
    left: dict[str, int] = {}
    largest: list[list[Value]] = []
    timeline: list[list[int]] = []
    operators: int = 0
    kernels: list[list] = []
    collectives: list[list] = []
    chunks: list[Chunk] = []
    order: list[list] = []
    ordered: int = 0
    torch: str = ""


class Timed(msgspec.Struct, frozen=True, kw_only=True):
    """One rank that ran alone on one device, with real kernels and no peers. Seconds of one more micro batch, of the
    work once per step in the passes, and of the optimizer's step; `spread`: relative standard deviation between
    repeats. Bytes: the peak of torch's allocator (0 on a CPU)."""

    rank: int
    verdict: Verdict
    type: str = ""  # the exception of a refusal, as in Rank
    message: str = ""
    where: str = ""
    phase: str = ""
    traceback: str = ""
    micro_batch_s: float = 0.0
    once_s: float = 0.0
    optimizer_s: float = 0.0
    spread: float = 0.0
    allocated: int = 0
    reserved: int = 0
    parameters: int = 0
    device: str = ""
    torch: str = ""


class Shadow(msgspec.Struct, frozen=True, kw_only=True):
    """A configuration's traced ranks, the one with the highest peak first. `allocated`, `reserved`: GiB; `low` to
    `high`: the 90 % interval of `allocated`; `beside`: memory of the driver and the communicators; `device_gib`: of the
    smallest device; `oom_probability`: of all this memory together. `imbalanced`: GiB at OUT_OF_BALANCE, with experts.
    `step_s`: seconds of a step, priced kernel by kernel from its traces, by `parts`, if the device is known. `timed`:
    ranks that ran on one device; their seconds then replace the kernels' prices in `step_s`."""

    job: str
    name: str
    configuration: dict[str, Value]
    verdict: Verdict
    sentence: str
    world: int
    ranks: list[Rank]
    allocated: float = 0.0
    reserved: float = 0.0
    low: float = 0.0
    high: float = 0.0
    imbalanced: float | None = None
    beside: float = 0.0
    device_gib: float | None = None
    oom_probability: float | None = None
    step_s: float | None = None
    parts: dict[str, float] = {}
    timed: list[Timed] = []
    stood_in: list[str] = []
    versions: dict[str, str] = {}
    cached: int = 0  # number of ranks whose traces were cached
    cpu_s: float = 0.0
