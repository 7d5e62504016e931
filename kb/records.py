"""The record types that all packages share, as msgspec structs: plain data, whose only behaviour is to compute ids."""

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

# Format version of journals, stored jobs and lake files. They contain it, so that a reader can distinguish newer data
# from damaged data. It grows with every field and term that older versions of AutoScout do not know.
#   2  the status infrastructure; today's fidelities (1 had simulated and profiled); period, per_rank, rank_devices
#      and conditions of a measurement; targets of any name
#   3  knobs and rules in the job itself; a launch's command, metrics, rendered files and path
#   4  a model's lora and frozen_layers; a traffic's lengths, trace_id and sessions; a job's guard; a launch's draft and
#      kv_folder
#   5  the network of a cluster
#   6  latent attention of a model
#   7  rendered files of a launch that are not templates
#   8  the task rl
RECORDS = 8

Value = bool | int | float | str
# infrastructure: a fault of the machine (a lost node, a GPU that fell off the bus). It says nothing about the
# configuration, so such a run never counts as a failure and, unlike all other runs, never replaces an experiment.
Status = Literal["ok", "oom", "invalid", "error", "timeout", "wrong", "killed", "infrastructure"]
# How a number was obtained, cheapest first: a simulator's prediction; the framework's own code with fake tensors; one
# rank on one device; the real launch, ended early; the real launch. Only the last counts as measured.
Fidelity = Literal["predicted", "shadow", "one-device", "short", "measured"]
DESIGNED = "designed on models"  # shown for systems that do not exist yet, whose costs come from deterministic models
FIRST_WORDS = {"predicted": "simulated", "measured": "profiled"}  # terms of format version 1, from which ids are made
Task = Literal["pretrain", "finetune", "serve", "rl"]


def content_hash(value: Any) -> str:
    """A hash of 16 hex digits that depends only on the content, not on the order of dictionary keys."""
    return hashlib.sha256(msgspec.json.encode(value, order="deterministic")).hexdigest()[:16]


def identity(record: msgspec.Struct, **instead: Any) -> msgspec.Struct:
    """The record whose encoding is hashed to obtain an id. Fields in `instead` are replaced. Fields that were added
    after ids were in use (Strict.later) are omitted if they have their default, so new fields change no existing id.
    The result must only be encoded."""
    empty = {name: msgspec.UNSET for name, value in _later(type(record)).items() if getattr(record, name) == value}
    return msgspec.structs.replace(record, **instead, **empty)


@cache
def _later(kind: type[msgspec.Struct]) -> dict[str, Any]:
    """Field → default value, for the fields of a class that were added after ids were in use."""
    known = {f.name: f for f in msgspec.structs.fields(kind)}
    later: tuple[str, ...] = kind.later  # type: ignore[attr-defined]
    return {
        name: f.default if f.default is not msgspec.NODEFAULT else f.default_factory()
        for name, f in known.items()
        if name in later
    }


class Sessions(Strict, frozen=True, omit_defaults=True, kw_only=True):
    """Conversations. A session consists of `turns` requests (fixed, or quantiles as in Traffic). Each prompt is the
    conversation so far plus `input_len` new tokens; `think_s`: seconds between an answer and the next turn; `groups`:
    number of different shared prefixes (tenants, system prompts); `sub_calls`: after each answer but the last, an agent
    sends this many requests at once, each with a quarter of `input_len` in addition to the conversation, and continues
    when all are answered."""

    turns: int | list[int] = 1
    think_s: float = 0.0
    groups: int = 1
    sub_calls: int = 0


class Share(Strict, frozen=True, omit_defaults=True, kw_only=True):
    """A further workload for which a cluster is designed (target = "stack"). `weight`: relative to that of the job's
    own workload, which is 1."""

    model: Model
    weight: float = 1.0
    task: Task = "pretrain"
    seq_len: int = 0
    global_batch: int = 0
    output_len: int = 0
    concurrency: int = 0


