"""Reads the nodes, GPUs and GPU model that #SBATCH lines of a Slurm script, or an srun or docker command, request."""

import itertools
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from autoscout.job.device_names import is_cpu, kinds, stem_of
from autoscout.job.words import listed
from autoscout.line.containers import CONTAINERS, runs_image
from autoscout.line.launch_line import Batch, Line
from autoscout.line.recognition import frameworks, recognised
from autoscout.line.visible_gpus import visible

# Matches an option and its value. A short option may have its value attached (-N2).
_OPTION = re.compile(r"(?<!\S)(?:--?([\w-]+)[=\s]+|-([NG](?=\w)|n(?=\d)))([^\s-]\S*)")
# Programs that srun starts. Options after one of these names belong to the program, not to srun.
_PROGRAMS = ("torchrun", "python", "python3", "accelerate", "bash", "sh", "env")
# Matches the line that begins the next component of a heterogeneous Slurm job. Only the first component is read.
_COMPONENT = re.compile(r"^#SBATCH\s+(?:hetjob|packjob)\b", re.MULTILINE)
_GPUS_OF_DOCKER = re.compile(r"""--gpus[= ]["']*(?:(\d+)|device=([\w,-]+))""")
_CDI = re.compile(r"--device[= ](?:nvidia|amd)\.com/gpu=([\w:-]+)")
_OF_GPUS = ("gpus-per-node", "gres", "gpus", "G", "gpus-per-task")
_ON_GPUS = ("--fp16", "--num_gpus")


def asked(text: str) -> Batch | None:
    """Returns the resources that a script's #SBATCH lines request; None if they request neither GPUs nor several
    nodes."""
    options = _options(text)
    found = _batch({name: value for name, value in options.items() if "$" not in value})
    gpus = next((options[name] for name in _OF_GPUS if "$" in options.get(name, "")), "")
    # `gpus`: an option whose number of GPUs is a variable, which only the user knows
    if gpus and (found is None or found.by_tasks):
        kind = re.match(r"(\w+):", gpus.removeprefix("gpu:"))
        found = (found or Batch(1, 0))._replace(each=0, by_tasks=False, kind=kind[1] if kind else "")
    return found._replace(nodes=0) if found and "$" in options.get("nodes", options.get("N", "")) else found


def unexpanded(text: str) -> list[str]:
    """Returns the #SBATCH options whose values contain variables. (Slurm does not expand these.)"""
    return [f"{'--' if len(name) > 1 else '-'}{name}={value}" for name, value in _options(text).items() if "$" in value]


def asked_of_line(line: Line) -> Batch | None:
    """Returns the GPUs that a launch line requests by options of srun or of a container; None if it requests none."""
    if (at := runs_image(line)) >= 0 and (found := _GPUS_OF_DOCKER.search(" ".join(line.words[at:]))):
        return Batch(1, found[2].count(",") + 1 if found[2] else int(found[1]))
    if devices := _of_cdi(line):
        return None if "all" in devices else Batch(1, len(devices))
    if line.first != "srun":
        return None
    own = itertools.takewhile(lambda word: Path(word).name not in _PROGRAMS, line.launcher.words[1:])
    found = _batch(_options_in(" ".join(own)))
    return found if found and not found.by_tasks else None


def _of_cdi(line: Line) -> set[str]:
    """Returns the devices in a container's `--device nvidia.com/gpu=…`, as podman names them ("all" for all)."""
    return set(_CDI.findall(" ".join(line.words))) if runs_image(line) >= 0 else set()


def shows_gpus(line: Line) -> bool:
    """Whether a launch line certainly uses GPUs, because it passes GPUs to a container, sets CUDA_VISIBLE_DEVICES, or
    runs a framework that works only on GPUs."""
    handed = {*line.names} & {*CONTAINERS} and line.first_value(("--gpus", "--nv", "--rocm")) is not None
    return bool(handed or _of_cdi(line) or _on_gpus(line) == "only" or visible(line.environment))


def looks_like_gpus(line: Line) -> bool:
    """Whether a launch line runs a program that is rarely run without GPUs, even if the line requests no GPUs."""
    programs = {*line.names}
    served = {"vllm", "serve"} <= programs or _on_gpus(line)
    return bool(line.first_value(_ON_GPUS) is not None or programs & {"nccl", "pretrain_gpt.py"} or served)


def _on_gpus(line: Line) -> str:
    known = frameworks().get(recognised(line))
    return known.gpus if known else ""


