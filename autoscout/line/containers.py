"""Adapts a launch line that starts a container, so that experiments can run it repeatedly and without a terminal."""

import re
from itertools import pairwise

from autoscout.line.launch_line import Line

SERVER_IMAGE = re.compile(r"(^|/)vllm-openai(:|@|$)")  # the image's entry point starts the server
STARTS_SERVER = re.compile(r"vllm serve|api_server|launch_server|trtllm-serve|sglang serve")  # in a command's words
RUN = ("docker", "podman")
CONTAINERS = (*RUN, "apptainer", "singularity", "enroot")
# environment managers: the command to run follows the word `run`
RUN_IN = ("uv", "conda", "mamba", "micromamba", "pixi")
# their options whose value is a name, which may be that of a launcher: `uv run --extra deepspeed accelerate launch`
_NAMES = ("--extra", "--group", "--only-group", "--with", "-n", "--name", "-e", "--environment")
ENVIRONMENTS = (*CONTAINERS, *RUN_IN)
# Options of `docker run` for interactive or background use, which are removed from the line of an experiment.
_INTERACTIVE = ("-d", "--detach", "-it", "-ti", "-i", "-t", "--interactive", "--tty")
_NAMED = ("--name", "--restart")
_STARTS = {  # container program → (subcommands that start a container, option that mounts a folder)
    **dict.fromkeys(RUN, (("run",), "--volume={0}:{0}")),
    **dict.fromkeys(("apptainer", "singularity"), (("exec", "run"), "--bind={0}")),
    "enroot": (("start",), "--mount={0}:{0}"),
}
_BY_SRUN = ("--container-image", "--container-mounts")  # options of Slurm's container plugin, Pyxis


def named_programs(line: Line) -> set[str]:
    """Returns the names among the line's words, without those that an environment manager's options have as values."""
    at = next((i for i, name in enumerate(line.names) if name in RUN_IN), len(line.words))
    pairs = enumerate(zip(line.names, ("", *line.words), strict=False))
    return {name for i, (name, before) in pairs if not (i > at and before in _NAMES)}


def runs_image(line: Line) -> int:
    """Returns the index of the container program (`docker` in `docker run`); -1 if the launch line does not run an
    image."""
    return next((i for i, (name, after) in enumerate(pairwise(line.names)) if name in RUN and after == "run"), -1)


def by_images_entry(line: Line) -> Line:
    """Returns the line without `--entrypoint vllm` and `serve` around an image whose own entry point starts the server:
    it runs the same."""
    image = next((i for i, word in enumerate(line.words) if SERVER_IMAGE.search(word)), len(line.words))
    before, after = line.words[:image], line.words[image + 1 :]
    own = line.of(before).without("--entrypoint")
    said = line.of(before).value("--entrypoint")
    return line.of([*own.words, line.words[image], *after[1:]]) if said == "vllm" and after[:1] == ("serve",) else line


def repeatable(line: Line) -> Line:
    """Returns the line without interactive options and `_NAMED`, but with --rm, so that it can run repeatedly."""
    words = line.words
    kept = [word for i, word in enumerate(words) if not (word in _INTERACTIVE or {word, words[i - 1]} & {*_NAMED})]
    kept = [word for word in kept if not word.startswith(tuple(f"{name}=" for name in _NAMED))]
    at = runs_image(line.of(kept))
    return line.of(kept if at < 0 or "--rm" in kept else [*kept[: at + 2], "--rm", *kept[at + 2 :]])


def mounted(line: Line, folder: str) -> Line:
    """Returns the line with `folder` mounted at the same path in the container. The line is unchanged if it starts no
    container."""
    words = line.words
    for i, (name, after) in enumerate(pairwise(line.names)):
        verbs, mount = _STARTS.get(name, ((), ""))
        if after in verbs:
            return line.of([*words[: i + 2], mount.format(folder), *words[i + 2 :]])
    image, mounts = ([i for i, word in enumerate(words) if word.partition("=")[0] == flag] for flag in _BY_SRUN)
    if mounts:
        at = mounts[-1] + ("=" not in words[mounts[-1]])
        return line.of([*words[:at], f"{words[at]},{folder}:{folder}", *words[at + 1 :]])
    return line.of([*words[: image[0]], f"{_BY_SRUN[1]}={folder}:{folder}", *words[image[0] :]]) if image else line
