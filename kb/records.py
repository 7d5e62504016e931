"""The record types that all rooms share, as msgspec structs. Plain data: no behaviour beyond identity."""

import hashlib
from functools import cache, cached_property
from typing import Any, ClassVar, Literal

import msgspec

from kb.cluster_links import Links
from kb.model_shape import Latent as Latent
from kb.model_shape import Lora as Lora
from kb.model_shape import Model, shape
from kb.refusal import AutoscoutError as AutoscoutError
from kb.strict_record import Strict

# Format version of journals, stored jobs and lake files, which they carry so that a reader can tell newer data from
# damaged data. It grows with every field and word that older readers do not know.
#   2  the status infrastructure; the rungs (1 had simulated and profiled); period, per_rank, rank_devices and
#      conditions of a measurement; targets of any name
#   3  knobs and rules in the job itself; a launch's command, metrics, rendered files and path
#   4  adapters and frozen layers of a model; lengths of fine-tuning samples; trace_id of a job's traffic; its guard;
#      sessions of a traffic; drafts and a folder of the KV cache
#   5  the network of a cluster
#   6  latent attention of a model
#   7  a rendered file of a launch that is no template
#   8  the task rl
RECORDS = 8

Value = bool | int | float | str
# infrastructure: the machine's fault (a lost node, a device that fell off the bus). It says nothing about the
# configuration, so it is never an answer and never counts as a failure. All others are facts about it.
Status = Literal["ok", "oom", "invalid", "error", "timeout", "wrong", "killed", "infrastructure"]
# Rungs of the ladder that a number can stand on, cheapest first: a simulator's prediction; the framework's own code
# under fake tensors; one rank on one device; the real launch, ended early; the real launch. Only the last counts as
# measured.
Fidelity = Literal["predicted", "shadow", "one-device", "short", "measured"]
DESIGNED = "designed on models"  # shown for targets that do not exist yet and cannot be measured
FIRST_WORDS = {"predicted": "simulated", "measured": "profiled"}  # names of records version 1; ids still use them
Task = Literal["pretrain", "finetune", "serve", "rl"]


def content_hash(value: Any) -> str:
    """16 hex digits that depend on the content only (dictionary order does not matter)."""
    return hashlib.sha256(msgspec.json.encode(value, order="deterministic")).hexdigest()[:16]


def identity(record: msgspec.Struct, **instead: Any) -> msgspec.Struct:
    """The part of a record whose hash is its id: with the fields `instead` replaced, and less the `later` fields of
    its class that have their default. So records can get new fields while all existing ids stay the same.
    Only meant to be encoded."""
    empty = {name: msgspec.UNSET for name, value in _later(type(record)).items() if getattr(record, name) == value}
    return msgspec.structs.replace(record, **instead, **empty)


@cache
def _later(kind: type[msgspec.Struct]) -> dict[str, Any]:
    """Defaults of a class's `later` fields."""
    known = {f.name: f for f in msgspec.structs.fields(kind)}
    later: tuple[str, ...] = kind.later  # type: ignore[attr-defined]
    return {
        name: f.default if f.default is not msgspec.NODEFAULT else f.default_factory()
        for name, f in known.items()
        if name in later
    }


class Sessions(Strict, frozen=True, omit_defaults=True, kw_only=True):
    """Requests that continue each other. A session is `turns` requests (fixed, or quantiles as for lengths); each
    prompt is the whole conversation so far plus `input_len` new tokens; `think_s` seconds lie between an answer and the
    next turn. `groups`: number of different shared beginnings (tenants, system prompts). `sub_calls`: after each answer
    but the last, an agent sends this many requests at once, each a quarter of `input_len` on top of the conversation,
    and goes on when all are answered."""

    turns: int | list[int] = 1
    think_s: float = 0.0
    groups: int = 1
    sub_calls: int = 0


class Share(Strict, frozen=True, omit_defaults=True, kw_only=True):
    """A further workload that a cluster is designed for (target = "stack"); `weight` is relative to 1 for the job's
    own."""

    model: Model
    weight: float = 1.0
    task: Task = "pretrain"
    seq_len: int = 0
    global_batch: int = 0
    output_len: int = 0
    concurrency: int = 0


