"""Presets: knowledge of third-party training and serving scripts, as data (line/frameworks/*.toml). A preset has the
flags worth tuning, patterns that find a step in the log, the texts of failures, and the flags that only experiments add
(no checkpoints, only as many iterations as are measured). `launch.script` names one; `init` finds it by `recognises`.
"""

import functools

import msgspec

from autoscout.job.strict import converted
from autoscout.job.words import nearest_name
from autoscout.line.recognition import Framework, contents
from autoscout.space.knob import KnobEntry, RuleEntry
from autoscout.targets.checkpoints import CheckpointRule
from autoscout.targets.target import target_of
from kb.records import AutoscoutError, Job, MetricSource, Status, Strict, Value


class FailureText(Strict, frozen=True, kw_only=True):
    """A pattern for a failed run's log and the status it implies; `always`: also for runs that have their numbers."""

    says: str
    status: Status
    always: bool = False


class BatchKnobs(Strict, frozen=True, kw_only=True):
    """Knobs that change the samples or tokens of a step, and the flag that keeps the number of samples constant
    (same_batch.py). `packed_by`: the setting of the YAML file that packs as many samples into a step as fit. `instead`:
    a setting that replaces the flag and excludes it. `by_itself`: the program chooses the values that a line omits.
    `whole`: another setting for a step's samples over all ranks, if there is one."""

    flag: str = ""
    value: str = ""
    changed_by: list[str] = []
    tokens_changed_by: list[str] = []
    packed_by: str = ""
    by_itself: bool = False
    instead: str = ""
    whole: str = ""


class Served(Strict, frozen=True, kw_only=True):
    """A server (under_load.py). `load`: the load tool's command without the number of users or the rate (placeholders:
    {python}, {port}, {model}, {requests}, the job's attributes); `ready`: the path that answers once it serves; flags:
    for its `port` (if not given, `usual_port`), for its `model` (or the word before the model's name), and for its
    `devices`, whose number is the product of their values (`first_alone`: if this flag is given, only the first of them
    counts). `aliases`: other names of flags. `columns`: flags without a knob → the simulator's (or `derived`) names for
    them; `formats`: values of `--quantization` → the simulator's names for them; `defaults`: defaults of knobs that
    depend on the devices; `unpriced`: flags with which nothing is predicted; `unmodelled`: flags whose effect
    predictions ignore; `unread`: flags that name files of settings, and `before_flags`: knobs for settings there that
    precede the line's flags. `others`: first words that start something other than a server. `nvidia`: whether it only
    runs on NVIDIA's GPUs."""

    load: str
    ready: str = "/health"
    port: str = "--port"
    usual_port: int
    model: list[str]
    devices: list[str] = []
    first_alone: str = ""
    aliases: dict[str, str] = {}
    columns: dict[str, str] = {}
    formats: dict[str, str] = {}
    defaults: dict[str, str] = {}
    unpriced: list[str] = []
    unmodelled: list[str] = []
    unread: list[str] = []
    before_flags: dict[str, str] = {}
    others: list[str] = []
    nvidia: bool = False


class Trained(Strict, frozen=True, kw_only=True):
    """How a trainer of Transformers' models (trained_columns.py) names its settings, which are flags or keys of its
    file. `model`: the model. `length`: tokens of a sample. `weights`: the type in which weights are loaded. `half`:
    makes computations 16 bits wide. `attention`: the attention kernels.

    Adapters. `adapted`: switches, or settings name=value, that turn them on. If there are none, or if none is given and
    `by_rank` is set, a given `rank` turns them on. `modules`, `all_modules`: which layers have them; `four_bits`: the
    frozen weights have 4 bits. `usual_…`: the value of a setting that is not given (`usual_frozen`: the type of the
    frozen weights). `differs`: a sentence for a setting whose default differs between versions. `unpriced`: settings
    with which nothing is predicted. `unmodelled`: settings whose effect predictions ignore.

    In RL, `length` is the largest length of an answer, and `prompt` that of a prompt (`usual_prompt` if not given).
    `only`: setting → its values for which predictions exist, "" if the setting may be absent."""

    model: list[str]
    length: list[str]
    usual_length: int
    weights: list[str]
    usual_weights: str
    half: list[str]
    usual_half: bool = False
    attention: list[str] = []
    usual_frozen: str = ""
    adapted: list[str] = []
    usual_adapted: bool = False
    by_rank: bool = False
    rank: list[str] = []
    usual_rank: int = 16
    modules: str = ""
    all_modules: str = ""
    usual_modules: str = ""
    four_bits: list[str] = []
    unpriced: list[str] = []
    unmodelled: list[str] = []
    differs: dict[str, str] = {}
    prompt: list[str] = []
    usual_prompt: int = 0
    only: dict[str, list[str]] = {}


