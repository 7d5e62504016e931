"""Implements `autoscout init`: drafts a job file from a launch command, a script or sbatch file that contains one, or a
config.json.

The user's launch command is kept unchanged, including containers and options, and becomes the search's reference."""

import contextlib
import os
import re
import shlex
import shutil
import tomllib
from itertools import pairwise
from pathlib import Path
from typing import Any

import msgspec

from autoscout.job.device_names import an_example, is_cpu, the_largest
from autoscout.job.presets import models
from autoscout.job.published_models import published
from autoscout.job.toml_text import toml
from autoscout.job.words import listed, nearest_name
from autoscout.line import shell_commands, shell_words
from autoscout.line.batch_lines import asked_of_line, chdir, looks_like_gpus, node_of, shows_gpus, unexpanded
from autoscout.line.called_script import Called, called, parameters, with_asked
from autoscout.line.launch_line import Batch, Line, split
from autoscout.line.launch_line import given as given_line
from autoscout.line.left_out import by_name_alone, secret_flags, unfilled, without_secrets
from autoscout.line.line_devices import REACH_ALL, flags_of_a_node, nodes_unread, starts_ranks_itself
from autoscout.line.script_folder import runs_in, with_folders
from autoscout.line.script_launch import handed_on, launch_in, of_branches, of_loops
from autoscout.line.visible_gpus import named, visible
from autoscout.machine.devices_here import GPU_TIMEOUT_S, NO_GPU, here, times_on_gpus
from autoscout.machine.model_job import of_config, of_shape
from autoscout.targets.target import names, target
from kb import door, secrets
from kb.records import AutoscoutError

_SOME_GPU = "GPU"  # placeholder for an unknown kind of GPU, which the user must replace before the job is accepted
# Flags of servers that set a parallel degree, with a shell variable as the value.
_SERVERS_DEGREE = re.compile(
    r"(?<!\S)(--?(?:(?:tensor|pipeline|data)-parallel-size|[tpd]p(?:-size)?))[ =](\$\S+)(?=\s|$)"
)
_SHOWS = re.compile(r"(?<!\w)(?:CUDA|HIP)_VISIBLE_DEVICES=[\"']?(\d[\d,]*)")
_ASKED = ("config.json", "because no shell expands")  # substrings of notes on values that the user must fill in first
_FILE = re.compile(r"\.[a-z]+$")  # suffix of a file name; suffixes of releases (v0.3, 3.1-8b) contain digits
_VARIABLE = re.compile(r"\{\{\s[^{}]*\s\}\}|\$\(|`|\$\{?(?:[A-Za-z_]\w*|\d)")  # shell variables, and {{ … }} as in Helm


def job_file(given: list[str], folder: Path, engine: str = "") -> tuple[str, list[str]]:
    """(content of a job file, notes for the user to review). `given`: the words of a launch command, or one file.
    `engine`: the job's target; "": the usual one for this command.

    Errors: AutoscoutError (exit 2) for a file that describes neither a launch nor a model."""
    made, notes = described(given, folder, engine)
    notes = [*_refused(toml(made, notes), folder, notes), *notes]
    return toml(made, notes), [door.plain(note) for note in notes]


def _refused(text: str, folder: Path, notes: list[str]) -> list[str]:
    """A note if commands would refuse the drafted job for a reason that no other note mentions."""
    from autoscout.targets.jobs import JobSpace, drafted_job  # imported here, because it imports numpy

    if any(asked in note for note in notes for asked in _ASKED):
        return []
    note = ""
    # If the kind of GPU is unknown, the job is refused only if it is invalid both for an ordinary GPU and for the
    # largest one.
    for device in (an_example(), the_largest()) if f'"{_SOME_GPU}"' in text else ("",):
        try:
            JobSpace.of_job(drafted_job(tomllib.loads(text.replace(f'"{_SOME_GPU}"', f'"{device}"')), folder))
            return []
        except AutoscoutError as error:
            note = f"AutoScout cannot read this job until you fix the following: {error}"
    return [note]


