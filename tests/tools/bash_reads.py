"""The arguments that bash passes to the programs that a script starts, without starting them: a second reading of a
script, independent of `autoscout/line`.

The script runs in a separate root folder that contains only bash and read-only copies of the files next to the script,
without a network; the commands are parsed from bash's trace. Needs Linux, `unshare` and user namespaces."""

import contextlib
import re
import shlex
import subprocess
import tempfile
from pathlib import Path

_LIMIT_S = 10
# Shell functions for commands whose output scripts use in their command lines; every other command does nothing.
_BEFORE = r"""
command_not_found_handle() { return 0; }
dirname() { [ "$1" = -- ] && shift; case "$1" in */*) echo "${1%/*}";; *) echo .;; esac; }
basename() { local b="${1##*/}"; echo "${b%"$2"}"; }
realpath() { for last; do :; done; echo "$last"; }
readlink() { for last; do :; done; echo "$last"; }
date() { printf "%(${1#+})T\n" -1; }
expr() { echo "$(($*))"; }
sleep() { :; }
sudo() { "$@"; }
cat() { while IFS= read -r line; do echo "$line"; done < "${1:-/dev/stdin}"; } 2>/dev/null
"""


def commands(script: Path, folder: Path, environment: dict[str, str] | None = None) -> list[list[str]]:
    """The arguments of each command that bash runs in `script`, called from `folder`, within a few seconds. Files below
    `folder` are readable, none is writable."""
    with tempfile.TemporaryDirectory() as name:
        root = Path(name)
        _only_bash(root)
        (root / "before.sh").write_text(_BEFORE)
        (root / "trace").touch()
        (root / "script.sh").write_bytes(script.read_bytes())
        place = root / str(folder.resolve()).lstrip("/")
        place.mkdir(parents=True)
        at = script.resolve()
        inside = str(at) if at.is_relative_to(folder.resolve()) else "/script.sh"
        run = f'exec 19>>/trace; BASH_XTRACEFD=19; PS4="+"; . /before.sh; cd {shlex.quote(str(folder.resolve()))}; '
        run += f"set -x; . {shlex.quote(inside)}"
        mount = f"mount --bind {shlex.quote(str(folder.resolve()))} {shlex.quote(str(place))} && "
        mount += f"mount -o remount,bind,ro {shlex.quote(str(place))} && "
        # `$0` is the script, as when bash runs it
        starts = f"exec /usr/sbin/chroot {shlex.quote(name)} /bin/bash -c {shlex.quote(run)} {shlex.quote(inside)}"
        words = ["unshare", "-rmnpf", "--kill-child", "bash", "-c", mount + starts]
        around = {"PATH": "/usr/bin:/bin:/usr/sbin", "HOME": "/root", **(environment or {})}
        with contextlib.suppress(subprocess.TimeoutExpired):
            subprocess.run(words, env=around, stdin=subprocess.DEVNULL, capture_output=True, timeout=_LIMIT_S)
        trace = (root / "trace").read_text(errors="replace")
    return [words for line in _traced(trace) if (words := _words(line))]


def _traced(trace: str) -> list[str]:
    """The commands in a trace, in which an argument with a newline spans several lines."""
    found: list[str] = []
    for line in trace.split("\n"):
        if line.startswith("+") and not (found and _open(found[-1])):
            found.append(line.lstrip("+"))
        elif found:
            found[-1] += f"\n{line}"
    return found


def _open(text: str) -> bool:
    try:
        shlex.split(text)
    except ValueError:
        return True
    return False


def _words(line: str) -> list[str]:
    try:
        return shlex.split(re.sub(r"\$'((?:[^'\\]|\\.)*)'", lambda m: shlex.quote(_escapes(m[1])), line))
    except ValueError:
        return []


def _escapes(text: str) -> str:
    return text.replace("\\'", "'").replace("\\n", "\n").replace("\\t", "\t").replace("\\r", "\r").replace("\\\\", "\\")


def _only_bash(root: Path) -> None:
    bash = Path("/bin/bash").resolve()
    needed = re.findall(r"(/\S+)", subprocess.run(["ldd", str(bash)], capture_output=True, text=True).stdout)
    for name in [*needed, str(bash)]:
        there = root / name.lstrip("/")
        there.parent.mkdir(parents=True, exist_ok=True)
        there.write_bytes(Path(name).resolve().read_bytes())
        there.chmod(0o755)
    (root / "bin").mkdir(exist_ok=True)
    if not (root / "bin/bash").exists():
        (root / "bin/bash").symlink_to(bash)
    (root / "dev").mkdir()
    (root / "dev/null").touch()