class Traffic(Strict, frozen=True, omit_defaults=True):
    """Training: tokens per sample and samples per optimizer step. Serving: `rate` requests per second (open loop,
    Poisson arrivals), or `concurrency` users that wait for each answer (closed loop), or the arrivals of a `trace`;
    lengths in tokens, fixed or as values at evenly spaced quantiles from the smallest to the largest.

    A trace is CSV with the columns arrival_s, input_tokens, output_tokens (or the Azure traces' names for them); with
    `rate` or `concurrency` only its lengths are used. A trace in JSON lines (timestamp in ms, input_length,
    output_length, hash_ids: the format of Mooncake's) says which blocks of 512 tokens prompts share. `trace_id` is the
    hash of its content; reading a job file fills it in.

    Fine-tuning: `lengths` of the samples in tokens, as evenly spaced quantiles or a file of lengths (reading the job
    turns it into quantiles).
    """

    later: ClassVar[tuple[str, ...]] = ("lengths", "trace_id", "sessions", "mix")

    seq_len: int = 0
    global_batch: int = 0
    rate: float = 0.0
    concurrency: int = 0
    trace: str = ""
    input_len: int | list[int] = 0
    output_len: int | list[int] = 0
    shared_prefix: int = 0  # leading tokens shared by all requests
    requests: int = 0  # sent per experiment; 0: as many as the profiler finds it needs
    lengths: str | list[int] = []
    trace_id: str = ""
    sessions: Sessions | None = None
    mix: list[Share] = []


class Node(Strict, frozen=True):
    """`count` devices of one kind. `memory_gib` (per device) defaults to that of the device's preset; `price_per_hour`
    is for all of them together, in dollars."""

    device: str
    count: int
    memory_gib: float = 0.0
    price_per_hour: float = 0.0


class Cluster(Strict, frozen=True, omit_defaults=True):
    """`hosts`: where the nodes are, if not all on this machine: a host file ("HOST slots=N" per line), "slurm" (the
    allocation that we run in), or "ray" (the cluster at RAY_ADDRESS). `include` or `exclude` some of these hosts in
    DeepSpeed's syntax: "node1@node2:0,2". `together`: most experiments at once; 0: as many as do not disturb each other
    (CPU ranks: one per host)."""

    nodes: list[Node] = msgspec.field(default_factory=lambda: [Node(device="cpu", count=1)])
    network: Links = Links()
    hosts: str = ""
    include: str = ""
    exclude: str = ""
    together: int = 0


class Objective(Strict, frozen=True):
    """Exactly one of `minimize` and `maximize`; constraints such as "peak_memory_gib <= 78". `also`: further objectives
    such as "minimize ttft_p99_ms"; the search finds the best by the first, and the Pareto front of all."""

    minimize: str = ""
    maximize: str = ""
    constraints: list[str] = []
    also: list[str] = []

    @property
    def metric(self) -> str:
        return self.minimize or self.maximize


class Budget(Strict, frozen=True):
    """`profiles` experiments of search, and a wall-clock limit such as "20m" ("" = none). `failures`: share of the
    experiments that may fail; 0: half the share of the space that is expected to fail, at most a tenth where memory is
    reported; from 1 on a number of them, after which the search ends. `device_time`: limit on devices × time of the
    search's experiments; "64h" is eight hours on eight devices.
    """

    profiles: int = 30
    wall: str = ""
    failures: float = 0.0
    device_time: str = ""


class OwnKnob(Strict, frozen=True, omit_defaults=True, kw_only=True):
    """A `[[space.knob]]`. `sets`: a flag ("--micro-batch-size", "--on/--off"), "env:NAME", "{placeholder}", or a path
    in the rendered file of that kind ("json:zero.stage", "yaml:…", "toml:…"); "": the placeholder of the knob's name.
    `kind`: "" means dense for numbers, else sparse. `when`, `off`, `implied`: as in a catalog. `by_kind`: if the job
    mixes kinds of device, one knob for each (NAME_KIND), passed to the command on the hosts of that kind."""

    name: str
    values: str | list[Value]  # a list, or an expression that yields one
    sets: str = ""
    kind: Literal["", "sparse", "dense"] = ""
    layer: str = "own"
    meaning: str = ""
    unit: str = ""
    default: Value | None = None
    off: Value | None = None
    when: str = ""
    implied: str = ""
    replace: bool = False
    by_kind: bool = False


class OwnRule(Strict, frozen=True, omit_defaults=True, kw_only=True):
    """A `[[space.rule]]`: what must hold, and why in words ({names} are filled in)."""

    holds: str
    reason: str = ""
    id: str = ""


