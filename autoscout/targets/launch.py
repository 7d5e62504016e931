"""A configuration as something to run: plain data, rendered by deploy/formats.py and by its target's own formats."""

import itertools
import shlex

import msgspec

from kb import door
from kb.records import Value


class Launch(msgspec.Struct, frozen=True, kw_only=True):
    """`configuration`: the values that it was made of. `program`: what runs, without its flags. `arguments`: its flags;
    True: a flag without a value, a list: several values. `checkpoint`: what becomes of a running training's. `ranks`:
    processes on each node, when a launcher starts them (torchrun); []: the program starts its own. `devices`: of each
    node, of what `kinds` (`mixed`: the cluster has others too), and `hosts` their names where it was measured on
    several. `files`: rendered files by name, which the program reads from its folder. `missing`: what only the person
    knows. `image`: a container's. `folder`: where the program runs, "" anywhere."""

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

    @property
    def nodes(self) -> int:
        return max(1, len(self.devices))

    @property
    def per_node(self) -> int | None:
        """Devices of every node; None where they differ."""
        return self.devices[0] if len(set(self.devices)) == 1 else None


def words(launch: Launch) -> list[list[str]]:
    """Each flag with its values, as a shell's words before quoting."""
    found = []
    for flag, value in launch.arguments.items():
        values = [] if value is True else value if isinstance(value, list) else [value]
        found.append([flag, *map(str, values)])
    return found


def comments(*texts: str) -> list[str]:
    """Each text as one comment line: a name from elsewhere must not begin a line of its own."""
    return [f"# {door.plain(text)}" for text in texts if text]


def heading(launch: Launch) -> list[str]:
    """What a person should read first, as comments."""
    missing = f"add: {'; '.join(launch.missing)}" if launch.missing else ""
    return comments(f"{launch.job}: {launch.name}", launch.evidence, launch.checkpoint, missing)


def exports(launch: Launch) -> list[str]:
    """The environment, and the files that the program reads, as lines of a shell."""
    lines = [f"cd {shlex.quote(launch.folder)}"] if launch.folder else []
    lines += [f"export {name}={shlex.quote(value)}" for name, value in launch.environment.items()]
    folders = dict.fromkeys(name.rpartition("/")[0] for name in launch.files)
    lines += [f"mkdir -p {shlex.quote(folder)}" for folder in folders if folder]
    for name, content in launch.files.items():
        lines.append(f"printf %s {shlex.quote(content)} > {shlex.quote(name)}")
    return lines


def program_lines(launch: Launch, program: list[str] | None = None) -> str:
    """The program with one flag a line, quoted; `program`: another one than the launch's, with the same flags."""
    head = shlex.join(program or launch.program)
    return " \\\n".join([head, *(f"  {shlex.join(pair)}" for pair in words(launch))])


def told_kinds(launch: Launch) -> list[str]:
    """Of every node, where whoever starts it could take another; [] where there is one kind only."""
    return launch.kinds if launch.mixed or len(set(launch.kinds)) > 1 else []


def groups_of(launch: Launch) -> list[tuple[int, int, str]]:
    """(nodes, devices of each, their kind) of nodes beside each other that are alike, in their order."""
    kinds = launch.kinds or [""] * launch.nodes
    nodes = zip(launch.devices or [0], kinds, strict=True)
    return [(len(list(alike)), *node) for node, alike in itertools.groupby(nodes)]


def batch_head(launch: Launch) -> list[str]:
    """The first lines of a Slurm script. Nodes that differ are components of one heterogeneous job: exactly so many
    devices are asked for on each."""
    asked: list[str] = []
    groups = groups_of(launch)
    for nodes, count, kind in groups:
        asked += ["#SBATCH hetjob"] if asked else []
        if told_kinds(launch):
            asked += comments(f"on {kind}: add the --constraint by which your site knows it")
        asked += [f"#SBATCH --nodes={nodes}", "#SBATCH --ntasks-per-node=1"]
        asked += [f"#SBATCH --gpus-per-node={count}"] if count and launch.on_gpus else []
        asked += [f"#SBATCH --cpus-per-task={count}"] if count and launch.ranks and not launch.on_gpus else []
    return [
        "#!/bin/bash",
        f"#SBATCH --job-name={door.plain(launch.job)}",
        *asked,
        *heading(launch),
        "set -euo pipefail",
        *exports(launch),
    ]


def srun(launch: Launch) -> str:
    """What starts one task on each node of such a script."""
    last = len(groups_of(launch)) - 1
    return f"srun --het-group=0-{last}" if last else "srun"


def first_node(launch: Launch) -> str:
    """The name of the first node, in such a script."""
    nodes = "SLURM_JOB_NODELIST_HET_GROUP_0" if len(groups_of(launch)) > 1 else "SLURM_JOB_NODELIST"
    return f'$(scontrol show hostnames "${nodes}" | head -n 1)'
