"""What a job file must not hold, or cannot fill in, of the variables and flags of a launch line."""

import re
from collections.abc import Mapping, Sequence
from itertools import pairwise

from autoscout.job.words import listed
from kb import secrets


def without_secrets(variables: Mapping[str, str]) -> tuple[dict[str, str], list[str]]:
    """(the others, what a person should review): a job is kept with its measurements, exported, and shared."""
    secret = {name for name, value in variables.items() if secrets.is_one(name, value)}
    kept = {name: value for name, value in variables.items() if name not in secret}
    if not secret:
        return kept, []
    return kept, [
        f"launch.environment: left out {listed(sorted(secret))}, since a job file is kept and shared; set it where you "
        f"run AutoScout, whose variables its runs have"
    ]


def secret_flags(words: Sequence[str]) -> list[str]:
    """What a person should review of the line's own flags, which stay as they are."""
    found = []
    texts = [part for word in words for part in (word.split() or [word])]  # of the text of `bash -c`, too
    words = [part for text in texts for part in text.split(",")]  # --export=ALL,NAME=VALUE
    for word, after in pairwise([*words, ""]):
        flag, equals, value = word.partition("=")
        value = value if equals else "" if after.startswith("-") else after
        if (flag.startswith("-") or equals) and secrets.is_one(flag, value):
            found.append(flag)
    if not found:
        return []
    return [
        f"launch.current: the value of {listed(found)} looks like a secret, and a job file is kept and shared; give it "
        f"by a variable of where you run AutoScout"
    ]


def unfilled(variables: Mapping[str, str]) -> list[str]:
    """What a person should review of variables whose values only a shell knows."""
    names = [name for name, value in variables.items() if re.search(r"\$\(|`|\$\{?[A-Za-z_]", value)]
    if not names:
        return []
    return [f"launch.environment: write the value of {listed(names)}, or take it out; no shell fills it in"]