class SpaceLimits(Strict, frozen=True, omit_defaults=True):
    """`allow`: knobs that may take values that change numerics (8-bit products, caches, …) or need a package; fixing or
    limiting a knob allows it too. `catalog`: files that declare more knobs and rules, or (target = "command") a whole
    target's; `knob`, `rule`: the same in the job itself; `derived`: names for expressions."""

    fix: dict[str, Value] = {}
    limit: dict[str, list[Value]] = {}
    allow: list[str] = []
    catalog: list[str] = []
    knob: list[OwnKnob] = []
    rule: list[OwnRule] = []
    derived: dict[str, str] = {}


class Rendered(Strict, frozen=True, omit_defaults=True, kw_only=True):
    """A file that a launch reads: the template `origin` (in a job: `from`) with its placeholders filled in, written to
    `to`. `plain`: it is not a template but a file of settings, in which only the settings of knobs change."""

    origin: str = msgspec.field(name="from")
    to: str
    plain: bool = False


class MetricSource(Strict, frozen=True, omit_defaults=True, kw_only=True):
    """Where a metric is read from, exactly one of: `pattern` (its last group is the number), `between` (seconds from
    one matching line to the next, as they are printed), `counter` (the last group is a running total: its increase per
    second from one matching line to the next), `json` path ("results.0.step"). `file`: "" is the command's output, or
    for `json` the file that $AUTOSCOUT_RESULT names. `unit`: if the name does not say it."""

    file: str = ""
    pattern: str = ""
    between: str = ""
    counter: str = ""
    json: str = ""
    unit: str = ""


class Draft(Strict, frozen=True, omit_defaults=True, kw_only=True):
    """What proposes tokens for a served model: a method of vLLM's speculative decoding, and the folder of its `model`
    (a draft model, or trained heads; "mtp" uses those in the served model)."""

    method: Literal["eagle", "eagle3", "mtp", "draft_model", "medusa", "mlp_speculator"]
    model: str = ""


class LaunchSettings(Strict, frozen=True, omit_defaults=True):
    """How an experiment is started, and for how long it may measure.

    For the user's own run: `script`, a preset of `autoscout targets`; `path`, the folder in which the command runs;
    `current`, the present command line, and `command`, the same with placeholders (one of them is enough). `metrics`:
    by name, which includes the unit, the pattern whose last group is the number. `loss_tolerance`: how far apart the
    losses of two correct configurations may be, as a share. `end_early`: runs that cannot win are ended
    (running/early.py).
    """

    launcher: Literal["auto", "warm", "reuse", "torchrun", "serve", "replay"] = "auto"
    python: str = ""  # interpreter in which the target is installed; "": the one that runs AutoScout
    model_path: str = ""  # serving: a folder with the model; "": random weights of the job's shape
    draft: Draft | None = None  # serving: the draft available for speculative decoding
    kv_folder: str = ""  # serving: folder for a tier of the KV cache in files
    command_prefix: list[str] = []  # e.g. a container's exec
    transformer_engine: bool = False  # the target interpreter has Transformer Engine
    warmup: int = 1
    iterations: int = 10  # fewer if they give the mean within 1 %
    measure_s: float = 8.0  # slow configurations measure fewer iterations, but never fewer than 2
    timeout_s: float = 120.0  # outer limit of one experiment
    repeats: int = 3  # re-measurements of the finalists and of the default at the end
    recorded: str = ""  # launcher = "replay": the journal whose measurements answer
    script: str = ""
    path: str = ""
    current: str = ""
    command: str = ""
    environment: dict[str, str] = {}
    render: list[Rendered] = []
    metrics: dict[str, str | MetricSource] = {}
    loss_tolerance: float = 0.02
    end_early: bool = True
    neutral: list[str] = []  # unknown arguments of the line that change neither the model nor the speed
    accepted: dict[str, float] = {}  # serving: share of first drafted tokens that are accepted, by speculative method


class Guard(Strict, frozen=True, omit_defaults=True, kw_only=True):
    """The user's own check of quality. If one of `knobs` differs from the reference, `command` (with placeholders:
    knobs, {model}, {flags} of the engine) must print a number within its limits, the last group of `pattern`. It runs
    once per combination of the knobs' values."""

    command: str = ""
    pattern: str = ""
    at_least: float | None = None
    at_most: float | None = None
    knobs: list[str] = msgspec.field(default_factory=lambda: ["kv_cache_dtype", "quantization", "fp8"])
    timeout_s: float = 3600.0


