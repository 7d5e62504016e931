"""A launch that runs a configuration, as data. deploy/rendering.py and the targets' own formats render it as text."""

import itertools
import re
import shlex
from collections.abc import Callable

import msgspec

from autoscout.job.words import listed
from autoscout.running.cluster.devices import NVIDIA
from kb import door
from kb.records import Value

# Tells the user what to fill in for the placeholders whose values differ by host.
PLACES = (
    "on each host, the variables NODE (the host's number, from 0), HEAD (the first host's address) and RANKS "
    "(the host's number of ranks)"
)
_PLACE = re.compile(r"(?<!\w)(NODE|HEAD|RANKS)(?!\w)")
# A comment in Slurm scripts, because only the user knows how many CPUs a node has and whether a job may occupy it.
PROCESSORS = (
    "add --exclusive, or --cpus-per-task and --mem, as your site requires, because by default all ranks of a "
    "node share one processor"
)


class Launch(msgspec.Struct, frozen=True, kw_only=True):
    """A launch to export.

    `configuration`: its knob values. `program`: the words of the program without flags. `arguments`: flag → value; True
    for a flag without a value, a list for several values. `checkpoint`: a sentence on whether a training run can resume
    from its checkpoint. `ranks`: processes per node, if a launcher such as torchrun starts them; else []. `devices`:
    number of devices of each node. `kinds`: kind of device of each node. `mixed`: whether the cluster has further kinds
    of devices. `hosts`: host names, if it was measured on several hosts. `files`: rendered files by name, which the
    program reads from its folder. `missing`: what the user has to add. `image`: the container image. `folder`: the
    working directory, "" for any. `resource`: Kubernetes' name for the GPUs. `port`: the server's port, 0 if the
    program is not a server. `servers`: launches of the servers behind a router; the `name` of each is its role.
    `router`: the words of the router's command, with the placeholders SERVER-0, SERVER-1, … for the servers' addresses.
    `variables`: shell variables and substitutions in the launch. `fills`: whether the shell that runs the launch
    expands these variables, as in the script from which the line was read; in measurements they were plain text."""

    job: str
    name: str
    evidence: str
    checkpoint: str = ""
    configuration: dict[str, Value] = {}
    program: list[str]
    arguments: dict[str, Value | list[str]]
    environment: dict[str, str]
    devices: list[int]
    kinds: list[str] = []
    mixed: bool = False
    hosts: list[str] = []
    ranks: list[int] = []
    files: dict[str, str] = {}
    missing: list[str] = []
    image: str = ""
    folder: str = ""
    on_gpus: bool = True
    resource: str = NVIDIA
    port: int = 0
    servers: "list[Launch]" = []
    router: list[str] = []
    variables: list[str] = []
    fills: bool = False

    @property
    def nodes(self) -> int:
        return max(1, len(self.devices))

    @property
    def per_node(self) -> int | None:
        """Devices per node; None if nodes differ."""
        return self.devices[0] if len(set(self.devices)) == 1 else None

    @property
    def placed(self) -> bool:
        """Whether the command or its environment has the placeholders NODE, HEAD or RANKS."""
        return PLACES in self.missing


def words(launch: Launch) -> list[list[str]]:
    """Returns each flag with its values, as unquoted shell words."""
    found = []
    for flag, value in launch.arguments.items():
        values = [] if value is True else value if isinstance(value, list) else [value]
        found.append([flag, *map(str, values)])
    return found


def comments(*texts: str) -> list[str]:
    """Returns a comment line for each text. Line breaks are removed, since a name from an imported file must not start
    a new line."""
    return [f"# {door.plain(text)}" for text in texts if text]


def heading(launch: Launch) -> list[str]:
    """Returns the notes for the user, as comment lines."""
    missing, filled = [*launch.missing], ""
    if launch.fills:
        filled = f"the shell that runs this expands {listed(launch.variables)}"
    elif launch.variables:
        missing.append(f"the values of {listed(launch.variables)}, because these are quoted and no shell expands them")
    add = f"add: {'; '.join(missing)}" if missing else ""
    return comments(f"{launch.job}: {launch.name}", launch.evidence, launch.checkpoint, filled, add)


