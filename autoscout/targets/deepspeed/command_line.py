"""Creates a job file's content from the arguments of `autoscout tune ds_config.json --script "train.py …"`, which
correspond to `deepspeed --autotuning run train.py … --deepspeed_config ds_config.json`."""

import math
import re
import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from autoscout.job.names import as_name
from autoscout.job.words import listed
from autoscout.line import hostfile
from autoscout.line.launch_line import Line
from autoscout.line.line_devices import NO_HOSTS, devices
from autoscout.line.recognition import frameworks, recognised
from autoscout.space.language.template import of_a_line
from autoscout.targets.deepspeed import ds_config, line_model
from autoscout.targets.deepspeed.arguments import ENGINES
from autoscout.targets.deepspeed.autotuning import OBJECTIVES, STRATEGIES, settings
from autoscout.targets.deepspeed.config_space import BATCH, STAGE, leaves_auto
from autoscout.targets.deepspeed.ds_config import Config
from autoscout.targets.deepspeed.line_parts import parts, runs_in
from autoscout.targets.deepspeed.modelled import ranks_by_line
from autoscout.targets.deepspeed.tuning_space import HUGGING_FACE, MICRO, STEPS
from kb.records import AutoscoutError

_ONE_HOST = "torchrun --nproc-per-node {gpus} --master-port {port}"
_HOSTS = (
    "torchrun --nnodes {nodes} --node-rank {node} --nproc-per-node {ranks} --master-addr {head} --master-port {port}"
)
_OTHERS = ("deepspeed", "accelerate", "srun", "mpirun", "mpiexec")
_BY_SLURM = (
    "launch.command: srun starts the ranks, as in your launch line; run AutoScout where srun works (such as in "
    "an allocation of these nodes), with --kb on a disk that all nodes and their containers share"
)
_NO_LOSS = (
    "launch.metrics: add the pattern of your script's loss, such as loss = 'loss: ([\\d.]+)'; it shows which "
    "configurations train something else"
)


def job_of(
    config: Path,
    script: list[str],
    device: str,
    gpus: int,
    hosts: Path | None,
    python: str = "",
    loss: str = "",
    completed: Path | None = None,
) -> dict[str, Any]:
    """Returns a job file's content. `script`: the user's script with arguments, which need not name the ds_config.
    `gpus`: number of GPUs (or CPU ranks) on this machine. `hosts`: a host file, given instead of `gpus`. `loss`:
    pattern of the script's losses. `completed`: a copy of the ds_config with the number of model parameters added,
    which is read instead of the ds_config. The result's key `notes` lists what the user should check.

    Errors: AutoscoutError (exit 2)."""
    nodes = [{"device": device, "count": n} for n in hostfile.read(hosts).values()] if hosts else []
    cluster: dict[str, Any] = {"nodes": nodes or [{"device": device, "count": gpus}]}
    if hosts:
        cluster["hosts"] = str(hosts.resolve())
    return _job_on(cluster, config, Line(tuple(script)), python, loss, completed)


