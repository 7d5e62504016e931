"""Determines the working directory of a launch line inside a script. bash and sbatch start a script in the directory
from which they are called (for `init`, the current directory), not in the script's directory. `#SBATCH --chdir` and
`cd` change the working directory."""

import re
from pathlib import Path

_OWN = re.compile(r"""\$\(\s*dirname\s+(?:--\s+)?"?\$\{?(?:0|BASH_SOURCE(?:\[0\])?)\}?"?\s*\)""")
_SUBMITTED = re.compile(r"\$\{?SLURM_SUBMIT_DIR\b\}?")
_PRINTED = re.compile(
    r"""\$\(\s*cd\s+(?:--\s+)?"?([^"$()]*?)"?\s*(?:[\d&]?>\s*[\w/&]+\s*)*(?:&&|;)\s*pwd(?:\s+-P)?\s*\)"""
)
_FILE = re.compile(r"(?!/)[\w./-]{1,200}")


def with_folders(text: str, script: Path, folder: Path) -> str:
    """Returns the script's text with $SLURM_SUBMIT_DIR replaced by the directory in which the script is started, and
    $(dirname "$0") by the script's own directory (although sbatch runs a copy in a different directory)."""
    text = _SUBMITTED.sub(lambda _: str(folder.resolve()), text)
    return _PRINTED.sub(r"\1", _OWN.sub(lambda _: str(script.resolve().parent), text))


def runs_in(goes: list[str], script: Path, words: list[str], folder: Path) -> tuple[Path, list[str]]:
    """Returns (the launch line's working directory, notes for the user to review). `goes`: directories to which the
    script changes before the line. `words`: the words of the line. `folder`: where the script is started."""
    place = folder
    for name in goes:
        place /= Path(name).expanduser()
        if "$" in name or not place.is_dir():
            return folder, [
                (f"launch.path: the script runs in the folder '{name}', which is not on this machine; write its path")
            ]
    own = script.resolve().parent
    files = [name for word in words if _FILE.fullmatch(name := word.rpartition("=")[2])]
    there = next((name for name in files if (own / name).is_file()), "")
    if goes or not there or any((place / name).is_file() for name in files):
        return place.resolve(), []
    return own, [
        f"launch.path: {own} is used, because {there} is in it and not in {folder.resolve()}; bash and sbatch run "
        "a script in the folder in which they are called"
    ]
