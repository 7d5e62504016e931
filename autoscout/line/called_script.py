"""Launch lines that call a shell script: `run.sh a b`, `N=2 bash -x run.sh a b`, `sbatch --nodes 2 run.sbatch a`."""

import os.path
import re
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from autoscout.line.shell_words import assigned

_SHELLS = ("bash", "sh", "sbatch")
_SUFFIXES = (".sh", ".bash", ".sbatch", ".slurm")
_MOST = 9  # $1 to $9 always have a value: "" for those that the call does not give
# In these constructs (loops over the arguments, functions, `set --`), `$1` and `$@` are not the script's own arguments.
_NOT_FOLLOWED = re.compile(
    r"\bgetopts?\b|^\s*set\s+--|\bwhile\b[^\n]*\$(?:#|\{#|1)|\bfor\s+\w+(?:\s*;?\s*do\b|\s*$|\s+in\b[^\n]*\$\{?[@*])"
    r"|^\s*(?:function\s+\w+|\w+\s*\(\)\s*\{)",
    re.MULTILINE,
)

_COMMENT = re.compile(r"(?:^|(?<=\s))#.*")


class Called(NamedTuple):
    """A launch line's call of a script. `given`: the script's arguments. `asked`: the options given to sbatch (they
    override the script's #SBATCH lines). `variables`: the environment variables that the launch line sets."""

    path: Path
    given: list[str]
    asked: list[str]
    variables: dict[str, str]


def called(line: Sequence[str], folder: Path) -> Called | None:
    """Parses a launch line that calls a script; None if it calls none. `folder`: the line's working directory."""
    variables, words = assigned([*line])
    if not words:
        return None
    shell = Path(words[0]).name if Path(words[0]).name in _SHELLS else ""
    at = 1 if shell else 0
    while shell and at < len(words) and (_of_option(words, at, shell) or not _is_script(folder / words[at])):
        if not (words[at].startswith("-") or shell == "sbatch") or words[at] == "-c":
            return None
        at += 1
    if at >= len(words) or not (shell or words[at].endswith(_SUFFIXES)) or not _is_script(folder / words[at]):
        return None
    return Called(folder / words[at], [*words[at + 1 :]], [*words[1:at]] if shell == "sbatch" else [], variables)


def with_asked(text: str, asked: Sequence[str]) -> str:
    """Returns the script's text with the options given to sbatch appended as an #SBATCH line. The last #SBATCH line
    takes precedence."""
    return f"{text}\n#SBATCH {shlex.join(asked)}\n" if asked else text


def parameters(given: Sequence[str], text: str) -> tuple[Mapping[str, str], list[str]]:
    """Returns first the values of `$1`, `$#` and `$@` in a script's text, by name without `$`; second notes."""
    if not given:
        return {}, []
    if _NOT_FOLLOWED.search(_COMMENT.sub("", text)):
        return {}, [
            "launch.current: the script reads its arguments in a loop or a function, which AutoScout does not "
            "evaluate; write the resulting flags into launch.current"
        ]
    numbered = {str(i): "" for i in range(1, _MOST + 1)}
    numbered |= {str(i): word for i, word in enumerate(given, 1)}
    return {**numbered, "#": str(len(given)), "@": shlex.join(given)}, []


def _of_option(words: Sequence[str], at: int, shell: str) -> bool:
    """Whether a word may be the value of the preceding sbatch option, such as the name of an existing log file."""
    after = re.fullmatch(r"-[a-zA-Z]|--[a-z-]+", words[at - 1]) is not None
    return shell == "sbatch" and after and not words[at].endswith(_SUFFIXES)


def _is_script(path: Path) -> bool:
    """Whether the file is text, but neither Python nor a settings file."""
    if not os.path.isfile(path) or path.suffix in (".py", ".json", ".yaml", ".yml", ".toml"):
        return False
    with open(path, "rb") as file:
        head = file.read(1024)
    return b"\0" not in head and not re.match(rb"#!.*python", head)