class Traffic(Strict, frozen=True, omit_defaults=True):
    """Training: tokens per sample (`seq_len`) and samples per optimizer step (`global_batch`). Serving: `rate` requests
    per second (open loop, Poisson arrivals), or `concurrency` users that wait for each answer (closed loop), or the
    arrivals of a `trace`; lengths in tokens, fixed or as values at evenly spaced quantiles from the smallest to the
    largest.

    A trace is a CSV file with the columns arrival_s, input_tokens, output_tokens (or those of the Azure traces). With
    `rate` or `concurrency`, only its lengths are used. A trace in JSON lines (the format of Mooncake: timestamp in ms,
    input_length, output_length, hash_ids) also has the blocks of 512 tokens that prompts share. `trace_id`: hash of the
    content, computed when a job file is read. `segments`: several traces, each a load of its own, in place of one; only
    predictions answer such a job (autoscout/job/segments.py), so it is never stored.

    Fine-tuning: `lengths` of the samples in tokens, as evenly spaced quantiles or a file of lengths (replaced by
    quantiles when a job file is read).
    """

    later: ClassVar[tuple[str, ...]] = ("lengths", "trace_id", "sessions", "mix", "segments")

    seq_len: int = 0
    global_batch: int = 0
    rate: float = 0.0
    concurrency: int = 0
    trace: str = ""
    input_len: int | list[int] = 0
    output_len: int | list[int] = 0
    shared_prefix: int = 0  # leading tokens shared by all requests
    requests: int = 0  # number of requests per experiment; 0: as many as the profiler finds necessary
    lengths: str | list[int] = []
    trace_id: str = ""
    sessions: Sessions | None = None
    mix: list[Share] = []
    segments: list[str] = []


class Node(Strict, frozen=True):
    """`count` devices of one kind. `memory_gib`: per device, 0: as in the device's record; `price_per_hour`: of the
    whole node, in US dollars."""

    device: str
    count: int
    memory_gib: float = 0.0
    price_per_hour: float = 0.0


class Cluster(Strict, frozen=True, omit_defaults=True):
    """`hosts`: where the nodes are, if not all on this machine: a host file ("HOST slots=N" per line), "slurm" (the
    allocation in which AutoScout runs), or "ray" (the cluster at RAY_ADDRESS). `include`, `exclude`: select some of
    these hosts, in DeepSpeed's syntax: "node1@node2:0,2". `together`: largest number of experiments at the same time;
    0: as many as do not disturb each other (CPU ranks: one per host)."""

    nodes: list[Node] = msgspec.field(default_factory=lambda: [Node(device="cpu", count=1)])
    network: Links = Links()
    hosts: str = ""
    include: str = ""
    exclude: str = ""
    together: int = 0


class Objective(Strict, frozen=True):
    """A metric to `minimize` or to `maximize`, with constraints such as "peak_memory_gib <= 78". `also`: further
    objectives such as "minimize ttft_p99_ms", with which the Pareto front is shown; the search optimizes only the
    first."""

    minimize: str = ""
    maximize: str = ""
    constraints: list[str] = []
    also: list[str] = []

    @property
    def metric(self) -> str:
        return self.minimize or self.maximize


class Budget(Strict, frozen=True):
    """Limits on the search. `profiles`: number of experiments; `wall`: wall-clock time, such as "20m" ("": no limit);
    `failures`: if below 1, the share of the experiments that may fail before the search avoids risk (0: 40 % of the
    share of the space that is believed to fail); otherwise the number of failures after which the search ends;
    `device_time`: devices × time of the experiments, such as "64h" for eight hours on eight devices."""

    profiles: int = 30
    wall: str = ""
    failures: float = 0.0
    device_time: str = ""


class OwnKnob(Strict, frozen=True, omit_defaults=True, kw_only=True):
    """A [[space.knob]] of a job file. `sets`: what the knob changes: a flag ("--micro-batch-size", "--on/--off"),
    "env:NAME", "{placeholder}", or a path in the rendered file of that format ("json:zero.stage", "yaml:…", "toml:…");
    "": the placeholder with the knob's name. `kind`: "" means dense for numbers, else sparse. `when`, `off`, `implied`:
    as in a catalog (docs/spaces.md). `by_kind`: if the job has several kinds of device, there is one knob for each
    (NAME_KIND), which is passed to the command on hosts of that kind."""

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
    """A [[space.rule]] of a job file. `holds`: an expression that must be true; `reason`: why, as text in which {names}
    are replaced by values."""

    holds: str
    reason: str = ""
    id: str = ""


