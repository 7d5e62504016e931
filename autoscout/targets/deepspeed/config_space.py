"""The search space of a user's ds_config: lists become knobs, single values are fixed.

A field in catalog.toml becomes a knob with the catalog's name and conditions. Such a knob is inactive at ZeRO stages
where it has no effect, so that no two configurations are the same run. Fields that the catalog lacks become knobs
without conditions."""

import json
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import Any

import msgspec

from autoscout.line import nested
from autoscout.space.attributes import attributes_of
from autoscout.space.knob import Catalog, KnobEntry, RuleEntry
from autoscout.space.language.expression import Expression
from autoscout.targets.current_launch import whole_number
from autoscout.targets.deepspeed import ds_config, modelled, zero_memory
from autoscout.targets.deepspeed.autotuning import Autotuning, settings
from autoscout.targets.deepspeed.ds_config import Config
from autoscout.targets.deepspeed.tuning_space import DEFAULT_SPACES, HUGGING_FACE, MICRO, STEPS, refused
from kb.records import AutoscoutError, Job, Rendered, Value

BATCH, STAGE = "train_batch_size", "zero_optimization.stage"
# Sections in which a list is a single value, not a list of choices. (DeepSpeed's autotuner makes this exception only
# for the optimizer's betas.)
_LISTS_STAY = ("optimizer", "scheduler", "autotuning", "elasticity", "compression_training", "curriculum_learning")
_LISTS_STAY += ("data_efficiency", "sparse_attention", "data_types", "torch_autocast", "flops_profiler", "comms_logger")
_NOT_CHOSEN = (BATCH, STEPS)  # not tuned, because they follow from the global batch and the micro batch
# Id of a rule that allows only one of several bucket sizes with the same effect → the knob for this size.
_SAME_RUN = {"DI1": "reduce_bucket", "DI2": "allgather_bucket", "DI3": "prefetch"}
_DEVICES = ("zero_optimization.offload_optimizer.device", "zero_optimization.offload_param.device")


def config_of(job: Job) -> Rendered | None:
    """Returns the ds_config, i.e. the first JSON file of launch.render; None if there is none."""
    return next((r for r in job.launch.render if r.origin.endswith(".json") and r.to.endswith(".json")), None)


def read_config(job: Job) -> Config:
    """Returns the parsed ds_config. Errors: AutoscoutError (exit 2)."""
    rendered = config_of(job)
    assert rendered is not None
    return ds_config.read(Path(job.launch.path or ".") / rendered.origin)


def batch_of(job: Job, config: Config) -> int:
    """Returns the samples per step that all configurations share; 0 if neither the job nor the ds_config sets them."""
    return job.traffic.global_batch or _batch_stated(config)


def _batch_stated(config: Config) -> int:
    size = config.get(BATCH)
    return (size if isinstance(size, int) else 0) or settings(config).max_train_batch_size or 0


def batches_differ(job: Job, config: Config) -> bool:
    """Whether configurations may have different global batches, because no global batch is set, and the micro batch or
    the accumulation steps are tuned."""
    return not batch_of(job, config) and not all(isinstance(config.get(name, 1), int) for name in (MICRO, STEPS))


def config_problems(job: Job, config: Config) -> Iterator[str]:
    """Yields a sentence for each conflict between a ds_config and the job."""
    found = settings(config)
    own = _batch_stated(config)
    if own and job.traffic.global_batch != own:
        yield f"the ds_config trains {own} samples per step; set traffic.global_batch = {own}, or change the ds_config"
    for path in _NOT_CHOSEN:
        if isinstance(config.get(path), list):
            yield f"the ds_config has a list for {path}, but only the micro batch is tuned; write a single value"
    hugging_face = takes_auto(job)
    for path, value in nested.leaves(config):
        if value == "auto" and not hugging_face and not _chosen_here(path):
            yield (
                f'{path} is "auto", which only the Hugging Face Trainer fills in (train.py --deepspeed FILE.json); '
                f"write a value for a script that takes --deepspeed_config"
            )
    fixed = {p: v for p, v in nested.leaves(config) if not isinstance(v, list)}
    offloads = any(fixed.get(p) in ("cpu", "nvme") for p in _DEVICES)
    if offloads and (why := refused(_stage_of(config), brings_optimizer(job, config))):
        yield why
    if not 0 < found.mp_size <= job.devices:
        yield f"autotuning.mp_size = {found.mp_size}, but the job has {job.devices} devices; correct one of the two"
    elif (shared := modelled.ranks_of_a_model(job, found.mp_size)) > job.devices:
        devices = f"the job has {job.devices} devices"
        yield f"the launch line splits the model over {shared} ranks, but {devices}; correct one of the two"


