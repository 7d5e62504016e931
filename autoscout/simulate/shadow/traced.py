"""The result of a shadow run: one rank's trace, and the conclusions for a configuration from its traced ranks.

A shadow is the framework's own code, run for one rank with tensors without storage, over a process group without other
ranks. Its memory is what the framework would have allocated on a device; times are predicted elsewhere.
"""

from typing import Literal

import msgspec

from kb.records import Value

GIB = 2.0**30  # bytes
KINDS = ("weights", "gradients", "optimizer", "activations", "buffers", "temporary")
# Standard deviations of log(measured / traced): dense recipes (docs/lab/shadow.md); with experts; and a cautious figure
# for cases without measurements (8-bit products, context parallelism).
ERROR, DOUBTED_ERROR = 0.003, 0.03
# Tokens of the fullest rank's experts over the mean: after routing has settled, in the first steps, and the standard
# deviation around the former, for the probability of running out of memory.
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
    group, ranks, bytes, phase]; `chunks`: both by chunk, if a stage has several; `order`: the first occurrence of both,
    in order, and the starts of passes. Counts cover `micro_batches_traced`."""

    rank: int
    verdict: Verdict
    imbalance: float = 1.0
    type: str = ""  # of a refusal: the exception, its message, and where it was raised
    message: str = ""
    where: str = ""
    phase: str = ""
    traceback: str = ""
    cpu_s: float = 0.0
    parameters: int = 0
    built: int = 0
    peak: int = 0
    reserved: int = 0  # by torch's caching allocator, replayed
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
    """One rank run alone on one device, with real kernels and no peers. Seconds of one more micro batch, of the passes'
    work once per step, and of the optimizer's step; `spread`: relative standard deviation between repeats. Bytes: the
    peak of torch's allocator (0 on a CPU)."""

    rank: int
    verdict: Verdict
    type: str = ""  # of a refusal, as Rank
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
    smallest device; `oom_probability`: for all of these. `imbalanced`: GiB at OUT_OF_BALANCE, with experts. `step_s`:
    seconds of a step, its traces priced kernel by kernel, by `parts`, if the device is known. `timed`: its ranks run on
    one device; `step_s` then uses their seconds instead of kernels' prices."""

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
    cached: int = 0  # of the ranks
    cpu_s: float = 0.0