def _batch(options: Mapping[str, str]) -> Batch | None:
    least = re.match(r"\d+", options.get("nodes", options.get("N", "1")))
    nodes = max(int(least[0]), 1) if least else 1
    found = _of_options(options, nodes)
    tasks = options.get("ntasks-per-node", "")
    return found._replace(tasks=int(tasks)) if found and tasks.isdecimal() else found


def _of_options(options: Mapping[str, str], nodes: int) -> Batch | None:
    by_node = _of_gres(options.get("gres", "")) or _of_gres(options.get("tres-per-node", ""))
    if found := _gpus(options.get("gpus-per-node", "")) or by_node:
        return Batch(nodes, found[1], found[0] or _named(options))
    sockets = options.get("sockets-per-node", "")  # Slurm demands it with GPUs per socket
    if (found := _gpus(options.get("gpus-per-socket", ""))) and sockets.isdecimal():
        return Batch(nodes, max(int(sockets), 1) * found[1], found[0] or _named(options))
    if found := _gpus(options.get("gpus", options.get("G", ""))):  # this option counts the GPUs of all nodes together
        return Batch(nodes, max(found[1] // nodes, 1), found[0] or _named(options))
    each, all_tasks = options.get("ntasks-per-node", ""), options.get("ntasks", options.get("n", ""))
    if found := _gpus(options.get("gpus-per-task", "")) or _of_gres(options.get("tres-per-task", "")):
        tasks = int(each) if each.isdecimal() else int(all_tasks) // nodes if all_tasks.isdecimal() else 1
        return Batch(nodes, max(tasks, 1) * found[1], found[0] or _named(options))
    if each.isdecimal():
        return Batch(nodes, int(each), _named(options), by_tasks=True)
    # the job gets whole nodes; how many GPUs each has is unknown
    kind = _named(options)
    return Batch(nodes, 0, kind, by_tasks=True) if nodes > 1 or kind else None


def _named(options: Mapping[str, str]) -> str:
    """Returns the GPU model, or the cloud's instance type, that appears in the name of the constraint or of the
    partition; "" if neither names one."""
    names = " ".join(options.get(option, "") for option in ("constraint", "C", "partition", "p")).lower()
    words = [*re.findall(r"[a-z0-9.-]+", names), *re.findall(r"[a-z0-9]+", names)]
    return next((word for word in words if stem_of(word) and not is_cpu(word)), "")


def chdir(text: str) -> str:
    """Returns the working directory that the #SBATCH lines set; "" if they set none (the script then runs in the
    directory from which sbatch is called)."""
    options = _options(text)
    return options.get("chdir") or options.get("D", "")


def node_of(kind: str) -> tuple[dict[str, Any], list[str]]:
    """Returns the `device` field of a node ({} for an unknown kind of GPU), and notes for the user to review."""
    name = stem_of(kind)
    if not name:
        known = listed(one for one in kinds() if not is_cpu(one))
        return {}, [
            f"cluster: the script requests GPUs of the unknown kind '{kind}'; write the most similar device of "
            f"{known}, and set memory_gib to the memory of your GPUs"
        ]
    others = [other for other in kinds() if other.startswith(f"{name}-")]
    notes = (
        [f"cluster: '{kind}' is assumed to be {name}; if the GPU is {listed(others)} instead, write that name"]
        if others
        else []
    )
    return {"device": name}, notes if kind.lower() == name else []


def _options(text: str) -> dict[str, str]:
    first = _COMPONENT.split(text, maxsplit=1)[0]
    return _options_in(" ".join(re.findall(r"^#SBATCH\s+(.*)", first, re.MULTILINE)))


def _options_in(options: str) -> dict[str, str]:
    return {long or short: value for long, short, value in _OPTION.findall(options)}


def _of_gres(text: str) -> tuple[str, int] | None:
    """Returns (GPU model, number of GPUs) from Slurm's --gres, None if it has no GPUs: "nvme:1,gpu:a100:4" → ("a100",
    4); "gpu:a100" means one GPU."""
    of_gpus = (re.fullmatch(r"(?:gres[/:])?gpu(?:[:=](.*))?", piece) for piece in text.split(","))
    return next((_gpus(found[1] or "1") for found in of_gpus if found), None)


def _gpus(text: str) -> tuple[str, int] | None:
    """Returns (GPU model, number of GPUs), None if the text has no number: "a100:4" → ("a100", 4); "4" → ("", 4). If
    several models are listed, the first one counts."""
    kind, _, count = text.split(",")[0].rpartition(":")
    if count.isdecimal():
        return kind, max(int(count), 1)
    return (count, 1) if count else None