def described(given: list[str], folder: Path, engine: str = "") -> tuple[dict[str, Any], list[str]]:
    """Like `job_file`, but returns the job as a dict. The errors are the same."""
    if engine and engine not in names():
        raise AutoscoutError(f"--target '{engine}'{nearest_name(engine, names())}", 2)
    files = [Path(word) for word in given]
    # Not Path.is_file, which raises for words longer than a file name may be.
    are_files = all(os.path.isfile(word) for word in given)
    for name in [engine] if engine else names():
        if are_files and (made := target(name).described_by(files)) is not None:
            return made, made.pop("notes", [])
    path = files[0] if len(files) == 1 else None
    if path is not None and os.path.isfile(path / "config.json"):
        path = path / "config.json"
    named = path is not None and path.suffix in (".json", ".sh", ".sbatch") and not re.search(r"\s", given[0])
    if path is not None and (named or os.path.isfile(path)):
        try:
            text = path.read_text(encoding="utf-8-sig")
        except (OSError, UnicodeDecodeError) as error:
            why = error.strerror if isinstance(error, OSError) else "it is not UTF-8"
            raise AutoscoutError(f"{path}: cannot be read ({why})", 2) from error
        if path.suffix == ".py":
            line = f"autoscout init -- torchrun --nproc-per-node 2 {path} …"
            raise AutoscoutError(f"{path}: this is a script; give the command that starts it: {line}", 2)
        if path.suffix == ".json":
            _of_a_model(str(path), engine)
            return of_config(path, text)
        if path.suffix in (".yaml", ".yml"):
            return _of_manifest(text, str(path), folder, engine)
        return _of_script(Called(path, [], [], {}), text, folder, engine)
    one = [*shell_commands.commands(given[0])] if path else []
    if (script := called(shell_words.words(one[0]) if len(one) == 1 else given, folder)) is not None:
        with contextlib.suppress(AutoscoutError):  # on an error, the line is handled like any other command
            return _of_script(script, script.path.read_text(errors="replace"), folder, engine)
    if path is not None and not re.search(r"\s", given[0]) and (name := _preset(given[0])):
        _of_a_model(given[0], engine)
        return of_shape({"preset": name}, name)
    words, variables = _of_one(given[0]) if path else (given, {})
    return _of_line(given_line(shell_commands.unwrapped(words), folder, variables), engine)


def _of_a_model(given: str, engine: str) -> None:
    if engine not in ("", "megatron"):
        raise AutoscoutError(
            f"{given} is a model; for a job of {engine}, give the command that starts the engine: autoscout init -- …",
            2,
        )


def _preset(word: str) -> str:
    """The name of the preset for a model's name (also as on the Hugging Face Hub); "" if there is none, or if the word
    looks like a file."""
    return "" if os.path.exists(word) or _FILE.search(word) or " " in word else published(word).get("preset", "")


def _of_one(line: str) -> tuple[list[str], dict[str, str]]:
    """(words of a command given as one argument, the environment variables it sets). Errors: AutoscoutError (exit 2) if
    it is not a command."""
    with contextlib.suppress(AutoscoutError):  # `launch_in` raises if the first word is unknown
        return launch_in(line, "the line")[:2]
    words = split(line, f"{door.shown(line)} is not a shell command line")
    if len(words) > 1 or (words and shutil.which(words[0])):
        return words, {}
    what = (
        "is a folder without a config.json"
        if line and os.path.isdir(line)
        else "is neither a file nor a program on this machine"
    )
    name = line.rpartition("/")[2].lower()
    known = f": '{name}'{nearest_name(name, models())}" if name else ""
    raise AutoscoutError(
        f"{door.shown(line)} {what}; give the command that you run today, the script that contains it, or a "
        f"model's name{known}",
        2,
    )


def _of_script(
    script: Called, text: str, folder: Path, engine: str, callers: tuple[Path, ...] = ()
) -> tuple[dict[str, Any], list[str]]:
    """The job of a script's last launch command, and notes. `callers`: the scripts that call it (to detect cycles)."""
    callers = (*callers, script.path.resolve())
    path, text = script.path, with_asked(with_folders(text, script.path, folder), script.asked)
    given, of_given = parameters(script.given, text)
    given = {**script.variables, **given}
    line, exported, batch, goes, earlier, writes = launch_in(text, str(path), given=given)
    variables = {**script.variables, **exported}
    starts = [chdir(text)] if chdir(text) else []
    place, of_place = runs_in([*starts, *goes], path, line, folder)
    inner = called(line, place)
    if inner is not None and inner.path.resolve() not in callers:
        with contextlib.suppress(AutoscoutError):
            inner = inner._replace(variables={**variables, **inner.variables}, asked=[*script.asked, *inner.asked])
            return _of_script(inner, inner.path.read_text(errors="replace"), place, engine, callers)
    made, notes = _of_line(given_line(line, place, variables, batch, writes), engine)
    notes += of_given + of_place + of_branches(line, text, str(path), given) + of_loops(line, text)
    if left := unexpanded(text):
        notes.append(
            f"cluster: Slurm does not expand variables in #SBATCH {listed(left)}: write numbers in the script and here"
        )
    if earlier:
        shown = secrets.redacted(shlex.join(earlier))[:100]
        notes.append(
            f"launch.current: the script's last launch is used; to tune an earlier one, give its command: '{shown}'"
        )
    parallel = re.search(r"[^&]&\s*$", text, re.MULTILINE)
    if parallel or of_given:
        why = "starts something in the background" if parallel else "reads its arguments in a loop or a function"
        # The script is started as a whole, so only its own working folder matters.
        start = runs_in(starts, path, line, folder)[0]
        return _as_a_whole(script, why, (made, notes), Line((), variables, batch, start), engine)
    return made, notes


