"""Finds the launch line in a shell script and expands it as bash would."""

import os
import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from itertools import takewhile
from pathlib import Path
from types import MappingProxyType
from typing import NamedTuple

from autoscout.job.words import listed
from autoscout.line import shell_commands, shell_words
from autoscout.line.batch_lines import asked
from autoscout.line.containers import CONTAINERS, RUN_IN, SERVER_IMAGE, STARTS_SERVER
from autoscout.line.launch_line import Batch, Line, split
from autoscout.line.recognition import recognised, verbs
from kb import door
from kb.records import AutoscoutError

_RUN_IN = (*RUN_IN, "poetry", "pdm")
_LAUNCHERS = (
    *("torchrun", "python", "accelerate", "deepspeed", "srun", "mpirun", "mpiexec", "horovodrun", "lightning"),
    *("fabric", "composer", "colossalai", "nemo", "torchx", "ray", "vllm", "bash", "sh", "deepy.py"),
    *CONTAINERS,
    *("numactl", "nsys"),
    *_RUN_IN,
)
# Programs with several subcommands → the subcommands that launch a job. (Subcommands of frameworks are in
# recognition.py.)
_BEGINS = {
    **dict.fromkeys(("lightning", "fabric", "colossalai", "torchx"), ("run",)),
    "accelerate": ("launch",),
    "nemo": ("llm",),
    "ray": ("job",),
}
# subcommands of container programs that run a container, unlike those that build, import or remove images
_IN_AN_IMAGE = ("run", "exec", "start", "compose")
_RANKS = ("torchrun", "deepspeed", "mpirun", "composer", *_BEGINS)
_PYTHON = re.compile(r"python(?:3(?:\.\d+)?)?")
# Slurm's environment variables for the devices per node and for the number of nodes.
_SLURMS_EACH: tuple[str, ...] = ("SLURM_GPUS_ON_NODE", "SLURM_GPUS_PER_NODE")
_SLURMS_NODES: tuple[str, ...] = ("SLURM_NNODES", "SLURM_JOB_NUM_NODES")
# Programs that may launch a job, but may also prepare it or evaluate its results.
_ALONE = ("python", "bash", "sh")
_GOES = re.compile(r"""(?:cd|pushd)\s+("[^"]*"|'[^']*'|(?:\$\([^)]*\)|[^\s|])+).*""")
# Suffixes of scripts that another script may source, and their maximum size in bytes.
_READ_IN, _LARGEST = (".sh", ".bash", ".env"), 2**20
_LOOP = re.compile(r"^[ \t]*for\s+(\w+)\s+in\s+([^;\n$`{]+)", re.MULTILINE)
# Scripts append to these variables, so their values in AutoScout's own environment are the initial values.
_PATHS = ("PATH", "PYTHONPATH", "LD_LIBRARY_PATH", "LIBRARY_PATH", "CPATH")


class Launched(NamedTuple):
    """The launch line of a script. `words`: its expanded words. `exports`: the variables that the script exports.
    `batch`: the resources requested by #SBATCH lines. `goes`: the folders to which the script changes before the line.
    `earlier`: the words of an earlier line that starts ranks or a server. `writes`: name → content of files that
    the script writes from here-documents."""

    words: list[str]
    exports: dict[str, str]
    batch: Batch | None
    goes: list[str]
    earlier: list[str]
    writes: dict[str, str]


def launch_in(text: str, where: str, unsure: bool = True, given: Mapping[str, str] = MappingProxyType({})) -> Launched:
    """Finds the launch line of a script. `unsure`: treat conditions with an unknown outcome as true. `given`: the
    script's arguments and the variables set for it.

    Errors: AutoscoutError (exit 2) if no line launches a job."""
    batch = asked(text)
    known = {
        "HOME": os.path.expanduser("~"),
        "PWD": str(Path.cwd()),
        **{name: os.environ.get(name, "") for name in _PATHS},
    }
    if batch is not None and batch.each:
        known |= dict.fromkeys(_SLURMS_EACH, str(batch.each))
    if batch is not None and batch.nodes:
        known |= dict.fromkeys(_SLURMS_NODES, str(batch.nodes))
    if batch is not None and batch.tasks:
        known["SLURM_NTASKS_PER_NODE"] = str(batch.tasks)
        known |= {"SLURM_NTASKS": str(batch.nodes * batch.tasks)} if batch.nodes else {}
    known |= given
    exported: dict[str, str] = {}
    found: list[str] = []
    goes: list[str] = []
    went: list[str] = []
    earlier: list[str] = []
    unread, last = "", list[str]()
    left = [shell_commands.taken(text, known, unsure)]
    while left:
        command = next(left[-1], None)
        if command is None:
            left.pop()
            continue
        if shell_words.sets(command, known, exported):
            continue
        command = shell_words.filled(command, known)
        for inner in _read_in(command, Path(known["PWD"])):
            shell_words.sets(inner, known, exported)
        if gone := _GOES.fullmatch(command):
            goes.append(gone[1].strip("\"'"))
            known["PWD"] = str(Path(known["PWD"]) / goes[-1])
        words = shell_words.words(command)
        if command.startswith("eval ") and (inner := _of_eval(command)):
            left.append(iter(inner))
        elif words[:2] in (["bash", "-c"], ["sh", "-c"]) and len(words) == 3:
            left.append(shell_commands.taken(words[2], known, unsure))
        elif launches(words):
            plain = shell_words.assigned(words)[1]
            loads = found and plain[:2] == ["vllm", "bench"]  # a benchmark client; an earlier line started its server
            now = [*found, *plain] if loads else shell_commands.unwrapped(words)
            if _starts_ranks(found) and not loads and not _starts_ranks(now) and _program(now) in _ALONE:
                continue  # ignore lines that evaluate or convert the trained model
            if _serves(found) and not loads and _program(now) in _ALONE and not recognised(Line(tuple(plain))):
                continue  # ignore clients of the server, but not a training that uses it
            earlier = [] if loads else found if now != found and _program(found) not in ("", *_ALONE) else earlier
            found, went = now, [*goes]
        elif not words:
            unread = unread or command
        else:
            last = words
    if not found:
        split(unread, where)  # for an unclosed quote, raises an error that shows the text
        ends = (
            (
                f"; its last command is {door.shown(shlex.join(last))}; give the command that starts the training "
                "or the server instead: autoscout init -- COMMAND"
            )
            if last
            else ""
        )
        known_ones = ", ".join(_LAUNCHERS[:7])
        raise AutoscoutError(f"{where}: no command of the script starts a known framework ({known_ones} …){ends}", 2)
    return Launched(found, exported, batch, went, earlier, shell_commands.files_written(text, known))


