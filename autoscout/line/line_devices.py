"""Determines the nodes and devices of a launch line from its launcher's flags, the configuration file of `accelerate
launch`, the host file of `deepspeed`, or environment variables. Relative paths refer to the current directory."""

import itertools
import math
import os
import re
from pathlib import Path
from typing import NamedTuple

from autoscout.line import hostfile, visible_gpus
from autoscout.line.containers import named_programs
from autoscout.line.launch_line import Line
from autoscout.line.recognition import Framework, frameworks, recognised
from kb.records import AutoscoutError

_RANKS = ("--nproc-per-node",)
_PER_NODE = (*_RANKS, "--ntasks-per-node", "--gpus-per-node", "--num_gpus", "cluster.gpus_per_node")
_NODES = ("--nnodes", "--nodes", "-N", "--num_nodes", "--num_machines", "cluster.num_nodes")
_TOTAL = ("--num_processes", "-np")
_TASKS = ("--ntasks", "-n")  # only for srun and mpirun, since -n has other meanings in scripts
_ATTACHED = re.compile(r"(-[Nn])(\d+)")
_START_RANKS = {"torchrun", "torch.distributed.run", "accelerate"}
_DEFAULT_HOSTS = "/job/hostfile"  # DeepSpeed's default for --hostfile
# Variables that give each node its rank, for programs that read variables instead of torchrun's flags.
_OF_A_NODE = {
    "NNODES": "{nodes}",
    "NODE_RANK": "{node}",
    "NPROC_PER_NODE": "{ranks}",
    "MASTER_ADDR": "{head}",
    "MASTER_PORT": "{port}",
}
_FLAGS_OF_A_NODE = {
    "accelerate": "--num_machines {nodes} --machine_rank {node} --num_processes {gpus} --main_process_ip {head} "
    "--main_process_port {port}",
    "": "--nnodes {nodes} --node-rank {node} --nproc-per-node {ranks} --master-addr {head} --master-port {port}",
}
# Programs that start a job's processes on all nodes when called once. bash is included because its script may do so.
REACH_ALL = {"srun", "mpirun", "mpiexec", "deepspeed", "bash", "ray"}
_BY_MPI = "--mpirun_hostfile"
_ONE_PROCESS = (  # reproduced by findings/accelerate-cpu-processes.sh
    "cluster: `accelerate launch --cpu` starts one process, whatever --num_processes is; for CPU ranks begin the "
    "line with torchrun --nproc-per-node"
)
NO_HOSTS = (
    "cluster.hosts: name a host file with the nodes of your launch line ('HOST slots=N', one per line), or write "
    "'slurm'"
)


class Devices(NamedTuple):
    """The devices of a launch line. `counts`: devices of each node, 0 if unknown. `hosts`: path of the host file of a
    DeepSpeed job on several nodes; `include` and `exclude` are DeepSpeed's options for it. `notes`: notes on what could
    not be read."""

    counts: list[int]
    hosts: str = ""
    include: str = ""
    exclude: str = ""
    notes: tuple[str, ...] = ()