def _of_manifest(text: str, where: str, folder: Path, engine: str) -> tuple[dict[str, Any], list[str]]:
    # Imported here, because it loads a target, which delays the start of the UI.
    from autoscout.line.manifests import container_in

    found = container_in(text, where)
    words, variables = shell_commands.unwrapped(found.words), found.variables
    if found.script:
        words, exported = launch_in(found.script, where, given={**found.of_group, **variables})[:2]
        variables = {**variables, **exported}
    batch = None if found.gpus is None else Batch(found.nodes, found.gpus, found.kind)
    made, notes = _of_line(given_line(words, folder, variables, batch), engine)
    if found.others:
        notes.append(
            f"launch.current: the first of {found.others + 1} containers that serve a model is used; for a "
            "different one, such as that of a decode pool, give its command"
        )
    if found.image:
        notes.append(
            f"launch: the container's image is {found.image}; run AutoScout in that image, or on a machine that "
            "has the same programs"
        )
    return made, notes


def _as_a_whole(
    script: Called, why: str, found: tuple[dict[str, Any], list[str]], begins: Line, engine: str
) -> tuple[dict[str, Any], list[str]]:
    """(job, notes) of a script that must run as a whole. `found`: (job, notes) of its last launch command, returned
    unchanged for servers and for targets other than `command`; `begins`: working folder and variables with which the
    script starts."""
    # Imported here, because it imports numpy, which delays the start of the UI.
    from autoscout.targets.command.preset import preset, starts_server

    made, notes = found
    known = made["launch"].get("script", "")
    if made["target"] != "command" or starts_server(known):
        return made, notes
    path = str(script.path.resolve())
    shown = {gpu for value in _SHOWS.findall(script.path.read_text(errors="replace")) for gpu in named(value)}
    if shown and "CUDA_VISIBLE_DEVICES" not in begins.environment:  # all GPUs that the script's commands name
        environment = {**begins.environment, "CUDA_VISIBLE_DEVICES": ",".join(sorted(shown, key=int))}
        begins = msgspec.structs.replace(begins, environment=environment)
    name = os.path.relpath(path, begins.place)
    line = begins.of(["bash", path if name.startswith("..") else name, *script.given])
    made.pop("space", None)  # the script does not have the flags of its last command
    if known and not preset(known).knob:
        made["launch"] |= {"path": str(begins.place), "current": str(line)}
    else:
        whole, of_whole = _of_line(line, engine)
        launch = {key: value for key, value in made["launch"].items() if key != "script"} | whole["launch"]
        mine, its = (sum(node["count"] for node in each["cluster"]["nodes"]) for each in (made, whole))
        if its > mine:  # all commands together use more GPUs than the last one
            made, notes = made | {"cluster": whole["cluster"]}, of_whole
        made = whole | {key: made[key] for key in ("name", "task", "cluster")} | {"launch": launch}
        made.pop("space", None)
        notes = [*(n for n in notes if n.startswith("cluster")), *(n for n in of_whole if not n.startswith("cluster"))]
    notes.append(
        f"launch.current: the script {why}, so it is run unchanged; to tune it, write its commands into "
        "launch.command, with {name} in place of each value to tune, and declare those knobs in [space]"
    )
    return made, notes