def takes_auto(job: Job) -> bool:
    """Whether a Hugging Face Trainer reads the ds_config and fills in "auto"."""
    words = (job.launch.command or job.launch.current).split()
    return "--deepspeed_config" not in words and any(w.split("=")[0] == "--deepspeed" for w in words)


def brings_optimizer(job: Job, config: Config) -> bool:
    """Whether a script's own optimizer can be offloaded: either the ds_config allows this, or a Hugging Face Trainer
    replaces the optimizer by DeepSpeed's (accelerate's `map_pytorch_optim_to_deepspeed`)."""
    return takes_auto(job) or config.get("zero_force_ds_cpu_optimizer") is False


def leaves_auto(config: Config) -> bool:
    """Whether the ds_config has an "auto" that only a Hugging Face Trainer can fill in."""
    return any(value == "auto" and path not in (MICRO, STAGE) for path, value in nested.leaves(config))


def catalog(job: Job, shipped: Catalog) -> Catalog:
    """Returns the catalog of a ds_config's space. If the ds_config leaves nothing to tune, the only knob is the ZeRO
    stage, with its present value. Errors: AutoscoutError (exit 2) for an unreadable ds_config."""
    config = read_config(job)
    found = settings(config)
    by_path = {knob.sets: knob for knob in shipped.knob}
    choices = choices_of(config, found, job) if to_tune(job, config) else {STAGE: [ds_config.at(config, STAGE) or 0]}
    knobs = []
    for path, values in choices.items():
        known = by_path.get(path)
        knobs.append(_known(known, values) if known else _new(path, values, knobs))
    choices_by_name = {knob.name: knob.values for knob in knobs if isinstance(knob.values, list)}
    names = choices_by_name.keys()
    derived = {knob.name: modelled.standing(job, config, knob) for knob in shipped.knob if knob.name not in names}
    ranks = _ranks(job, found)
    # derive the micro batch from the global batch, as DeepSpeed does
    if "mbs" not in names and config.get(MICRO) is None and batch_of(job, config):
        steps = config.get(STEPS)
        derived["mbs"] = f"max(1, global_batch // ({ranks} * {steps if isinstance(steps, int) else 1}))"
    rules = [*_rules(job, config, shipped, choices_by_name, ranks), *_offload_rules(job, config, names)]
    batch, simulated = batch_of(job, config), {}
    if not modelled.lacking(job):
        derived["max_reuse"] = modelled.max_reuse(config, knobs, shipped.derived["max_reuse"])
        simulated = modelled.simulated(job, config, batch, found.mp_size, shipped.simulated, knobs)
        simulated |= {} if "mbs" in names else {"mbs": derived["mbs"]}
    texts = [*(rule.holds for rule in rules), *simulated.values(), *(knob.when for knob in knobs if knob.when)]
    spoken = _names_read(texts, derived)
    kept = {name: text for name, text in derived.items() if name in spoken}
    if batch:
        kept[STEPS] = shipped.derived[STEPS].replace("gpus", ranks)
        kept["mbs"] = derived.get("mbs", "1")
    if "mbs" in names:
        kept.pop("mbs", None)
    return Catalog(
        target=shipped.target, version=shipped.version, derived=kept, simulated=simulated, knob=knobs, rule=rules
    )


def _ranks(job: Job, found: Autotuning) -> str:
    """Returns the expression for the number of data parallel ranks."""
    shared = modelled.ranks_of_a_model(job, found.mp_size)
    return "gpus" if shared == 1 else f"(gpus // {shared})"


def to_tune(job: Job, config: Config) -> bool:
    """Whether the ds_config and the job leave at least one choice."""
    return bool(job.space.knob or job.space.catalog or choices_of(config, settings(config), job))


def choices_of(config: Config, found: Autotuning, job: Job) -> dict[str, list[Any]]:
    """Returns dotted path of a tuned setting → its possible values, in the order of the ds_config."""
    chosen: dict[str, list[Any]] = {}
    for path, value in nested.leaves(config):
        if path.split(".")[0] in _LISTS_STAY or path in _NOT_CHOSEN:
            continue
        if isinstance(value, list) and value:
            chosen[path] = list(dict.fromkeys(map(_scalar, value)))
    stage = ds_config.at(config, STAGE)
    asked = (found.zero_optimization or {}).get("stage")
    if stage in ("auto", "all") or (stage is None and asked in ("auto", "all")):
        chosen = {STAGE: _stages(job, config, found), **chosen}
    elif isinstance(stage, list) and "all" in stage:
        chosen[STAGE] = _stages(job, config, found)
    if config.get(MICRO) == "auto" or (config.get(MICRO) is None and found.enabled):
        chosen[MICRO] = _micro(job, config, found)
    if found.enabled and not found.fast:
        for path, values in _templates(chosen.get(STAGE) or [stage or 0], config).items():
            chosen.setdefault(path, values)
    return chosen


