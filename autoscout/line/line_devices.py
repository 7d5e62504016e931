"""The devices that a launch line asks for: by its launcher's flags, the configuration file of `accelerate launch`, the
host file of `deepspeed`, or the variables of launchers without flags. Files are looked up in the working folder, where
the line would run."""

import math
import os
import re
from pathlib import Path
from typing import NamedTuple

from autoscout.line import hostfile, visible_gpus
from autoscout.line.launch_line import Line
from autoscout.line.recognition import frameworks, recognised
from kb.records import AutoscoutError

_RANKS = ("--nproc-per-node",)
_PER_NODE = (*_RANKS, "--ntasks-per-node", "--gpus-per-node", "--num_gpus", "cluster.gpus_per_node")
# The devices of each role of a trainer on a Ray cluster (OpenRLHF, slime), and switches by which others share the
# first one's.
_ROLES = (
    *((f"--{role}-num-nodes", f"--{role}-num-gpus-per-node") for role in ("actor", "critic", "ref", "reward")),
    ("--vllm-num-engines", "--vllm-tensor-parallel-size"),
    ("--rollout-num-gpus",),
)
_SHARING = {"--colocate-all-models": _ROLES[1:], "--colocate": _ROLES[1:], "--colocate-actor-ref": (_ROLES[2],)}
_USUAL = 8  # devices of a node
_NODES = ("--nnodes", "--nodes", "-N", "--num_nodes", "--num_machines", "cluster.num_nodes")
_TOTAL = ("--num_processes", "-np")
_TASKS = ("--ntasks", "-n")  # only for srun and mpirun: in scripts -n has other meanings
_ATTACHED = re.compile(r"(-[Nn])(\d+)")
_START_RANKS = {"torchrun", "torch.distributed.run", "accelerate"}
_DEFAULT_HOSTS = "/job/hostfile"  # where DeepSpeed looks without --hostfile
# Arguments to add to torchrun's for programs that start ranks by variables.
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
# A single start of these reaches all nodes; whether a script does so is unknown.
REACH_ALL = {"srun", "mpirun", "mpiexec", "deepspeed", "bash"}
_BY_MPI = "--mpirun_hostfile"
_ONE_PROCESS = (  # findings/accelerate-cpu-processes.sh
    "cluster: `accelerate launch --cpu` starts one process, whatever --num_processes is; for CPU ranks begin the "
    "line with torchrun --nproc-per-node"
)
NO_HOSTS = "cluster.hosts: name a host file of the line's nodes there ('HOST slots=N', one per line), or 'slurm'"


class Devices(NamedTuple):
    """`counts`: the number of devices of each node, 0 if the line does not give it. `hosts`: the host file of a
    DeepSpeed line for several nodes, with `include` or `exclude` from its flags. `notes`: what could not be read."""

    counts: list[int]
    hosts: str = ""
    include: str = ""
    exclude: str = ""
    notes: tuple[str, ...] = ()


def devices(line: Line) -> Devices:
    before = line.launcher
    launchers = {*before.names}
    if "deepspeed" in launchers:
        return _of_deepspeed(before)
    if counts := _of_roles(line):
        return Devices(counts)
    tasks = _apart(before) if launchers & {"srun", "mpirun", "mpiexec"} else line.of(())
    of_frameworks = [setting for known in frameworks().values() for setting in known.nodes]
    nodes = tasks.number(_NODES) or line.number((*of_frameworks, *_NODES))
    started = _tasks(tasks, nodes)
    alone = started == 1 and starts_ranks_itself(line)  # the node's single task is a launcher that starts its ranks
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
        notes = (*notes, f"launch.environment: {who} uses NPROC_PER_NODE only if it sees several GPUs, or with "
                 f"{needs.ranks_need} = '1'")  # fmt: skip
    return Devices([each] * nodes, notes=notes)


