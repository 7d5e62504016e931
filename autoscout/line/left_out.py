"""What a job file must not hold, or cannot fill in, of the variables and flags of a launch line."""

import re
from collections.abc import Mapping, Sequence
from itertools import pairwise

from autoscout.job.words import listed

_SECRET = re.compile(
    r"(?:^|[-_.])(?:api_?key|token|secret|passw(?:or)?d|(?:access|wandb|hf|storage|private)_key)(?:[-_]|$)",
    re.IGNORECASE,
)
_NAMES_ELSE = re.compile(r"_(?:path|file|dir|id)$|^(?:pad|eos|bos|unk)_", re.IGNORECASE)  # where one lies; a model's
_PLAIN = re.compile(r"[\d.]*|true|false", re.IGNORECASE)  # as of MAX_TOKEN=512
# Firms' own forms: Hugging Face's, OpenAI's, GitHub's, AWS's, Slack's, NVIDIA's, GitLab's.
_OF_A_FIRM = re.compile(
    r"(?<![A-Za-z0-9])(?:hf_[A-Za-z0-9]{30}|sk-[\w-]{20}|gh[pousr]_\w{30}|github_pat_\w{20}|AKIA[A-Z0-9]{16}|xox[abp]-\w{8}"
    r"|nvapi-\w{20}|glpat-\w{16})"
)
_MAYBE = re.compile(r"(?:key|pat|auth|login|credentials?|pass)$", re.IGNORECASE)  # others have what sorts, or where
_RANDOM = re.compile(r"(?=.*\d)(?=.*[a-zA-Z])[a-zA-Z0-9]{20,}")
_KEY = re.compile(r"(?=.*\d)(?=.*[a-zA-Z])[\w.=+-]{10,}")  # the flags that name a pad token have none


def without_secrets(variables: Mapping[str, str]) -> tuple[dict[str, str], list[str]]:
    """(the others, what a person should review): a job is kept with its measurements, exported, and shared."""
    named = {name for name in variables if _SECRET.search(name) and not _NAMES_ELSE.search(name)}
    secret = {
        n for n, value in variables.items() if (n in named and not _PLAIN.fullmatch(value)) or _by_value(n, value)
    }
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
        flagged = flag.startswith("-") or equals
        named = _SECRET.search(flag.lstrip("-+")) and _KEY.fullmatch(value)
        if flagged and (named or _by_value(flag, value)):
            found.append(flag)
    if not found:
        return []
    return [
        f"launch.current: the value of {listed(found)} looks like a secret, and a job file is kept and shared; give it "
        f"by a variable of where you run AutoScout"
    ]


def _by_value(name: str, value: str) -> bool:
    """Whether a value looks like a secret, whatever it is called or where its name may be that of one."""
    return bool(_OF_A_FIRM.search(value) or (_MAYBE.search(name) and _RANDOM.fullmatch(value)))


def unfilled(variables: Mapping[str, str]) -> list[str]:
    """What a person should review of variables whose values only a shell knows."""
    names = [name for name, value in variables.items() if re.search(r"\$\(|`|\$\{?[A-Za-z_]", value)]
    if not names:
        return []
    return [f"launch.environment: write the value of {listed(names)}, or take it out; no shell fills it in"]