def beyond_fast(config: Config, found: Autotuning, job: Job) -> list[str]:
    """Returns the paths tuned in addition to stage and micro batch, which DeepSpeed's fast mode would not tune."""
    return [path for path in choices_of(config, found, job) if path not in (STAGE, MICRO)]


def _stages(job: Job, config: Config, found: Autotuning) -> list[Any]:
    """Returns the ZeRO stages whose model states may fit on a device: all stages if the model's size is unknown or some
    configuration offloads."""
    params, activation, memory, half = _known_of_model(job, config, found)
    if _offloads(config):
        return [0, 1, 2, 3]
    fit = zero_memory.stages_that_fit(params, activation, memory, job.devices, half) if params and memory else []
    if params and memory and not fit:
        need = zero_memory.needed_bytes(params, 3, job.devices, half) + activation
        raise AutoscoutError(
            f"no ZeRO stage fits: stage 3 needs {need / 2**30:.1f} GiB per device for {params} parameters, but a "
            f"device has {memory / 2**30:.1f} GiB; offload, or use more devices",
            3,
        )
    return fit or [0, 1, 2, 3]


def _offloads(config: Config) -> bool:
    """Whether some configuration offloads optimizer state or weights to the host or to disk."""
    devices = [ds_config.at(config, path) for path in _DEVICES]
    return any({"cpu", "nvme"} & {*(each if isinstance(each, list) else [each])} for each in devices if each)


def wants_model_info(config: Config) -> bool:
    """Whether the model's size is unknown, although it is needed to determine which stages fit."""
    found = settings(config)
    left = ds_config.at(config, STAGE) in ("auto", "all") or config.get(MICRO) in (None, "auto")
    return found.enabled and left and not (found.model_info or {}).get("num_params")


def _known_of_model(job: Job, config: Config, found: Autotuning) -> tuple[int, int, float, bool]:
    """Returns (number of parameters, activation bytes per sample, device memory in bytes, whether training is in half
    precision). Unknown numbers are 0."""
    info, known = found.model_info or {}, attributes_of(job)
    half = modelled.in_half(job, config)
    params = int(info.get("num_params") or (known["params"] if known["cuda"] else 0))
    return params, int(info.get("activation_mem_per_gpu") or 0), known["memory_gib"] * 2**30, half


