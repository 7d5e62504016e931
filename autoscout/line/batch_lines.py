"""The nodes, devices, and kind of device that the #SBATCH lines of a script, or a line of srun, ask for."""

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

# An option and its value. A short option may have its value attached; an option without a value is followed by another
# option or by nothing.
_OPTION = re.compile(r"(?<!\S)(?:--?([\w-]+)[=\s]+|-([NG])(?=\w))([^\s-]\S*)")
# Every command that srun starts begins with one of these.
_PROGRAMS = ("torchrun", "python", "python3", "accelerate", "bash", "sh", "env")
_COMPONENT = re.compile(r"^#SBATCH\s+(?:hetjob|packjob)\b", re.MULTILINE)  # begins a heterogeneous job's next component
_GPUS_OF_DOCKER = re.compile(r"""--gpus[= ]["']*(?:(\d+)|device=([\w,-]+))""")
_OF_GPUS = ("gpus-per-node", "gres", "gpus", "G", "gpus-per-task")
_ON_GPUS = ("--fp16", "--num_gpus")


def asked(text: str) -> Batch | None:
    """What the lines ask for; None if they ask for neither devices nor several nodes."""
    options = _options(text)
    found = _batch({name: value for name, value in options.items() if "$" not in value})
    gpus = next((options[name] for name in _OF_GPUS if "$" in options.get(name, "")), "")
    # The lines ask for GPUs, but only the user knows how many.
    if gpus and (found is None or found.by_tasks):
        kind = re.match(r"(\w+):", gpus.removeprefix("gpu:"))
        found = (found or Batch(1, 0))._replace(each=0, by_tasks=False, kind=kind[1] if kind else "")
    return found._replace(nodes=0) if found and "$" in options.get("nodes", options.get("N", "")) else found


def unexpanded(text: str) -> list[str]:
    """#SBATCH options whose values are variables, which Slurm does not fill in."""
    return [f"{'--' if len(name) > 1 else '-'}{name}={value}" for name, value in _options(text).items() if "$" in value]


def asked_of_line(line: Line) -> Batch | None:
    """The GPUs for which a line of srun, or of a container, asks; None if it asks for none."""
    if (at := runs_image(line)) >= 0 and (found := _GPUS_OF_DOCKER.search(" ".join(line.words[at:]))):
        return Batch(1, found[2].count(",") + 1 if found[2] else int(found[1]))
    if line.first != "srun":
        return None
    own = itertools.takewhile(lambda word: Path(word).name not in _PROGRAMS, line.launcher.words[1:])
    found = _batch(_options_in(" ".join(own)))
    return found if found and not found.by_tasks else None


def shows_gpus(line: Line) -> bool:
    """Whether a line certainly runs on GPUs: it passes them to a container, names them, or runs a GPU-only program."""
    handed = {*line.names} & {*CONTAINERS} and line.first_value(("--gpus", "--nv", "--rocm")) is not None
    return bool(handed or _on_gpus(line) == "only" or visible(line.environment))


def looks_like_gpus(line: Line) -> bool:
    """Whether a line runs something that rarely runs without GPUs, though it does not ask for any."""
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
    if found := _gpus(options.get("gpus-per-node", "")) or _of_gres(options.get("gres", "")):
        return Batch(nodes, found[1], found[0] or _named(options))
    if found := _gpus(options.get("gpus", options.get("G", ""))):  # GPUs of all nodes together
        return Batch(nodes, max(found[1] // nodes, 1), found[0] or _named(options))
    each, all_tasks = (options.get(option, "") for option in ("ntasks-per-node", "ntasks"))
    if found := _gpus(options.get("gpus-per-task", "")):
        tasks = int(each) if each.isdecimal() else int(all_tasks) // nodes if all_tasks.isdecimal() else 1
        return Batch(nodes, max(tasks, 1) * found[1], found[0] or _named(options))
    if each.isdecimal():
        return Batch(nodes, int(each), by_tasks=True)
    return Batch(nodes, 0, by_tasks=True) if nodes > 1 else None  # whole nodes, whose devices only the user knows


def _named(options: Mapping[str, str]) -> str:
    """The kind of GPU after which the nodes' features or the partition are named; "" if none."""
    names = " ".join(options.get(option, "") for option in ("constraint", "C", "partition", "p"))
    words = re.findall(r"[a-z0-9]+", names.lower())
    return next((word for word in words if stem_of(word) and not is_cpu(word)), "")


def chdir(text: str) -> str:
    """The folder that the #SBATCH lines set for the script; "" for the folder it is submitted from."""
    options = _options(text)
    return options.get("chdir") or options.get("D", "")


def node_of(kind: str) -> tuple[dict[str, Any], list[str]]:
    """Returns the node's device as in a job file ({} for an unknown kind), and notes for the user to review."""
    name = stem_of(kind)
    if not name:
        known = listed(one for one in kinds() if not is_cpu(one))
        return {}, [
            f"cluster: the job asks for GPUs of the kind '{kind}', which is not known; name the nearest of "
            f"{known}, and give its memory_gib"
        ]
    others = [other for other in kinds() if other.startswith(f"{name}-")]
    notes = [f"cluster: '{kind}' is assumed to be {name}; if it is {listed(others)}, write that"] if others else []
    return {"device": name}, notes if kind.lower() == name else []


def _options(text: str) -> dict[str, str]:
    first = _COMPONENT.split(text, maxsplit=1)[0]
    return _options_in(" ".join(re.findall(r"^#SBATCH\s+(.*)", first, re.MULTILINE)))


def _options_in(options: str) -> dict[str, str]:
    return {long or short: value for long, short, value in _OPTION.findall(options)}


def _of_gres(text: str) -> tuple[str, int] | None:
    """ "nvme:1,gpu:a100:4" → ("a100", 4); "gpu:a100" means one GPU."""
    of_gpus = (re.fullmatch(r"(?:gres/)?gpu(?:[:=](.*))?", piece) for piece in text.split(","))
    return next((_gpus(found[1] or "1") for found in of_gpus if found), None)


def _gpus(text: str) -> tuple[str, int] | None:
    """ "a100:4" → ("a100", 4); "4" → ("", 4). Where several kinds are listed, the first one counts."""
    kind, _, count = text.split(",")[0].rpartition(":")
    if count.isdecimal():
        return kind, max(int(count), 1)
    return (count, 1) if count else None