class SpaceLimits(Strict, frozen=True, omit_defaults=True):
    """`fix`, `limit`: a knob's only value or values; `allow`: knobs that may take values that change numerics (8-bit
    products, caches, …) or need an extra package (fixing or limiting a knob allows these values, too); `catalog`: files
    that declare more knobs and rules, or all of them (target = "command"); `knob`, `rule`: knobs and rules declared in
    the job itself; `derived`: names for expressions."""

    fix: dict[str, Value] = {}
    limit: dict[str, list[Value]] = {}
    allow: list[str] = []
    catalog: list[str] = []
    knob: list[OwnKnob] = []
    rule: list[OwnRule] = []
    derived: dict[str, str] = {}


class Rendered(Strict, frozen=True, omit_defaults=True, kw_only=True):
    """A file that a launch reads: the template `origin` (`from` in a job file), written to `to` with its placeholders
    replaced. `plain`: whether `origin` is not a template but a settings file, in which only the settings of knobs are
    changed."""

    origin: str = msgspec.field(name="from")
    to: str
    plain: bool = False


class MetricSource(Strict, frozen=True, omit_defaults=True, kw_only=True):
    """How to read a metric, by exactly one of: `pattern` (a regular expression whose last group is the number),
    `between` (seconds between two successive lines that match), `counter` (a regular expression whose last group is a
    running total; the metric is its increase per second between two successive matches), `json` (a path such as
    "results.0.step"). `file`: "" is the command's output, or for `json` the file in $AUTOSCOUT_RESULT. `unit`: if it is
    not part of the metric's name."""

    file: str = ""
    pattern: str = ""
    between: str = ""
    counter: str = ""
    json: str = ""
    unit: str = ""


class Draft(Strict, frozen=True, omit_defaults=True, kw_only=True):
    """The draft for speculative decoding: a method of vLLM, and the folder of its `model` (a draft model or trained
    heads; "mtp" uses the heads in the served model)."""

    method: Literal["eagle", "eagle3", "mtp", "draft_model", "medusa", "mlp_speculator"]
    model: str = ""


class LaunchSettings(Strict, frozen=True, omit_defaults=True):
    """How an experiment is started, and for how long it may measure.

    For the user's own command: `script`: a preset that `autoscout targets` lists; `path`: the folder in which the
    command runs; `current`: the present command line; alternatively, `command`: a command line with placeholders;
    `metrics`: name with unit → regular expression whose last group is the number, or MetricSource. `loss_tolerance`:
    largest relative difference between the losses of two correct configurations; `end_early`: whether runs that cannot
    win are ended early (running/early.py)."""

    launcher: Literal["auto", "warm", "reuse", "torchrun", "serve", "replay"] = "auto"
    python: str = ""  # interpreter in which the target is installed; "": the one that runs AutoScout
    model_path: str = ""  # serving: a folder with the model; "": random weights of the job's shape
    draft: Draft | None = None  # serving: the draft that speculative decoding may use
    kv_folder: str = ""  # serving: folder to which KV cache blocks may be offloaded
    command_prefix: list[str] = []  # words before each command, such as those that run it in a container
    transformer_engine: bool = False  # the target interpreter has Transformer Engine
    warmup: int = 1
    iterations: int = 10  # number of measured iterations; a run ends earlier if its mean is known within 1 %
    measure_s: float = 8.0  # slow configurations measure fewer iterations, but never fewer than 2
    timeout_s: float = 120.0  # time limit of one experiment
    repeats: int = 3  # scales the limit on final rounds, in which finalists and default are measured again
    recorded: str = ""  # launcher = "replay": the journal whose measurements replace experiments
    script: str = ""
    path: str = ""
    current: str = ""
    command: str = ""
    environment: dict[str, str] = {}
    render: list[Rendered] = []
    metrics: dict[str, str | MetricSource] = {}
    loss_tolerance: float = 0.02
    end_early: bool = True
    neutral: list[str] = []  # arguments unknown to AutoScout that, as the user states, do not affect the speed
    accepted: dict[str, float] = {}  # serving: speculative method → acceptance rate of the first draft token