def devices(line: Line) -> Devices:
    before = line.launcher
    launchers = named_programs(before)
    if "deepspeed" in launchers:
        return _of_deepspeed(before)
    if counts := _of_roles(line):
        return Devices(counts)
    tasks = _apart(before) if launchers & {"srun", "mpirun", "mpiexec"} else line.of(())
    of_frameworks = [setting for known in frameworks().values() for setting in known.nodes]
    nodes = tasks.number(_NODES) or line.number((*of_frameworks, *_NODES))
    started = _tasks(tasks, nodes)
    # the single task per node is a launcher, which starts the node's ranks
    alone = started == 1 and starts_ranks_itself(line)
    own = [setting for known in frameworks().values() for setting in known.node_devices]
    each = line.number((*own, *(_RANKS if alone else _PER_NODE)))
    total = line.number(_TOTAL) or (0 if alone else tasks.number(_TASKS))
    of_file, notes = {}, ()
    if _by_accelerate(line) and not (nodes and (each or total)):
        of_file, notes = _of_accelerate(before)
    nodes = nodes or of_file.get("num_machines") or _variable(line, "NNODES") or 1
    if "composer" in launchers:  # composer's --world_size counts the ranks of all nodes
        each = before.number(("-n", "--nproc"))
        nodes = max(before.number(("--world_size",)) // max(each, 1), nodes)
    total = total or of_file.get("num_processes", 0)
    each = each or total // nodes or _variable(line, "NPROC_PER_NODE")
    each = each or (tasks.number(("--gpus-per-node",)) if alone else 0) or _of_recipe(line)
    if each > 1 and "accelerate" in launchers and before.value("--cpu") is not None and not before.value(_BY_MPI):
        each, notes = 1, (*notes, _ONE_PROCESS)
    needs = next((f for f in frameworks().values() if f.ranks_need and f.programs & launchers), None)
    if each > 1 and needs and line.environment.get(needs.ranks_need, "0") in ("0", ""):
        who = needs.about.partition(" (")[0]
        notes = (*notes, f"launch.environment: {who} uses NPROC_PER_NODE only on a machine with several GPUs; "
        f"to use it on a different machine, set {needs.ranks_need} = '1'")  # fmt: skip
    return Devices([each] * nodes, notes=notes)


def _of_roles(line: Line) -> list[int]:
    """Returns the devices of each node for a trainer that has options for each of its roles; [] for any other line."""
    trainers = [k for k in frameworks().values() if k.roles and line.number(next(iter(k.roles.values())))]
    if not trainers:
        return []

    def of_line(known: Framework) -> int:
        flags = (*itertools.chain(*known.roles.values()), *known.sharing)
        return sum(line.value(flag) is not None for flag in flags)

    known = max(trainers, key=of_line)  # frameworks spell some of these options alike
    shared = {role for switch, roles in known.sharing.items() if line.value(switch) is not None for role in roles}
    each = {role: [line.number((flag,)) for flag in flags] for role, flags in known.roles.items()}
    asked = [numbers for role, numbers in each.items() if role not in shared and any(numbers)]
    total = sum(math.prod(number or 1 for number in numbers) for numbers in asked)
    usual = known.usual_devices
    return [usual] * (total // usual) if total and total % usual == 0 else [total] * (total > 0)


def tasks_of_a_node(line: Line) -> int:
    """Returns the number of tasks that an `srun` line starts on each node; 0 if its flags do not give it."""
    tasks = _apart(line.launcher)
    return _tasks(tasks, tasks.number(_NODES))


def starts_ranks_itself(line: Line) -> bool:
    """Whether the line has a launcher that starts all ranks of a node, such as torchrun."""
    own = set().union(*(known.programs for known in frameworks().values() if known.starts_ranks))
    return bool({*line.launcher.names} & (_START_RANKS | own))


def nodes_unread(line: Line) -> str:
    """Returns the flag for the number of nodes, with its value, if the value is a variable or a range; else ""."""
    values = ((flag, line.launcher.value(flag)) for flag in _NODES)
    return next((f"{flag} {value}" for flag, value in values if isinstance(value, str)), "")


def of_one_node(line: Line, nodes: int) -> tuple[dict[str, str], list[str]]:
    """For a line that starts only one of several nodes, returns (variables with placeholders that give each node its
    rank, notes for the user). Both are empty if the line starts all nodes."""
    own = {text for known in frameworks().values() if known.reaches_all for text in known.recognises}
    if nodes < 2 or {*line.launcher.names} & (REACH_ALL | own):
        return {}, []
    if _variable(line, "NNODES") == nodes and not line.number(_NODES):
        return dict(_OF_A_NODE), [NO_HOSTS]
    return {}, [
        f"cluster.hosts: the launch line starts one of {nodes} nodes, so experiments would run on this node only: "
        f"name a host file or write 'slurm', and write launch.command with {flags_of_a_node(line)}"
    ]


def flags_of_a_node(line: Line) -> str:
    """Returns the launcher's options, with placeholders, that give each node its rank."""
    return _FLAGS_OF_A_NODE["accelerate" if _by_accelerate(line) else ""]


def _of_deepspeed(line: Line) -> Devices:
    """Counts devices like DeepSpeed, which uses the first hosts of the host file and the first devices of each host;
    without a host file, all visible devices of this machine."""
    nodes, each = line.number(_NODES), line.number(_PER_NODE)
    named = line.value("--hostfile") or line.value("-H")
    include, exclude = (str(line.value(flag) or "") for flag in ("--include", "--exclude"))
    if not named and nodes < 2:  # a single machine; --include=localhost:0,1 may select some of its devices
        visible = visible_gpus.named(line.environment.get("CUDA_VISIBLE_DEVICES", ""))
        return Devices([each or include.count(",") + (":" in include) or len(visible)])
    path = Path(str(named or _DEFAULT_HOSTS)).absolute()
    try:
        slots = hostfile.part(hostfile.read(path), include, exclude).values()
        counts, notes = [min(len(left), each or len(left)) for left in slots][: nodes or None], ()
    except AutoscoutError as error:
        counts = [each] * max(nodes, 1)
        notes = (f"cluster: correct cluster.nodes, because the hosts of the launch line cannot be read ({error})",)
    return Devices(counts, str(path), include, exclude, notes)


def _of_recipe(line: Line) -> int:
    """Returns the framework's default number of devices per node: 1 for its single-device recipes. 0 if unknown."""
    known = frameworks().get(recognised(line))
    if known is None:
        return 0
    single = known.one_device and any(word.endswith(known.one_device) for word in line.words)
    return 1 if single else known.usual_devices


def _of_accelerate(line: Line) -> tuple[dict[str, int], tuple[str, ...]]:
    """Returns ({num_processes and num_machines from accelerate's configuration file}, notes). Without --config_file,
    accelerate reads the file in its cache folder (`default_config_file` in its config_args.py)."""
    name, notes = line.value("--config_file"), ()
    if not name:
        around = {**os.environ, **line.environment}
        cache = Path(around.get("XDG_CACHE_HOME", "~/.cache")) / "huggingface"
        path = (Path(around.get("HF_HOME", cache)) / "accelerate/default_config.yaml").expanduser()
        if line.value("--cpu") is not None or not path.is_file():
            return {}, ()
        name, notes = path, (f"cluster: the nodes are those of {path}, which `accelerate launch` reads; check them",)
    try:
        text = Path(str(name)).read_text()
    except (OSError, UnicodeDecodeError):
        return {}, (
            (
                f"cluster: correct cluster.nodes, because {name}, which gives the number of processes, cannot be read "
                "here"
            ),
        )
    numbers = re.findall(
        r"""(?:^|[{,])\s*["']?(num_processes|num_machines)["']?\s*:\s*["']?(\d+)""", text, re.MULTILINE
    )
    return {key: int(number) for key, number in numbers if int(number)}, notes


def _by_accelerate(line: Line) -> bool:
    """Whether accelerate starts the processes: as the line's launcher, or called by the framework's own program."""
    names = {*line.launcher.names}
    own = set().union(*(known.programs for known in frameworks().values() if known.by_accelerate))
    return "accelerate" in names or bool(names & own and line.value("--launcher") in (None, "accelerate"))


def _tasks(line: Line, nodes: int) -> int:
    return line.number(("--ntasks-per-node",)) or line.number(_TASKS) // max(nodes, 1)


def _variable(line: Line, name: str) -> int:
    text = line.environment.get(name, "")
    return int(text) if text.isdecimal() else 0


def _apart(line: Line) -> Line:
    """Returns the line with attached values split off: -N2 becomes -N 2."""
    found = ((_ATTACHED.fullmatch(word), word) for word in line.words)
    return line.of(part for match, word in found for part in (match.groups() if match else (word,)))
