"""Presets: knowledge of third-party training and serving scripts, as data (line/frameworks/*.toml). A preset has the
flags worth tuning, the log's patterns for a step, the texts of failures, and further flags for experiments (no
checkpoints, only as many iterations as are measured). `launch.script` names one; `init` finds it by `recognises`.
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
    """A pattern in a failed run's log and its status; `always`: applies to runs that have their numbers, too."""

    says: str
    status: Status
    always: bool = False


class BatchKnobs(Strict, frozen=True, kw_only=True):
    """Knobs that change the samples or tokens of a step, and the flag that keeps the samples constant (same_batch.py).
    `packed_by`: the setting of the YAML file that packs as many samples into a step as fit. `instead`: a setting that
    replaces the flag and excludes it. `by_itself`: the program chooses values that a line omits. `whole`: another
    setting for a step's samples over all ranks, if it has one."""

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
    of its `port` (without it `usual_port`), of its `model` (or the word before it), and of the `devices` whose product
    it uses (`first_alone`: with this one only the first of them counts). `aliases`: other names of flags. `columns`:
    flags without a knob, and the simulator's (or `derived`) names for them; `formats`: the simulator's names for those
    of `--quantization`; `defaults`: of knobs, where they depend on the devices; `unpriced`: flags with which nothing is
    predicted; `unmodelled`: flags whose effect predictions ignore; `unread`: flags that name files of settings, and
    `before_flags`: knobs for settings there that precede the line's flags. `others`: first words that start something
    other than a server. `nvidia`: whether it only runs on NVIDIA's GPUs."""

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
    """A trainer of Transformers' models (trained_columns.py), by the names of its settings, which are flags or keys of
    its file. `model`: the model. `length`: of a sample in tokens. `weights`: the type they are loaded in. `half`: makes
    computations 16 bits wide. `attention`: its kernels.

    Adapters. `adapted`: switches or name=value that ask for them. Where there are none, or none is given and `by_rank`
    is set, a given `rank` asks for them. `modules`, `all_modules`, `four_bits`: where they are, and whether the frozen
    weights have 4 bits. `usual_…`: the value of a setting that is not given (`usual_frozen`: the type of weights under
    adapters). `differs`: a sentence for a setting whose default differs between versions. `unpriced`: settings with
    which nothing is predicted. `unmodelled`: settings whose effect predictions ignore.

    Of RL: `length` is of an answer at most, `prompt` of a prompt (`usual_prompt` where none is given). `only`:
    settings, and those of their values with which something is predicted, "" where the setting may be absent."""

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
    """A flag that shapes the model only as a product with the knob `times`. The product is kept as in the current
    command, so that every configuration trains the same model; `default`: the flag's value if the command does not give
    it."""

    flag: str
    times: str
    default: int


class Start(Strict, frozen=True, kw_only=True):
    """A condition that a program asserts before it starts. `names`: in the expression `holds`, each with its setting
    and the program's default; `gpus` are the devices. `unless`: a pattern of lines for which it is not asserted."""

    names: dict[str, tuple[str, int]]
    holds: str
    reason: str
    source: str
    unless: str = ""


class Preset(Framework, frozen=True, kw_only=True):
    """`proven`: versions and machine of its test runs; "" if its log format is known only from its source. `measuring`:
    flags for experiments, not for the user's own launch. `where_said`: the same, only for flags that the line gives.
    `soak`: flags for the long check of an export. `reads`: flag → the job field that it gives (`init`), or a multiple
    of it ("model.ffn // 2"). `checkpoint`: what checkpoints depend on. `objective`: the default. `metrics_of`: another
    preset whose `metrics` it also has. `simulated`: what the knobs mean to the simulators, unless the line has a flag
    of `unpriced`. `line`: names of `derived` → the flags of the line that set them; no knob changes these, but rules
    mention them. `taken_by`: first parts of setting names → the classes, in sources of packages, whose fields these
    settings are. `phases`: an RL trainer whose iterations our clock times (phases.py). `redraws`: its knobs and
    settings that change the sampled answers. `follows`: knob → further settings that go with any value of it but the
    one that is off.

    Files. `config`: the flag that names a YAML file of settings, which flags override. `first`: such a file may come
    first. `configs`: the folder in its packages with settings that `--config` names without .yaml. `copies`: the
    command that copies one. `files`: settings are in YAML files that nothing on the line overrides, so that runs get
    copies of them; flags are then paths in these (yaml:a.b). `idle`: knobs that cannot act keep their value instead of
    getting `off`, because a setting may bring a section that changes more.

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
    """Whether the preset of that name, if there is one, is of a server's line."""
    return name in names() and preset(name).served is not None


@functools.cache
def preset(name: str) -> Preset:
    found = converted(*contents()[name], Preset)
    return msgspec.structs.replace(found, metrics=preset(found.metrics_of).metrics) if found.metrics_of else found