def exports(launch: Launch) -> list[str]:
    """Returns shell lines that set the environment and write the launch's files."""
    lines = [f"cd {shlex.quote(launch.folder)}"] if launch.folder else []
    quoted = _quoting(launch)
    lines += [f"export {name}={quoted(value)}" for name, value in launch.environment.items()]
    folders = dict.fromkeys(name.rpartition("/")[0] for name in launch.files)
    lines += [f"mkdir -p {shlex.quote(folder)}" for folder in folders if folder]
    for name, content in launch.files.items():
        lines.append(f"printf %s {shlex.quote(content)} > {shlex.quote(name)}")
    return lines


def program_lines(launch: Launch) -> str:
    """Returns the quoted shell command, with one flag per line."""
    quoted = _quoting(launch)
    program = " ".join(map(quoted, launch.program))
    return " \\\n".join([program, *(f"  {shlex.join(pair)}" for pair in words(launch))])


def _quoting(launch: Launch) -> Callable[[str], str]:
    return _for_its_shell if launch.fills else shlex.quote


def _for_its_shell(word: str) -> str:
    """Returns the word quoted such that a shell still expands its variables and substitutions."""
    outside = re.sub(r"\$\([^()]*\)", "", word)  # a substitution has its own quoting
    fillable = re.search(r"\$[\w{(]", word) and not re.search(r"[\"\\`]", outside)
    return f'"{word}"' if fillable else shlex.quote(word)


def placed_by_shell(launch: Launch) -> tuple[Launch, str]:
    """For a launch with placeholders (`placed`), returns (a launch that is equal on every host, shell lines that start
    it on one host). Both use the shell variables NODE, HEAD and RANKS."""
    by_node = {name: value for name, value in launch.environment.items() if _PLACE.search(value)}
    alike = msgspec.structs.replace(
        launch,
        environment={name: value for name, value in launch.environment.items() if name not in by_node},
        missing=[text for text in launch.missing if text != PLACES],
    )
    exported = [f"export {name}={_filled_in(value)}" for name, value in by_node.items()]
    return alike, "\n".join([*exported, " ".join(["exec", *map(_filled_in, launch.program)])])


def _filled_in(word: str) -> str:
    """Returns the word quoted for a shell, with shell variables instead of the placeholders NODE, HEAD and RANKS."""
    parts = _PLACE.split(word)
    quoted = [f'"${part}"' if i % 2 else shlex.quote(part) for i, part in enumerate(parts) if part]
    return "".join(quoted) or "''"


def kinds_by_node(launch: Launch) -> list[str]:
    """Returns the kind of device of each node, since a scheduler could choose a wrong kind; [] if there is only one
    kind."""
    return launch.kinds if launch.mixed or len(set(launch.kinds)) > 1 else []


def groups_of(launch: Launch) -> list[tuple[int, int, str]]:
    """Returns (nodes, devices per node, kind of device) for each group of consecutive equal nodes."""
    kinds = launch.kinds or [""] * launch.nodes
    nodes = zip(launch.devices or [0], kinds, strict=True)
    return [(len(list(alike)), *node) for node, alike in itertools.groupby(nodes)]


def batch_head(launch: Launch) -> list[str]:
    """Returns the first lines of a Slurm script. Different nodes become components of a heterogeneous job."""
    asked: list[str] = []
    groups = groups_of(launch)
    for nodes, count, kind in groups:
        asked += ["#SBATCH hetjob"] if asked else []
        if kinds_by_node(launch):
            asked += comments(f"on {kind}: add the --constraint that selects these nodes at your site")
        asked += [f"#SBATCH --nodes={nodes}", "#SBATCH --ntasks-per-node=1"]
        asked += [f"#SBATCH --gpus-per-node={count}"] if count and launch.on_gpus else []
        asked += [f"#SBATCH --cpus-per-task={count}"] if count and launch.ranks and not launch.on_gpus else []
    return [
        "#!/bin/bash",
        f"#SBATCH --job-name={door.plain(launch.job)}",
        *asked,
        *(comments(PROCESSORS) if launch.on_gpus else []),
        *heading(launch),
        "set -euo pipefail",
        *exports(launch),
    ]


def srun(launch: Launch) -> str:
    """Returns the srun command that starts one task per node."""
    last = len(groups_of(launch)) - 1
    return f"srun --het-group=0-{last}" if last else "srun"


def first_node(launch: Launch) -> str:
    """Returns a shell expression for the first node's name."""
    nodes = "SLURM_JOB_NODELIST_HET_GROUP_0" if len(groups_of(launch)) > 1 else "SLURM_JOB_NODELIST"
    return f'$(scontrol show hostnames "${nodes}" | head -n 1)'
