"""The result of a shadow of serving engines: their own schedulers, KV-cache managers and prefix caches under a job's
load, on one clock that advances by the predicted times of their steps."""

from typing import Any

import msgspec

from autoscout.simulate.shadow.traced import Verdict
from kb.records import Value


class EngineCounts(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One engine in the last load. `asked`: prompt tokens; `cached`: those found in the prefix cache; `busy`: share of
    the time that the device computes; `lost`: it ended before the load did. `role`: "reads" prompts for other engines,
    "answers" requests whose prompts others have read, or "both"; `received`: their tokens. Seconds summed over
    its `begun` requests: `waited` from arrival at this engine to the first step, including `transferring`."""

    steps: int
    preemptions: int
    asked: int
    cached: int
    most_running: int
    busy: float
    lost: bool = False
    role: str = "both"
    received: int = 0
    begun: int = 0
    waited: float = 0.0
    transferring: float = 0.0

    @property
    def hit_share(self) -> float:
        return self.cached / max(self.asked, 1)


class ServedTrace(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """All engines together. `passes`: see load_plan.Pass."""

    verdict: Verdict
    type: str = ""  # type, message and where: the exception that a refusal raised
    message: str = ""
    where: str = ""
    phase: str = ""
    traceback: str = ""
    cpu_s: float = 0.0
    passes: list[dict[str, Any]] = []
    max_rate: float = 0.0
    tried: list[dict[str, Any]] = []
    effective: dict[str, Any] = {}
    block_size: int = 0
    kv_blocks: int = 0
    concurrent_batches: int = 1
    engines: list[EngineCounts] = []

    @property
    def preemptions(self) -> int:
        return sum(engine.preemptions for engine in self.engines)


class EngineShare(msgspec.Struct, frozen=True, kw_only=True):
    """One engine's share of the last load; latencies of the requests that it answered, in ms."""

    number: int
    requests: int
    ttft_mean_ms: float
    ttft_p99_ms: float
    tpot_mean_ms: float
    e2el_p99_ms: float
    waited_mean_ms: float
    counts: EngineCounts


class ServingShadow(msgspec.Struct, frozen=True, kw_only=True):
    """A configuration whose `engines` share the load by `router`. `metrics`: named as in experiments. `waited`: from a
    request's arrival to its first step. `failed`: requests that a lost engine had partly answered. `starved`: which of
    two pools waits for the other, or which engine the router leaves idle. `slowest`: the engine with the highest p99 of
    end-to-end latency. `error`: standard deviation of log(measured / predicted) of step times; `ttft_error`: that of
    TTFT. GiB per device are predicted, except `kv_gib`, which vLLM reports."""

    job: str
    name: str
    configuration: dict[str, Value]
    verdict: Verdict
    sentence: str
    world: int
    engines: int
    router: str = ""
    metrics: dict[str, float] = {}
    error: float = 0.0
    ttft_error: float = 0.0
    block_size: int = 0
    kv_blocks: int = 0
    weights_gib: float = 0.0
    kv_gib: float = 0.0
    device_gib: float = 0.0
    requests: int = 0
    failed: int = 0
    waited_mean_ms: float = 0.0
    waited_p99_ms: float = 0.0
    each: list[EngineShare] = []
    slowest: int = 0
    starved: str = ""
    concurrent_batches: int = 1
    effective: dict[str, Any] = {}
    type: str = ""  # the exception of a refusal, as in ServedTrace
    where: str = ""
    traceback: str = ""
    stood_in: list[str] = []
    versions: dict[str, str] = {}
    cached: bool = False
    cpu_s: float = 0.0
