"""What a line runs in, as far as experiments, which follow each other without a person, need it otherwise."""

import re
from itertools import pairwise
from pathlib import Path

SERVER_IMAGE = re.compile(r"(^|/)vllm-openai(:|@|$)")  # its entry point is the server
RUN = ("docker", "podman")
CONTAINERS = (*RUN, "apptainer", "singularity", "enroot")
RUN_IN = ("uv", "conda", "mamba", "micromamba", "pixi")  # environments of Python's: what follows their `run`
ENVIRONMENTS = (*CONTAINERS, *RUN_IN)
_BY_HAND = ("-d", "--detach", "-it", "-ti", "-i", "-t", "--interactive", "--tty")  # of docker run
_NAMED = ("--name", "--restart")
_STARTS = {  # what starts a container, and what mounts a folder in it
    **dict.fromkeys(RUN, (("run",), "--volume={0}:{0}")),
    **dict.fromkeys(("apptainer", "singularity"), (("exec", "run"), "--bind={0}")),
    "enroot": (("start",), "--mount={0}:{0}"),
}
_BY_SRUN = ("--container-image", "--container-mounts")  # Slurm's Pyxis


def runs_image(words: list[str]) -> int:
    """Where `docker run` begins among the words; -1 where it does not."""
    found = (i for i, (word, after) in enumerate(pairwise(words)) if Path(word).name in RUN and after == "run")
    return next(found, -1)


def repeatable(words: list[str]) -> list[str]:
    """docker's words without what is for one container by hand; each is removed afterwards, as others follow."""
    kept = [word for i, word in enumerate(words) if not (word in _BY_HAND or {word, words[i - 1]} & {*_NAMED})]
    kept = [word for word in kept if not word.startswith(tuple(f"{name}=" for name in _NAMED))]
    at = runs_image(kept)
    return kept if at < 0 or "--rm" in kept else [*kept[: at + 2], "--rm", *kept[at + 2 :]]


def mounted(words: list[str], folder: str) -> list[str]:
    """The words with `folder` under its own name in the container that they start; unchanged where they start none."""
    for i, (word, after) in enumerate(pairwise(words)):
        verbs, mount = _STARTS.get(Path(word).name, ((), ""))
        if after in verbs:
            return [*words[: i + 2], mount.format(folder), *words[i + 2 :]]
    image, mounts = ([i for i, word in enumerate(words) if word.partition("=")[0] == flag] for flag in _BY_SRUN)
    if mounts:
        at = mounts[-1] + ("=" not in words[mounts[-1]])
        return [*words[:at], f"{words[at]},{folder}:{folder}", *words[at + 1 :]]
    return [*words[: image[0]], f"{_BY_SRUN[1]}={folder}:{folder}", *words[image[0] :]] if image else words
