"""Finds variables and flags of a launch line that a job file must not contain (secrets), and variables that only a
shell can expand."""

import re
from collections.abc import Mapping, Sequence
from itertools import pairwise

from autoscout.job.words import listed
from autoscout.line.containers import runs_image
from autoscout.line.launch_line import Line
from kb import secrets


def without_secrets(variables: Mapping[str, str]) -> tuple[dict[str, str], list[str]]:
    """Returns (variables that do not look like secrets, notes about removed secrets). Job files must not contain
    secrets, because they are shared."""
    secret = {name for name, value in variables.items() if secrets.is_one(name, value)}
    kept = {name: value for name, value in variables.items() if name not in secret}
    if not secret:
        return kept, []
    return kept, [
        f"launch.environment: AutoScout leaves out variables that look like secrets ({listed(sorted(secret))}), "
        "because a job file is stored and shared; set them in the shell that runs AutoScout, whose variables all runs "
        "inherit"
    ]


def by_name_alone(line: Line) -> tuple[Line, list[str]]:
    """Returns (a line of docker or podman with -e NAME in place of -e NAME=VALUE for each value that looks like a
    secret, notes). The container then gets the variable of the shell that runs the line."""
    if runs_image(line) < 0:
        return line, []
    words, names = [*line.words], list[str]()
    for i, (before, word) in enumerate(pairwise(["", *line.words])):
        name, equals, value = word.removeprefix("--env=").partition("=")
        by_flag = before in ("-e", "--env") or word.startswith("--env=")
        if by_flag and equals and secrets.is_one(name, value):
            words[i] = word.removesuffix(f"={value}")
            names.append(name)
    if not names:
        return line, []
    return line.of(words), [
        f"launch: the value of {listed(names)} looks like a secret, but a job file is stored and shared; set the "
        "variable in the shell that runs AutoScout, from which the container gets it"
    ]


def secret_flags(words: Sequence[str], field: str) -> list[str]:
    """Returns notes about flags whose values look like secrets. This function does not remove them."""
    # includes the words inside the text of `bash -c`
    texts = [part for word in words for part in (word.split() or [word])]
    parts = [part for text in texts for part in text.split(",")]  # for example --export=ALL,NAME=VALUE
    found = []
    for before, word, kept in zip(["", *parts], parts, secrets.words(parts), strict=False):
        name, equals, _ = word.partition("=")
        if kept != word:
            found.append(name if equals else before if before.startswith("-") else kept)
    if not found:
        return []
    return [
        f"launch.{field}: the value of {listed(found)} looks like a secret, but a job file is stored and shared; "
        "set an environment variable in the shell that runs AutoScout instead"
    ]


def unfilled(variables: Mapping[str, str]) -> list[str]:
    """Returns notes about variables whose values only a shell can compute."""
    names = [name for name, value in variables.items() if re.search(r"\$\(|`|\$\{?[A-Za-z_]", value)]
    if not names:
        return []
    return [
        (
            f"launch.environment: write the value of {listed(names)}, or remove it, because no shell expands "
            "variables here"
        )
    ]