def _of_line(line: Line, engine: str) -> tuple[dict[str, Any], list[str]]:
    if later := handed_on(line.words):
        raise AutoscoutError(
            f"'{str(line)[:60]}' submits the command after its -- as a separate job; give that command instead: "
            f"autoscout init -- {shlex.join(later)[:100]}",
            2,
        )
    if line.first == "srun" and ":" in line.words:
        raise AutoscoutError(
            "the srun line starts several components of a heterogeneous job (:), each on its own devices; give "
            "the command of the component to tune (autoscout init -- srun …), and start the other components "
            "separately",
            2,
        )
    line, of_containers = by_name_alone(line)
    by_engine = sorted(names(), key=lambda name: name == "command")  # "command" is last, as it accepts any command
    engines = [engine] if engine else [name for name in by_engine if not target(name).asked_for]
    with contextlib.chdir(line.place):  # for relative paths in the command
        made = next((job for name in engines if (job := target(name).recognises(line))), None)
        others = [] if engine or made is None else _other_engines(line)
    if made is None:
        known = f"of {engine}" if engine else "that AutoScout knows"
        raise AutoscoutError(f"'{str(line)[:80]}' is not a launch line {known}", 2)
    notes = made.pop("notes", []) + others + of_containers
    apart = made.pop("ranks_each", 1)
    nodes, of_nodes = _nodes(line, made.pop("devices", [0]), apart, made.pop("elsewhere", False))
    notes += of_nodes
    made["cluster"] = {"nodes": nodes, **made.get("cluster", {})}
    if each := made.pop("samples_each", 0):
        count = sum(node["count"] for node in nodes)
        batch = each * max(count // apart, 1)
        if "global_batch" not in made.get("traffic", {}) and nodes[0]["device"] in ("cpu", _SOME_GPU):
            notes.append(
                f"traffic.global_batch: {batch} samples per step are for {count} device{'s' * (count > 1)}; for a "
                f"different number of devices, write {each} samples per {f'{apart} devices' if apart > 1 else 'device'}"
            )
        made["traffic"] = {"global_batch": batch} | made.get("traffic", {})
    shown = shlex.split(made.get("launch", {}).get("current", "")) or line.words
    texts = {i + 2 for i, pair in enumerate(pairwise(shown)) if pair in (("bash", "-c"), ("sh", "-c"))}
    by_nobody = (word for i, word in enumerate(shown) if i not in texts)  # a shell in the line expands its own text
    names_left = [name for word in by_nobody for name in _VARIABLE.findall(word)]
    unknown = sorted({"$(…)" if name in ("$(", "`") else name.replace("${", "$") for name in names_left})
    if unknown:
        notes.append(
            f"launch.current: replace {listed(unknown)} with the value, because no shell expands variables here"
        )
        if line.words[0] == "srun" and len(nodes) > 1 and made["target"] == "command":
            notes[-1] += (
                "; or let AutoScout start every node: set cluster.hosts = 'slurm', and replace srun and the launcher's "
                f"rendezvous flags by {flags_of_a_node(line)}"
            )
        degrees = _SERVERS_DEGREE.findall(" ".join(shown))
        notes += [
            f"cluster: {flag} {value} is assumed to be 1; if it is more, add those devices to cluster.nodes"
            for flag, value in degrees
        ]
    launch = made.setdefault("launch", {})
    launch.setdefault("path", str(line.place.resolve()))
    if not launch["path"]:
        del launch["path"]
    if "command" not in launch:
        launch.setdefault("current", str(line))
    variables, of_secrets = without_secrets({**line.environment, **launch.get("environment", {})})
    if variables:
        launch["environment"] = variables
    notes += of_secrets + unfilled(variables) + secret_flags(shown, "current")
    notes += secret_flags(launch.get("command_prefix", []), "command_prefix")
    if not is_cpu(nodes[0]["device"]):
        made["launch"] = launch | times_on_gpus(made["target"]) | launch  # the command's own values win
    elif looks_like_gpus(line):  # sets the timeout for GPUs, which the user has yet to name
        launch.setdefault("timeout_s", GPU_TIMEOUT_S)
    return made, notes


def _other_engines(line: Line) -> list[str]:
    """Notes on targets that could also tune the command, but that the user must name with --target."""
    found = []
    for name in names():
        with contextlib.suppress(AutoscoutError):
            if target(name).asked_for and target(name).recognises(line):
                found.append(
                    f"target: this job tunes only the flags in the launch line; `autoscout init --target {name}` "
                    f"tunes all of {name}'s knobs"
                )
    return found


def _devices_used(line: Line, step: Batch | None, counts: list[int]) -> tuple[list[int], list[str]]:
    """(number of devices of each node, 0 if unknown; notes on contradictions between the numbers of ranks and of GPUs).
    `step`: the devices that the command requests from Slurm; `counts`: ranks per node in the command."""
    batch = line.allocation
    given = batch if batch and batch.each and not (batch.by_tasks and all(counts)) else step
    if batch and batch.tasks > 1 and counts[0] > 1 and starts_ranks_itself(line):
        return counts, [
            f"cluster: Slurm starts {batch.tasks} tasks per node, and each task starts the line's {counts[0]} ranks; "
            f"write --ntasks-per-node=1, or remove the launcher from the line"
        ]
    seen = len(visible(line.environment))
    if given is None or not given.each:
        several = batch.nodes if batch and len(counts) == 1 and line.first in REACH_ALL else 1
        used = [each or seen for each in counts * max(several, 1)]
        return used, _of_fewer(counts[0], seen) if len(counts) == 1 and 0 < counts[0] < seen else []
    nodes = [given.each] * (max(given.nodes, len(counts)) if given is step else given.nodes or len(counts))
    if not all(counts) or max(counts) == given.each or given.by_tasks:
        return counts if given is step and all(counts) else nodes, []
    if max(counts) < given.each:
        each = counts[0] if len({*counts}) == 1 else 0
        return [each] * len(nodes) if each else counts, _of_fewer(max(counts), given.each)
    return nodes, [
        f"cluster: the launch starts {max(counts)} ranks on a node with {given.each} GPUs, so one of the two "
        f"numbers is wrong; the job uses {given.each}: correct the job or the launch line"
    ]


def _of_fewer(used: int, given: int) -> list[str]:
    return [
        f"cluster: the launch uses {used} of the {given} GPUs of a node, so the job also has {used}; write count "
        f"= {given} to tune for all GPUs of the node"
    ]


def _nodes(line: Line, counts: list[int], apart: int, elsewhere: bool) -> tuple[list[dict[str, Any]], list[str]]:
    """(nodes of the cluster, notes to review). `counts`: devices of each node according to the command, 0 if it states
    none; `apart`: number of ranks that process a sample together; `elsewhere`: whether the command runs on devices
    other than this machine's CPUs."""
    step, batch = asked_of_line(line), line.allocation
    of_gpus = batch if batch and not batch.by_tasks else step
    counts, of_ranks = _devices_used(line, step, counts)
    stated = all(counts)
    site = next((each.kind for each in (of_gpus, batch) if each and each.kind), "")
    node, notes = node_of(site) if site else ({}, [])
    notes = [*of_ranks, *notes]
    kind, count = here()
    if kind == "cpu" and (count or of_gpus or site or elsewhere or shows_gpus(line)):
        kind = site or _SOME_GPU
    nodes = [{"device": kind, "count": each or max(count, apart), **node} for each in counts]
    such = ", ".join(f"{{ device = '{an_example()}', count = {each['count']} }}" for each in nodes[:2])
    such = f"write nodes = [{such}{', …' if nodes[2:] else ''}]"
    kind = nodes[0]["device"]
    if kind == _SOME_GPU:
        why = "this machine's GPUs are of an unknown kind" if count else "this machine shows no GPU, and the line"
        why += "" if count else " does not name its GPUs' kind"
        notes.append(
            f"cluster: {why}: {such}, with your device (and its memory_gib, if `autoscout check` does not know "
            "the device)"
        )
    elif kind == "cpu":
        time = f"launch.timeout_s = {GPU_TIMEOUT_S}"
        notes.append(f"{NO_GPU}, so these are CPU ranks; for GPUs {such}, with your kind of GPU, and {time}")
    if not (batch and batch.nodes) and len(nodes) == 1 and (flag := nodes_unread(line)):
        notes.append(f"cluster: the launch line's {flag} is assumed to be one node; write all nodes into cluster.nodes")
    if not stated:
        taken = f"this machine's {count} devices are" if count else "one device per node is"
        taken = f"the {apart} devices that share a sample are" if apart > max(count, 1) else taken
        notes.append(
            f"cluster: the launch line does not give the number of devices, so {taken} written; correct cluster.nodes"
        )
    elif sum(counts) % apart:
        notes.append(
            f"cluster: {sum(counts)} ranks do not divide into groups of {apart} that share a sample; correct "
            "cluster.nodes"
        )
    return nodes, notes