def _job_on(
    cluster: dict[str, Any],
    config: Path,
    script: Line,
    python: str = "",
    loss: str = "",
    completed: Path | None = None,
) -> dict[str, Any]:
    found = ds_config.read(config)
    asked = settings(found, str(config))
    if not script.words:
        raise AutoscoutError(f'{config}: name the script that uses this ds_config: --script "train.py …"', 2)
    path = (completed or config).resolve()
    line = parts(script)
    if line.ranks_by_slurm:
        words, before, notes = [str(script)], [], [_BY_SLURM]
    else:
        words = [_HOSTS if "hosts" in cluster else _ONE_HOST, str(line.script)]
        before, notes = runs_in(line, len(cluster["nodes"]))
        notes += _replaced(script.words[: len(script.words) - len(line.script.words)], before)
    if not _names_config(script, config):
        words.append(f"--deepspeed --deepspeed_config {shlex.quote(str(path))}")
    command = " ".join(words)
    command = re.sub(rf"(?<=[\s=]){re.escape(str(config))}(?=\s|$)", shlex.quote(str(path)), command)
    launch: dict[str, Any] = {
        "path": str(Path.cwd()),
        "command": command,
        "render": [{"from": str(path), "to": "{folder}/ds_config.json"}],
        "iterations": max(asked.end_profile_step - 1, 5),
    }
    if before:
        launch["command_prefix"] = before
    if python:
        launch["python"] = str(Path(python).absolute())
    metrics: dict[str, Any] = {"loss": loss} if loss else {}
    if asked.metric in ("flops", "FLOPS_per_gpu"):
        metrics["flops_per_gpu"] = {"file": ENGINES, "json": "FLOPS_per_gpu"}
    if leaves_auto(found):  # with a Hugging Face Trainer, the engine prints no steps
        metrics["samples_per_s"] = {"file": ENGINES, "json": "throughput"}
    if metrics:
        launch["metrics"] = metrics
    job: dict[str, Any] = {"name": _name(script), "task": "pretrain", "target": "deepspeed"}
    stated = found.get(BATCH) if isinstance(found.get(BATCH), int) else asked.max_train_batch_size
    apart = ranks_by_line(script.alike, asked.mp_size)
    batch = stated or _of_trainer(script) * max(sum(node["count"] for node in cluster["nodes"]) // apart, 1)
    from_line, of_model = line_model.described(script.alike, found)
    notes += of_model
    if traffic := {
        key: value for key, value in (("seq_len", from_line.get("seq_len")), ("global_batch", batch)) if value
    }:
        job["traffic"] = traffic
    if from_line:
        job["model"] = from_line["model"]
    return {
        **job,
        "cluster": cluster,
        "objective": OBJECTIVES[asked.metric],
        "budget": {"profiles": asked.tuner_num_trials},
        "launch": launch,
        **({"notes": notes} if notes else {}),
    }


def job_of_line(line: Line) -> dict[str, Any] | None:
    """Like `job_of`, for a launch line with a ds_config; None if the line names no ds_config or the file does not
    exist. The key `devices` has each node's number of devices, 0 if unknown. Errors: AutoscoutError (exit 2)."""
    flags = line.alike
    named = next((flags[flag] for flag in ("--deepspeed_config", "--deepspeed") if flags.get(flag)), [""])[0]
    if not (named.endswith(".json") and Path(named).is_file()):
        return None
    # frameworks such as Axolotl do not accept a Trainer's flags
    if (known := recognised(line)) and frameworks()[known].overrides:
        return None
    asked, config = devices(line), ds_config.read(Path(named))
    notes = [_NO_LOSS, *_that_stays(config, named), *asked.notes]
    hosts = asked.hosts
    if not hosts and len(asked.counts) > 1 and not parts(line).ranks_by_slurm:
        hosts = "slurm" if line.words[0] == "srun" else "hostfile"
        notes += [NO_HOSTS] if hosts == "hostfile" else []
    named_there = {"hosts": hosts, "include": asked.include, "exclude": asked.exclude} if hosts else {}
    cluster = {key: value for key, value in named_there.items() if value}
    made = _job_on({"nodes": [{"count": n or 1} for n in asked.counts], **cluster}, Path(named), line)
    made["launch"]["command"] = of_a_line(made["launch"]["command"])
    if not hosts and (shown := _chosen(line.launcher)):
        made["launch"]["environment"] = {"CUDA_VISIBLE_DEVICES": shown}
    apart = ranks_by_line(flags, settings(config, named).mp_size)
    notes += _not_equal(config, asked.counts, apart)
    each = _of_trainer(line)
    if not all(asked.counts) and each and not isinstance(config.get(BATCH), int):
        # the number of devices is unknown, and with it the global batch
        made.get("traffic", {}).pop("global_batch", None)
        made["samples_each"] = each
        made["ranks_each"] = apart
    steps = flags.get(HUGGING_FACE[STEPS], ["1"])[:1]
    if flags.get(HUGGING_FACE[MICRO]) and not each:
        notes.append(
            "traffic.global_batch: write the samples of a step over all devices, because experiments replace "
            f"{HUGGING_FACE[STEPS]} {' '.join(steps)}"
        )
    return {**made, "cluster": cluster, "devices": asked.counts, "notes": [*notes, *made.get("notes", [])]}


def _chosen(launcher: Line) -> str:
    """Returns the devices of one machine that a launcher's options choose, because torchrun, which replaces the
    launcher, would use the first ones; "" for no choice."""
    if "deepspeed" in launcher.names:
        return str(launcher.value("--include") or "").partition(":")[2]
    ids = str(launcher.value("--gpu_ids") or "") if "accelerate" in launcher.names else ""
    return ids if re.fullmatch(r"\d+(,\d+)*", ids) else ""


def _not_equal(config: Config, counts: list[int], apart: int) -> list[str]:
    """Returns a list with a note if the three batch sizes of a ds_config are inconsistent for the line's number of
    ranks. DeepSpeed would then fail with an assertion. `apart`: number of ranks that process the same samples."""
    batch, micro, steps = (config.get(name) for name in (BATCH, MICRO, STEPS))
    if not (all(counts) and isinstance(batch, int) and isinstance(micro, int) and isinstance(steps, int)):
        return []
    ranks = max(sum(counts) // apart, 1)
    if batch == micro * steps * ranks:
        return []
    return [
        f"ds_config: DeepSpeed does not start with this file on {ranks} ranks, because {BATCH} {batch} is not {MICRO} "
        f"{micro} × {STEPS} {steps} × {ranks}; experiments keep {batch} samples per step by changing the accumulation "
        "steps; if that is not what you want, correct the wrong number"
    ]


def _replaced(starter: Sequence[str], kept: list[str]) -> list[str]:
    """Returns a list with a note if AutoScout replaces the line's launcher. `starter`: the words before the script.
    `kept`: the words of `starter` that are not replaced."""
    theirs = [name for word in starter if word not in kept and (name := Path(word).name) in _OTHERS]
    left_out = ", and its other settings, such as --mixed_precision, are left out" * ("accelerate" in theirs)
    return [f"launch.command: torchrun starts the ranks in place of {listed(theirs)}{left_out}"] if theirs else []


def _that_stays(config: Config, named: str) -> list[str]:
    """Returns a list with a note if the ds_config fixes the ZeRO stage."""
    stage = ds_config.at(config, STAGE)
    if not isinstance(stage, int):
        return []
    return [f'ds_config: the ZeRO stage {stage} is fixed; to try other stages, write "stage": "auto" in {named}']


def _of_trainer(script: Line) -> int:
    """Returns the samples per rank and step according to a Hugging Face Trainer's flags; 0 if none sets them."""
    flags = script.alike
    numbers = [
        flags.get(flag, [default])[:1] for flag, default in ((HUGGING_FACE[MICRO], "0"), (HUGGING_FACE[STEPS], "1"))
    ]
    return math.prod(int(words[0]) if words and words[0].isdigit() else 0 for words in numbers)


def strategy_of(config: Path) -> str:
    """Returns the search strategy that corresponds to a ds_config's tuner_type; "" for AutoScout's default."""
    return STRATEGIES.get(settings(ds_config.read(config), str(config)).tuner_type or "", "")


def _names_config(script: Line, config: Path) -> bool:
    values = [word.partition("=")[2] or word for word in script.words]
    return any(v == str(config) or (v.endswith(".json") and Path(v).resolve() == config.resolve()) for v in values)


def _name(script: Line) -> str:
    return as_name(Path(script.program.first).stem, "deepspeed")