def _of_roles(line: Line) -> list[int]:
    """Devices of each node of a line that gives those of its actor; [] for another line."""
    shared = [role for flag, roles in _SHARING.items() if line.value(flag) is not None for role in roles]
    each = [
        math.prod(line.number((flag,)) or i for i, flag in enumerate(role)) for role in _ROLES if role not in shared
    ]
    total = sum(each) if each[0] else 0
    return [_USUAL] * (total // _USUAL) if total and total % _USUAL == 0 else [total] * (total > 0)


def tasks_of_a_node(line: Line) -> int:
    """How many tasks an `srun` line starts on each node, by its flags; 0 if it does not say."""
    tasks = _apart(line.launcher)
    return _tasks(tasks, tasks.number(_NODES))


def starts_ranks_itself(line: Line) -> bool:
    """Whether a program in the line starts the ranks of a node, as torchrun does."""
    own = set().union(*(known.programs for known in frameworks().values() if known.starts_ranks))
    return bool({*line.launcher.names} & (_START_RANKS | own))


def nodes_unread(line: Line) -> str:
    """The flag whose value for the number of nodes is not a number (but a variable or a range); "" if there is none."""
    values = ((flag, line.launcher.value(flag)) for flag in _NODES)
    return next((f"{flag} {value}" for flag, value in values if isinstance(value, str)), "")


def of_one_node(line: Line, nodes: int) -> tuple[dict[str, str], list[str]]:
    """For a line that starts one of several nodes: (variables that give each node its rank, with placeholders; notes).
    Empty for a line that starts all nodes."""
    own = {text for known in frameworks().values() if known.reaches_all for text in known.recognises}
    if nodes < 2 or {*line.launcher.names} & (REACH_ALL | own):
        return {}, []
    if _variable(line, "NNODES") == nodes and not line.number(_NODES):
        return dict(_OF_A_NODE), [NO_HOSTS]
    return {}, [
        f"cluster.hosts: the line starts one of {nodes} nodes, so experiments would only run on this one: give a host "
        f"file or 'slurm' there, and write launch.command with {flags_of_a_node(line)}"
    ]


def flags_of_a_node(line: Line) -> str:
    """The flags or variables, with placeholders, that give a line's launcher the node's rank."""
    return _FLAGS_OF_A_NODE["accelerate" if _by_accelerate(line) else ""]


def _of_deepspeed(line: Line) -> Devices:
    """The counts, by DeepSpeed's own rules: the first hosts of its file and the first devices of each host; on this
    machine, all visible devices."""
    nodes, each = line.number(_NODES), line.number(_PER_NODE)
    named = line.value("--hostfile") or line.value("-H")
    include, exclude = (str(line.value(flag) or "") for flag in ("--include", "--exclude"))
    if not named and nodes < 2:  # only this machine; a hostfile option such as localhost:0,1 may select a part of it
        visible = visible_gpus.named(line.environment.get("CUDA_VISIBLE_DEVICES", ""))
        return Devices([each or include.count(",") + (":" in include) or len(visible)])
    path = Path(str(named or _DEFAULT_HOSTS)).absolute()
    try:
        slots = hostfile.part(hostfile.read(path), include, exclude).values()
        counts, notes = [min(len(left), each or len(left)) for left in slots][: nodes or None], ()
    except AutoscoutError as error:
        counts = [each] * max(nodes, 1)
        notes = (f"cluster: correct its nodes, since the line's hosts cannot be read ({error})",)
    return Devices(counts, str(path), include, exclude, notes)


def _of_recipe(line: Line) -> int:
    """The number of devices of a node that the framework implies: 1 for its recipes for one device, else its usual
    number; 0 if unknown."""
    known = frameworks().get(recognised(line))
    if known is None:
        return 0
    single = known.one_device and any(word.endswith(known.one_device) for word in line.words)
    return 1 if single else known.usual_devices


def _of_accelerate(line: Line) -> tuple[dict[str, int], tuple[str, ...]]:
    """(the numbers in accelerate's configuration file, YAML or JSON; notes). Without --config_file it is the file in
    accelerate's home, see `default_config_file` in accelerate's config_args.py."""
    name, notes = line.value("--config_file"), ()
    if not name:
        around = {**os.environ, **line.environment}
        cache = Path(around.get("XDG_CACHE_HOME", "~/.cache")) / "huggingface"
        path = (Path(around.get("HF_HOME", cache)) / "accelerate/default_config.yaml").expanduser()
        if line.value("--cpu") is not None or not path.is_file():
            return {}, ()
        name, notes = path, (f"cluster: its nodes are those of {path}, which `accelerate launch` reads",)
    try:
        text = Path(str(name)).read_text()
    except (OSError, UnicodeDecodeError):
        return {}, (f"cluster: correct its nodes; {name}, which gives the number of processes, cannot be read here",)
    numbers = re.findall(
        r"""(?:^|[{,])\s*["']?(num_processes|num_machines)["']?\s*:\s*["']?(\d+)""", text, re.MULTILINE
    )
    return {key: int(number) for key, number in numbers if int(number)}, notes


def _by_accelerate(line: Line) -> bool:
    """Whether accelerate starts the line. A framework may also call it, unless the line names another launcher."""
    names = {*line.launcher.names}
    own = set().union(*(known.programs for known in frameworks().values() if known.by_accelerate))
    return "accelerate" in names or bool(names & own and line.value("--launcher") in (None, "accelerate"))


def _tasks(line: Line, nodes: int) -> int:
    return line.number(("--ntasks-per-node",)) or line.number(_TASKS) // max(nodes, 1)


def _variable(line: Line, name: str) -> int:
    text = line.environment.get(name, "")
    return int(text) if text.isdecimal() else 0


def _apart(line: Line) -> Line:
    """The line with -N2 split into -N 2."""
    found = ((_ATTACHED.fullmatch(word), word) for word in line.words)
    return line.of(part for match, word in found for part in (match.groups() if match else (word,)))