class SameModel(Strict, frozen=True, kw_only=True):
    """A flag that shapes the model only as a product with the knob `times`, for example layers per stage. Every
    configuration keeps the product of the current command, so that all train the same model; `default`: the flag's
    value if the command does not give it."""

    flag: str
    times: str
    default: int


class Start(Strict, frozen=True, kw_only=True):
    """A condition that a program asserts before it starts. `names`: name in the expression `holds` → (its setting, its
    default); `gpus` is the number of devices. `unless`: a pattern of lines for which the program does not assert it."""

    names: dict[str, tuple[str, int]]
    holds: str
    reason: str
    source: str
    unless: str = ""


class Preset(Framework, frozen=True, kw_only=True):
    """`proven`: versions and machine of the runs that tested it; "" if its log format is known only from the program's
    source. `measuring`: flags that experiments add, not the user's own launch. `where_said`: the same, for flags that
    are only changed if the line gives them. `soak`: flags for the long check of an export. `reads`: flag → the job
    field that `init` fills from it, or a multiple of that field ("model.ffn // 2"). `checkpoint`: what checkpoints
    depend on. `objective`: the default objective. `metrics_of`: another preset, whose `metrics` it shares. `simulated`:
    what the knobs mean to the simulators, unless the line has a flag of `unpriced`. `line`: names of `derived` → the
    flags of the line that set them; no knob changes these, but rules use them. `taken_by`: first parts of setting names
    → the classes, in sources of packages, whose fields these settings are. `phases`: the RL trainer whose iterations
    our clock times (phases.py). `redraws`: knobs and settings that change the sampled answers. `follows`: knob →
    further settings that are set whenever the knob is not off.

    Files. `config`: the flag that names a YAML file of settings, which flags override. `first`: such a file may be the
    first word. `configs`: the folder in its packages whose files `--config` may name without .yaml. `copies`: the
    command that copies one. `files`: settings are in YAML files that nothing on the line overrides, so each run gets
    changed copies; flags are then paths in these (yaml:a.b). `idle`: knobs without effect keep their value instead of
    `off`, because setting `off` may create a section that changes more.

    The model and devices. `engine`: the target of its engine, which reads [model] from the flags. `model`: fields of
    [model] that no setting gives: the same for all its models, or assumed (the vocabulary). `model_where`: settings and
    patterns; there is no [model] if a given setting does not match its pattern. `devices`: settings whose product is
    the devices of a node, if the launcher's flags do not give them. `world`: the same for all nodes. `deepspeed`: flags
    of DeepSpeed's launcher, which then starts all nodes, by the settings that give them."""

    taken_by: dict[str, list[str]] = {}
    config: str = ""
    first: bool = False
    versions: str = ""
    proven: str = ""
    objective: str = "minimize step_time_s"
    environment: dict[str, str] = {}
    measuring: dict[str, Value] = {}
    where_said: dict[str, Value] = {}
    soak: dict[str, Value] = {}
    reads: dict[str, str] = {}
    batch: BatchKnobs | None = None
    same_model: SameModel | None = None
    served: Served | None = None
    trained: Trained | None = None
    configs: str = ""
    copies: str = ""
    files: bool = False
    idle: bool = False
    phases: bool = False
    redraws: list[str] = []
    engine: str = ""
    follows: dict[str, dict[str, Value]] = {}
    model: dict[str, Value] = {}
    model_where: dict[str, str] = {}
    devices: list[str] = []
    world: list[str] = []
    deepspeed: dict[str, str] = {}
    checkpoint: list[CheckpointRule] = []
    line: dict[str, str] = {}
    metrics: dict[str, str | MetricSource] = {}
    metrics_of: str = ""
    failure: list[FailureText] = []
    derived: dict[str, str] = {}
    simulated: dict[str, str] = {}
    unpriced: list[str] = []
    knob: list[KnobEntry] = []
    rule: list[RuleEntry] = []
    starts: list[Start] = []


def preset_of(job: Job) -> Preset:
    """The job's preset, by default its target's. Errors: AutoscoutError (exit 2) for an unknown name."""
    if not job.launch.script:
        own = target_of(job).preset
        return preset(own) if own else Preset()
    if job.launch.script not in names():
        raise AutoscoutError(f"launch.script = '{job.launch.script}'{nearest_name(job.launch.script, names())}", 2)
    return preset(job.launch.script)


def metrics_of(job: Job) -> dict[str, str | MetricSource]:
    """The preset's metrics and the job's own."""
    return {**preset_of(job).metrics, **job.launch.metrics}


def names() -> list[str]:
    return [*contents()]


def starts_server(name: str) -> bool:
    """Whether the preset of that name, if there is one, belongs to a server."""
    return name in names() and preset(name).served is not None


@functools.cache
def preset(name: str) -> Preset:
    found = converted(*contents()[name], Preset)
    return msgspec.structs.replace(found, metrics=preset(found.metrics_of).metrics) if found.metrics_of else found
