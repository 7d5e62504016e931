"""Finds variables and flags of a launch line that a job file must not contain (secrets), and variables that only a
shell can expand."""

import re
from collections.abc import Mapping, Sequence

from autoscout.job.words import listed
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