def _micro(job: Job, config: Config, found: Autotuning) -> list[Any]:
    """Returns the micro batches to try: the current one and the powers of two in the allowed range. If a global batch
    is set, only divisors of a rank's share of the global batch are returned."""
    shared = modelled.ranks_of_a_model(job, found.mp_size)
    ranks = max(job.devices // shared, 1)
    batch = batch_of(job, config)
    most = found.max_train_micro_batch_size_per_gpu
    most = min(most, batch // ranks) if batch else most
    least = found.min_train_micro_batch_size_per_gpu
    params, activation, memory, half = _known_of_model(job, config, found)
    if params and activation:
        needed = zero_memory.needed_bytes(params, 3, ranks, half, shared)
        most = min(most, zero_memory.largest_micro_batch(memory, needed, activation))
    sizes = sorted({2**i for i in range(20) if least <= 2**i <= most} | {today(job)} - {0})
    if batch:
        sizes = [s for s in sizes if batch % (s * ranks) == 0]
    if not sizes:
        raise AutoscoutError(
            f"no micro batch from {least} to {most} divides {batch} samples over {ranks} ranks; give "
            f"train_micro_batch_size_per_gpu as a list",
            2,
        )
    return list(sizes)


def today(job: Job) -> int:
    """Returns the micro batch that the user's launch line sets for a Hugging Face Trainer; 0 if it sets none."""
    return whole_number(modelled.flags_of(job), HUGGING_FACE[MICRO]) or 0


def _templates(stages: list[Any], config: Config) -> dict[str, list[Any]]:
    """Returns path → values of DeepSpeed's own tuning spaces for these stages, without fields that the ds_config
    has."""
    zero = config.get("zero_optimization") or {}
    found: dict[str, list[Any]] = {}
    for stage in stages:
        for name, values in DEFAULT_SPACES.get(stage, {}).items():
            if name not in zero:
                found[f"zero_optimization.{name}"] = list(values)
    return found


def _known(knob: KnobEntry, values: list[Any]) -> KnobEntry:
    """Returns the catalog's knob with the user's values. Since the user listed them, they are tuned even on CPUs."""
    when = knob.when.replace(" and cuda", "")
    return msgspec.structs.replace(knob, values=values, default=values[0], when=when, keeps=[])


def _new(path: str, values: list[Any], before: list[KnobEntry]) -> KnobEntry:
    """Returns a knob for a field that the catalog lacks. Its name is the shortest unused suffix of the path."""
    parts, taken = path.split("."), {knob.name for knob in before}
    stages = [s for s, space in DEFAULT_SPACES.items() if parts[-1] in space and parts[0] == "zero_optimization"]
    name = next((n for i in range(1, len(parts) + 1) if (n := "_".join(parts[-i:])) not in taken), path)
    numbers = all(isinstance(v, int | float) and not isinstance(v, bool) for v in values)
    return KnobEntry(
        name=name,
        kind="dense" if numbers else "sparse",
        layer="own",
        values=values,
        meaning=f"{path} of the ds_config",
        sets=path,
        default=values[0],
        when=f"stage in {stages}" if stages else "",
        off=values[0] if stages else None,
        priced=False,
    )


def _rules(
    job: Job, config: Config, shipped: Catalog, tuned: Mapping[str, list[Value]], ranks: str
) -> Iterator[RuleEntry]:
    """Returns the catalog's rules that apply to this space. (Some rules apply only if the global batch or the number of
    parameters is known.) If several values in a list have the same effect, the rules allow only the smallest of them.
    `ranks`: see `_ranks`."""
    params, batch = attributes_of(job)["params"], batch_of(job, config)
    for rule in shipped.rule:
        spoken = set(Expression(rule.holds).names)
        if not spoken & tuned.keys() and rule.id != "DB1":
            continue
        size = _SAME_RUN.get(rule.id, "")
        if size and not all(isinstance(value, int) for value in tuned.get(size, [""])):
            continue
        if ("params" in spoken and not params) or ("global_batch" in spoken and not batch) or "experts" in spoken:
            continue
        if rule.id == "DZ1" and (not modelled.in_half(job, config) or tuned.get("stage") == [0]):
            # the rule excludes stage 0 in 16 bits, because its losses differ; not needed in fp32 or if all stages are 0
            continue
        holds = rule.holds.replace("stage > 0 or dtype_bytes == 4", "stage > 0")
        holds = holds.replace("gpus", ranks) if rule.id == "DB1" else holds
        holds += f" or {size} == {min(tuned[size], key=int)}" if size else ""
        yield msgspec.structs.replace(rule, holds=holds)


def _offload_rules(job: Job, config: Config, names: Collection[str]) -> Iterator[RuleEntry]:
    chosen = [name for name in ("offload_optimizer", "offload_param") if name in names]
    if chosen and not config.get("optimizer") and not brings_optimizer(job, config):
        yield RuleEntry(
            id="DO1",
            holds=" and ".join(f"{name} == 'none'" for name in chosen),
            reason='offloading needs one of DeepSpeed\'s own optimizers: add an "optimizer" section to the ds_config',
            source="runtime/engine.py: ZeRO-Offload, autotuning/utils.py: validate_ds_config",
            checked="deepspeed",
        )


def scalar_of(value: Value) -> Any:
    """Converts a knob's value to the ds_config's value. (A knob has objects and lists as JSON text.)"""
    return json.loads(value) if isinstance(value, str) and value[:1] in ("{", "[") else value


def _scalar(value: Any) -> Value:
    if value is None:
        return "none"
    if isinstance(value, dict | list):
        return json.dumps(value, sort_keys=True)
    return int(value) if isinstance(value, float) and value.is_integer() and abs(value) > 9000 else value


def _names_read(texts: list[str], derived: dict[str, str]) -> set[str]:
    """Returns the names used in expressions, directly or in the definitions of derived names."""
    found: set[str] = set()
    ahead = {name for text in texts for name in Expression(text).names}
    while ahead:
        found |= ahead
        ahead = {name for each in ahead & derived.keys() for name in Expression(derived[each]).names} - found
    return found


def _chosen_here(path: str) -> bool:
    return path in (BATCH, STEPS, MICRO, STAGE) or path.startswith("autotuning.")


def _stage_of(config: Config) -> Config:
    """Returns the ds_config with each list in zero_optimization replaced by its first value."""
    zero = config.get("zero_optimization") or {}
    return {**config, "zero_optimization": {n: v[0] if isinstance(v, list) and v else v for n, v in zero.items()}}