class Guard(Strict, frozen=True, omit_defaults=True, kw_only=True):
    """The user's own quality check. If one of `knobs` differs from the reference, `command` (with placeholders for
    knobs, {model} and the engine's {flags}) must print a number within the limits. The number is the last group of the
    regular expression `pattern`. The command runs once for each combination of the knobs' values."""

    command: str = ""
    pattern: str = ""
    at_least: float | None = None
    at_most: float | None = None
    knobs: list[str] = msgspec.field(default_factory=lambda: ["kv_cache_dtype", "quantization", "fp8"])
    timeout_s: float = 3600.0


class Job(Strict, frozen=True, dict=True):
    """What is tuned: the paper's workload 𝒲. Its `__dict__` caches values derived from it (space/attributes.py)."""

    name: str
    target: str  # name of a target, which may come from a user's package
    objective: Objective
    model: Model = Model()  # without layers: the target is tuned without knowledge of a model
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
        """Hash of what the job computes (task, target, model, traffic), without the limits of the search. The job's
        name is only included if there is no model."""
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
    """The result of an experiment. A failed run is a measurement, too.

    Metrics have SI units or the unit in their name: step_time_s (median of the measured iterations), step_time_min_s,
    tokens_per_s, peak_memory_gib (of the rank with the largest value), cpu_s (per iteration, of all ranks). Serving:
    `iterations_s` has the seconds of each pass over the requests, and `losses` has the token ids of greedy answers to a
    fixed set of prompts, one answer after the other, which the equivalence check compares. RL: `iterations_s` has the
    seconds from one rollout to the next, and `losses` alternates between mean reward and loss of the first updates.
    `grad_norms`: of the first steps; if there are experts, followed by the norm of their gradients alone in the first
    step.

    `period`: the measuring period, that is, a host, a boot and a time slot in which measurements are comparable;
    `per_rank`: a metric's value on every rank, in rank order, such as peak_memory_gib, reserved_memory_gib, step_time_s
    (by the rank's own clock), alone_s (the same arithmetic on each rank, without collectives), power_w; `rank_devices`:
    the device of each rank as "host:kind:index"; `conditions`: circumstances of the measurement, such as
    foreign_cpu_share and steal_share (shares of the CPU time, 0 to 1), clock_mhz, temperature_c, throttled (1 or 0),
    warmup_iterations.
    """

    later: ClassVar[tuple[str, ...]] = ("period", "per_rank", "rank_devices", "conditions")

    configuration: Configuration
    name: str  # canonical short name of the configuration, such as tp2_pp2_mbs1
    context: str  # hash of job, hardware and versions; only measurements with the same context are comparable
    status: Status
    fidelity: Fidelity = "measured"
    metrics: dict[str, float] = {}
    iterations_s: list[float] = []
    losses: list[float] = []
    grad_norms: list[float] = []
    rank_memory_gib: list[float] = []
    evidence: str = ""  # the root cause of a failure, or what is wrong with the numbers
    cost_s: float = 0.0  # wall time of the experiment in seconds
    device_s: float = 0.0  # cost_s × devices
    environment: dict[str, str] = {}  # versions, device names, launcher
    at: float = 0.0  # unix time of the experiment's end
    period: str = ""
    per_rank: dict[str, list[float]] = {}
    rank_devices: list[str] = []
    conditions: dict[str, float] = {}

    @property
    def counts(self) -> bool:
        """Whether its configuration may be recommended: it was measured, or its target only exists as a model."""
        return self.fidelity == "measured" or (self.fidelity == "predicted" and DESIGNED in self.environment.values())

    @cached_property
    def id(self) -> str:
        return content_hash(identity(self, fidelity=FIRST_WORDS.get(self.fidelity, self.fidelity)))
