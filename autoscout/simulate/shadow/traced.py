"""The result of a training shadow: the trace of one rank, and a configuration's figures from its traced ranks.

A shadow is a dry run without GPUs: the framework's own code runs for one rank, with tensors without storage and a fake
process group. It records the memory that the framework would allocate on a device. Times are predicted in
pricing.py."""

from typing import Literal

import msgspec

from kb.records import Value

GIB = 2.0**30  # bytes
KINDS = ("weights", "gradients", "optimizer", "activations", "buffers", "temporary")
# Standard deviations of log(measured / traced) peak memory: of dense recipes (docs/lab/shadow.md), and of recipes with
# experts. The latter also serves as a cautious value for cases without measurements (8-bit GEMMs, context parallelism).
ERROR, DOUBTED_ERROR = 0.003, 0.03
# Tokens of the busiest rank's experts relative to the mean: after routing has settled, and in the first steps.
# ROUTING_SPREAD: standard deviation of the settled value, for the probability of running out of memory.
OUT_OF_BALANCE, EARLY, ROUTING_SPREAD = 1.2, 1.8, 0.15

Verdict = Literal["starts", "refused", "untraceable", "timeout"]


class Step(msgspec.Struct, frozen=True, kw_only=True):
    """Bytes allocated in one training step: peak during the forward and backward passes, peak during the optimizer
    step, and bytes still allocated (`left`) after it."""

    forward_backward: int
    optimizer: int
    left: int


class Chunk(msgspec.Struct, frozen=True):
    """One of several chunks (virtual stages) of a pipeline stage, with fields as in Rank."""

    kernels: list[list]
    collectives: list[list]


class Rank(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The trace of one rank. Sizes are bytes. `at_peak`, `left`: by kind (see KINDS), at the peak and after the step;
    `largest`: [tag, kind, bytes] of the largest tensors at the peak; `timeline`: [event, bytes of each kind …];
    `kernels`: [count, name, phase, shapes …]; `collectives`: [count, operation, group, ranks, bytes, phase]; `chunks`:
    kernels and collectives by chunk, if the stage has several; `order`: kernels, collectives and starts of passes in
    the order of their launch. Counts cover `micro_batches_traced` micro batches."""

    rank: int
    verdict: Verdict
    imbalance: float = 1.0
    type: str = ""  # `type`, `message`, `where`: the framework's exception, if the verdict is "refused"
    message: str = ""
    where: str = ""
    phase: str = ""
    traceback: str = ""
    cpu_s: float = 0.0
    parameters: int = 0
    built: int = 0
    peak: int = 0
    reserved: int = 0  # bytes that torch's caching allocator would reserve, from a replay
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
    """A measurement of one rank that ran alone on a real device, with real kernels and fake collectives. Seconds:
    `micro_batch_s` per micro batch, `once_s` for the part of the passes that runs once per step, `optimizer_s` for the
    optimizer step; `spread`: relative standard deviation of these times between repeats. `allocated`, `reserved`: peak
    bytes of torch's allocator (0 on a CPU)."""

    rank: int
    verdict: Verdict
    type: str = ""  # `type`, `message`, `where`: the framework's exception, as in Rank
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
    """The result of tracing a configuration. `ranks`: traces, starting with that of the highest peak. `allocated`,
    `reserved`: GiB of the highest peak; `low`, `high`: 90 % interval of `allocated`; `imbalanced`: the peak at
    OUT_OF_BALANCE, for models with experts; `beside`: additional GiB of the driver and the communicators; `device_gib`:
    memory of the smallest device; `oom_probability`: probability that the peak plus `beside` exceeds `device_gib`.
    `step_s`: predicted seconds of a step, if the device is known; `parts`: components of `step_s` (pricing.py).
    `timed`: ranks that ran on a real device, with measured seconds."""

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
    cached: int = 0  # number of ranks whose traces came from the cache
    cpu_s: float = 0.0
