"""What a shadow of a serving engine tells: its own scheduler, KV-cache manager and prefix cache under a job's load, on
a clock that the predicted times of its steps move."""

from typing import Any

import msgspec

from autoscout.simulate.shadow.traced import Verdict
from kb.records import Value


class ServedTrace(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One engine. `passes`: as load_plan.Pass has them; `waited_s`: from arrival to the first step, by request;
    `asked`, `cached`: tokens of prompts, and of those what the prefix cache had; `busy`: share of the time that the
    device computes. All but `passes` are of the last load."""

    verdict: Verdict
    type: str = ""  # of a refusal: the exception, its message, and where it was raised
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
    waited_s: list[float] = []
    steps: int = 0
    preemptions: int = 0
    asked: int = 0
    cached: int = 0
    most_running: int = 0
    busy: float = 0.0


class ServingShadow(msgspec.Struct, frozen=True, kw_only=True):
    """Of a configuration. `engines` alike of it share the load; what is counted is one engine's. `metrics`: as an
    experiment has them, of all engines together. `error`: standard deviation of log(measured / predicted) of the steps'
    times; TTFT's in `ttft_error`. GiB: of a device, predicted, but what vLLM made of `kv_gib`."""

    job: str
    name: str
    configuration: dict[str, Value]
    verdict: Verdict
    sentence: str
    world: int
    engines: int
    metrics: dict[str, float] = {}
    error: float = 0.0
    ttft_error: float = 0.0
    block_size: int = 0
    kv_blocks: int = 0
    weights_gib: float = 0.0
    kv_gib: float = 0.0
    device_gib: float = 0.0
    requests: int = 0
    waited_mean_ms: float = 0.0
    waited_p99_ms: float = 0.0
    hit_share: float = 0.0
    preemptions: int = 0
    steps: int = 0
    most_running: int = 0
    concurrent_batches: int = 1
    busy: float = 0.0
    effective: dict[str, Any] = {}
    type: str = ""  # of a refusal, as Served
    where: str = ""
    traceback: str = ""
    stood_in: list[str] = []
    versions: dict[str, str] = {}
    cached: bool = False
    cpu_s: float = 0.0
