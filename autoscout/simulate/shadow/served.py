"""The result of a serving shadow, a dry run without GPUs: the engines' own schedulers, KV-cache managers and prefix
caches process a job's load, while a simulated clock advances by the predicted times of their steps."""

from typing import Any

import msgspec

from autoscout.simulate.shadow.traced import Verdict
from kb.records import Value


class EngineCounts(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Counts of one engine during the last load. `glided`: steps that needed no decision of the scheduler; `asked`:
    prompt tokens; `cached`: prompt tokens found in the prefix cache; `busy`: share of the time in which the device
    computes; `lost`: whether the engine failed during the load. `role`: "reads" (a prefill engine), "answers" (a
    decode engine) or "both"; `received`: prompt tokens transferred from prefill engines. Seconds, summed over its
    `begun` requests: `waited`: from arrival at the engine to the first step; `transferring`: the part of `waited`
    for the KV cache transfer."""

    steps: int
    glided: int = 0
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
    """The result of all engines together. `passes`: results per load, see load_plan.Pass."""

    verdict: Verdict
    type: str = ""  # `type`, `message`, `where`: the engine's exception, if the verdict is "refused"
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
    """One engine's share of the last load. Latencies: of the requests that it answered, in ms."""

    number: int
    requests: int
    ttft_mean_ms: float
    ttft_p99_ms: float
    tpot_mean_ms: float
    e2el_p99_ms: float
    waited_mean_ms: float
    counts: EngineCounts


class ServingShadow(msgspec.Struct, frozen=True, kw_only=True):
    """The predicted result of a serving configuration. Its `engines` share the load through `router`. `metrics`:
    predictions, by the names of an experiment's metrics. `waited_…`: from a request's arrival to its first step.
    `failed`: requests that an engine had partly answered when it failed. `starved`: a sentence if the prefill or the
    decode pool waits for the other pool, or if the router leaves an engine idle; else "". `slowest`: the engine with
    the highest p99 end-to-end latency. `phases`: seconds of an RL iteration by phase; {} for a server. `error`,
    `ttft_error`: standard deviation of log(measured / predicted) of step times and of TTFT. Sizes in GiB are per device
    and predicted, except `kv_gib`, which vLLM reports."""

    job: str
    name: str
    configuration: dict[str, Value]
    verdict: Verdict
    sentence: str
    world: int
    engines: int
    router: str = ""
    metrics: dict[str, float] = {}
    phases: dict[str, float] = {}
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
    type: str = ""  # `type`, `where`, `traceback`: the engine's exception, as in ServedTrace
    where: str = ""
    traceback: str = ""
    stood_in: list[str] = []
    versions: dict[str, str] = {}
    cached: bool = False
    cpu_s: float = 0.0
