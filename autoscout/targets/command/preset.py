"""Presets: data on third-party training and serving scripts (line/frameworks/*.toml). A preset has the flags worth
tuning, log patterns of a step, failure texts, and flags that only experiments add (no checkpoints, few iterations).
`launch.script` names the preset; `init` finds it by `recognises`."""

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
    """A log pattern of failed runs (`says`), and the status of runs whose log matches. `always`: the pattern also
    applies to runs with complete metrics."""

    says: str
    status: Status
    always: bool = False


class BatchKnobs(Strict, frozen=True, kw_only=True):
    """Knobs that change a step's number of samples (`changed_by`) or tokens (`tokens_changed_by`), and the `flag` that
    keeps the number of samples constant, with its `value` (see same_batch.py). `packed_by`: setting in the YAML file
    that packs a variable number of samples into a step. `instead`: an alternative to `flag`; a line cannot have both.
    `by_itself`: whether the program chooses values for these settings if a line omits them, so that the number of
    samples is unknown. `whole`: setting for a step's number of samples over all ranks."""

    flag: str = ""
    value: str = ""
    changed_by: list[str] = []
    tokens_changed_by: list[str] = []
    packed_by: str = ""
    by_itself: bool = False
    instead: str = ""
    whole: str = ""


class Served(Strict, frozen=True, kw_only=True):
    """How a server is started and loaded (under_load.py). `load`: the load tool's command without the number of users
    or the rate (with placeholders {python}, {port}, {model}, {requests} and the job's attributes). `ready`: URL path
    that responds once the server is ready. `port`: the flag for the server's port (default: `usual_port`). `model`: the
    flag for the model, or the word before the model's name. `plain`: the shortest line, with {model}. `devices`: flags
    whose product is the number of devices; only the first one counts if the line has the flag `first_alone`. `aliases`:
    other names of flags. `abbreviations`: whether the server's parser takes the beginning of a flag for the flag.
    `columns`: flag without a knob → simulator input or `derived` name. `formats`: values of `--quantization` → the
    simulator's names. `defaults`: knob defaults that depend on devices. `unpriced`: flags that prevent predictions.
    `unmodelled`: flags that predictions ignore. `unread`: flags that name settings files. `before_flags`: settings in
    these files that override flags, or fields of sections that do → knobs. `others`: first words of lines that start no
    server. `nvidia`: whether the server needs NVIDIA GPUs."""

    load: str
    ready: str = "/health"
    port: str = "--port"
    usual_port: int
    model: list[str]
    plain: str = ""
    devices: list[str] = []
    first_alone: str = ""
    aliases: dict[str, str] = {}
    abbreviations: bool = False
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
    """Names of the settings of a trainer for Transformers models (trained_columns.py). A setting is a flag or a key of
    the settings file. `model`: the model. `length`: tokens of a sample. `weights`: dtype in which weights are loaded.
    `half`: enables 16-bit computation. `attention`: the attention implementation. `usual_…`: default of a setting.

    Adapters: `adapted`: switches, or settings name=value, that enable adapters. If none of these is set, a `rank`
    enables adapters if `by_rank` is true or `adapted` is empty. `modules`, `all_modules`: layers with adapters.
    `four_bits`: setting that enables 4-bit frozen weights. `usual_frozen`: default dtype of frozen weights. `differs`:
    setting → a note that the setting's default depends on the version. `unpriced`: settings that prevent predictions.
    `unmodelled`: settings that predictions ignore.

    In RL, `length` is the maximum length of an answer, and `prompt` the maximum length of a prompt. `only`: setting →
    the values that can be predicted, "" if it may be absent. `told`: name=value of a setting → the name in
    `space.derived` by which the job has to say what the line does not. `grouped_experts`: whether experts run as
    grouped products, which is what simulators price."""

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
    told: dict[str, str] = {}
    grouped_experts: bool = False


class SameModel(Strict, frozen=True, kw_only=True):
    """A `flag` whose product with the knob `times` determines the model, for example layers per stage times stages. All
    configurations keep the current command's product, so that they train the same model. `default`: the flag's value if
    the command omits the flag."""

    flag: str
    times: str
    default: int


class Start(Strict, frozen=True, kw_only=True):
    """A condition (the expression `holds`) that the program asserts at its start. `names`: name in the expression →
    (setting, default); the name `gpus` is the number of devices. `unless`: pattern of lines for which the program skips
    the assertion."""

    names: dict[str, tuple[str, int]]
    holds: str
    reason: str
    source: str
    unless: str = ""


class Preset(Framework, frozen=True, kw_only=True):
    """`proven`: versions and machine of the test runs; "" if the log format is known only from the program's source.
    `measuring`: flags that only experiments add. `where_said`: like `measuring`, but only replaces flags that the line
    has. `soak`: flags for the long check of an export. `reads`: flag → the job field to which `init` copies the flag's
    value ("model.ffn // 2": half of the value). `checkpoint`: rules on checkpoints. `objective`: default objective.
    `metrics_of`: a different preset whose `metrics` also apply here. `simulated`: simulator input → expression over
    knobs; unused if the line has one of the flags in `unpriced`. `line`: `derived` names → flags of the line that set
    them ("a|b": the first that the line has), for use in rules. `taken_by`: prefixes of setting names → classes in the
    packages' sources that have these settings as fields. `phases`: the RL trainer whose iterations are timed by phase
    (phases.py). `redraws`: knobs and settings that change the sampled answers. `follows`: knob → settings that are
    also set if the knob is neither off nor as in the current launch.

    Files: `config` is the flag that names a YAML file of settings; flags override these settings. `first`: the first
    word may name such a file. `configs`: folder in the package whose files `--config` may name without .yaml. `copies`:
    command that copies a file of this folder. `files`: settings are in YAML files that the line cannot override, so
    each run gets changed copies, and the preset has paths in these files (yaml:a.b) instead of flags. `idle`: whether
    settings of inactive knobs stay as they are, since setting `off` may create a section with further effects.

    Model and devices: `engine` is the target that reads [model] from the flags. `model`: fields of [model] without a
    setting, which are constant or assumed (the vocabulary). `model_where`: settings and patterns; if a given setting
    does not match, [model] is omitted. `devices`: settings whose product is the number of devices per node, if the
    launcher's flags do not give this number. `world`: settings whose product is the number of devices of all nodes.
    `deepspeed`: flag of DeepSpeed's launcher (which then starts all nodes) → setting with the flag's value."""

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
    """Returns the preset that the job names; if it names none, the default preset of its target. Errors: AutoscoutError
    (exit 2) for an unknown name."""
    if not job.launch.script:
        own = target_of(job).preset
        return preset(own) if own else Preset()
    if job.launch.script not in names():
        raise AutoscoutError(f"launch.script = '{job.launch.script}'{nearest_name(job.launch.script, names())}", 2)
    return preset(job.launch.script)


def metrics_of(job: Job) -> dict[str, str | MetricSource]:
    """Returns the metrics of the preset and of the job."""
    return {**preset_of(job).metrics, **job.launch.metrics}


def names() -> list[str]:
    return [*contents()]


def starts_server(name: str) -> bool:
    """Whether a preset of this name exists and starts a server."""
    return name in names() and preset(name).served is not None


@functools.cache
def preset(name: str) -> Preset:
    found = converted(*contents()[name], Preset)
    return msgspec.structs.replace(found, metrics=preset(found.metrics_of).metrics) if found.metrics_of else found
