"""What a line runs in, as far as experiments, which follow each other without a person, need it otherwise."""

from itertools import pairwise
from pathlib import Path

RUN = ("docker", "podman")
CONTAINERS = (*RUN, "apptainer", "singularity", "enroot")
RUN_IN = ("uv", "conda", "mamba", "micromamba", "pixi")  # environments of Python's: what follows their `run`
ENVIRONMENTS = (*CONTAINERS, *RUN_IN)
_BY_HAND = ("-d", "--detach", "-it", "-ti", "-i", "-t", "--interactive", "--tty")  # of docker run
_NAMED = ("--name", "--restart")


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