class Job(Strict, frozen=True, dict=True):
    """What is tuned: the paper's workload 𝒲. Its `__dict__` caches what is derived from it (space/attributes.py)."""

    name: str
    target: str  # the name of a target, ours or a user's
    objective: Objective
    model: Model = Model()  # none: the target is tuned without a model
    traffic: Traffic = Traffic()
    cluster: Cluster = Cluster()
    task: Task = "pretrain"
    budget: Budget = Budget()
    space: SpaceLimits = SpaceLimits()
    launch: LaunchSettings = LaunchSettings()
    guard: Guard = Guard()

    @property
    def devices(self) -> int:
        return sum(node.count for node in self.cluster.nodes)

    @cached_property
    def id(self) -> str:
        """Identity of the workload: what is computed, not how long we search. A job without a model is identified by
        its name."""
        return job_id(self.task, self.target, self.model, self.traffic, self.name)


def job_id(task: str, target: str, model: Model, traffic: Traffic, name: str = "") -> str:
    called = [] if model.layers else [name]
    load = identity(traffic, **({"trace": ""} if traffic.trace_id else {}))
    return content_hash([task, target, identity(shape(model)), load, *called])


class Configuration(msgspec.Struct, frozen=True, dict=True):
    """An assignment of all active knobs, in the space's order; inactive knobs are absent."""

    knobs: dict[str, Value]

    @cached_property
    def id(self) -> str:
        return content_hash(self.knobs)

    def __hash__(self) -> int:
        return hash(self.id)


class Measurement(msgspec.Struct, frozen=True, kw_only=True, dict=True):
    """What an experiment yielded. Failures are measurements too.

    Metrics are SI or say their unit in the name: step_time_s (median of the measured iterations), step_time_min_s,
    tokens_per_s, peak_memory_gib (largest rank), cpu_s (per iteration, all ranks). For a serving job, iterations_s are
    the seconds of each pass over its requests, and losses the tokens of the answers to a fixed set of prompts, one
    answer after the other, which the equivalence check compares. For a job of RL, iterations_s are seconds from rollout
    to rollout, and losses the mean reward and the loss of each of the first updates, one after the other. grad_norms:
    of the first steps, followed by that of the experts' gradients alone in the first step, if there are experts.

    `period`: the measuring period, a host, a boot, a stretch of time in which measurements are comparable. `per_rank`:
    a metric's value on every rank, in rank order, such as peak_memory_gib, reserved_memory_gib, step_time_s (by its own
    clock), alone_s (a fixed piece of arithmetic without the others), power_w; `rank_devices`: where each rank ran, as
    "host:kind:index". `conditions`: circumstances of the measurement, such as foreign_cpu_share, steal_share (of the
    CPU time, 0 to 1), clock_mhz, temperature_c, throttled (1 or 0), warmup_iterations.
    """

    later: ClassVar[tuple[str, ...]] = ("period", "per_rank", "rank_devices", "conditions")

    configuration: Configuration
    name: str  # canonical short name of the configuration, e.g. tp2_pp2_mbs1
    context: str  # job, hardware and versions: measurements are comparable only within one
    status: Status
    fidelity: Fidelity = "measured"
    metrics: dict[str, float] = {}
    iterations_s: list[float] = []
    losses: list[float] = []
    grad_norms: list[float] = []
    rank_memory_gib: list[float] = []
    evidence: str = ""  # the root cause of a failure, or what is wrong with the numbers
    cost_s: float = 0.0  # wall seconds the experiment took
    device_s: float = 0.0  # cost_s × devices
    environment: dict[str, str] = {}  # versions, device names, launcher
    at: float = 0.0  # unix time of the end
    period: str = ""
    per_rank: dict[str, list[float]] = {}
    rank_devices: list[str] = []
    conditions: dict[str, float] = {}

    @property
    def counts(self) -> bool:
        """Whether it may be recommended: it was measured, or predicted for a target that is designed on models."""
        return self.fidelity == "measured" or (self.fidelity == "predicted" and DESIGNED in self.environment.values())

    @cached_property
    def id(self) -> str:
        return content_hash(identity(self, fidelity=FIRST_WORDS.get(self.fidelity, self.fidelity)))