def _read_in(command: str, folder: Path) -> Iterator[str]:
    """Yields the commands of a sourced script (`source models/8b.sh`). The caller only uses the variables that these
    commands set."""
    word, *named = shell_words.words(command)[:2] or [""]
    path = folder / "".join(named)
    if word in ("source", ".") and path.suffix in _READ_IN and path.is_file() and path.stat().st_size < _LARGEST:
        yield from shell_commands.commands(path.read_text(errors="replace"))


def _of_eval(command: str) -> list[str]:
    """Returns the commands that `eval` runs, whether given as one text or as separate words."""
    text = command.removeprefix("eval ").strip()
    try:
        words = shlex.split(text)
    except ValueError:
        return []
    return [*shell_commands.commands(words[0] if len(words) == 1 else " ".join(text.split()))]


def of_branches(line: list[str], text: str, where: str, given: Mapping[str, str]) -> list[str]:
    """Returns notes about conditions in the script whose outcome only the user knows."""
    try:
        other = launch_in(text, where, False, given).words
    except AutoscoutError:  # if the conditions are false, the script launches nothing
        return []
    each = ((line, {*other}), (other, {*line}))
    more, less = ([word for word in one if word not in two] for one, two in each)
    if not more and not less:
        return []
    differs = f"remove '{shlex.join(more)[:100]}'" if more else ""
    differs += " and " * bool(more and less) + (f"add '{shlex.join(less)[:100]}'" if less else "")
    return [
        (
            "launch.current: AutoScout cannot evaluate some conditions of the script, and assumes that they are true; "
            f"if one is false, {differs}"
        )
    ]


def of_loops(line: list[str], text: str) -> list[str]:
    """Returns notes about a loop that runs the launch line several times with different values."""
    found = []
    for name, listing in _LOOP.findall(text):
        values = shell_words.words(listing)
        last = [word for word in line if values and values[-1] in word]
        if len(values) > 1 and last and re.search(rf"\$\{{?{name}\b", text):
            found.append(
                f"launch.current: the script's loop runs this command for each of {listed(values)}, and the last "
                "value is used; for a different value, write the command with that value"
            )
    return found


def launches(words: list[str]) -> bool:
    """Whether the words begin with a launcher. MLPerf's log tools, which also start with Python, are excluded."""
    command = shell_words.assigned(words)[1]
    program = _program(words)
    own = None if program in _LAUNCHERS else verbs().get(program)
    if (program not in _LAUNCHERS and own is None) or any(
        "mlperf_logging.compliance_checker" in word for word in command
    ):
        return False
    if program == "python":
        return command[1:2] != ["-c"]
    if program in _RUN_IN:
        return "run" in command
    verb = next((word for word in command[1:] if not word.startswith("-")), "")
    begins = own[0] if own else _IN_AN_IMAGE if program in CONTAINERS else _BEGINS.get(program)
    return not begins or verb in begins


def handed_on(words: Sequence[str]) -> list[str]:
    """Returns the command after `--` that a Python program submits to run elsewhere; [] if there is none."""
    before = [*takewhile(lambda word: word != "--", words)]
    after = [*words[len(before) + 1 :]]
    while "&&" in after:
        after = after[after.index("&&") + 1 :]
    return after if any(word.endswith(".py") for word in before) and after and launches(after) else []


def _program(words: list[str]) -> str:
    """Returns the name of the program that a command starts ("python" for any version); "" if there is none."""
    command = shell_words.assigned(words)[1]
    name = Path(command[0]).name if command else ""
    return "python" if _PYTHON.fullmatch(name) else name


def _serves(words: list[str]) -> bool:
    return any(SERVER_IMAGE.search(word) for word in words) or bool(STARTS_SERVER.search(" ".join(words)))


def _starts_ranks(words: list[str]) -> bool:
    """Whether a command starts ranks or a server by itself, and therefore is not just a preparation of the launch."""
    program = _program(words)
    if program in (*_RUN_IN, *CONTAINERS, "srun"):  # for a wrapper, judge the command that it runs
        inside = range(1, len(words))
        return any(_starts_ranks(words[i:]) for i in inside if _program(words[i:]) in (*_RANKS, *verbs(), "python"))
    by_module = program == "python" and any(word.startswith("torch.distributed") for word in words)
    begins, trains = verbs().get(program, (set(), False))
    return by_module or program in _RANKS or bool(begins and trains)
