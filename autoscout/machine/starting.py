"""`autoscout init`: a job file from what a person has: a launch line, a script or sbatch file with one, a config.json.

What they run today is kept unchanged (with its containers and options) and becomes the reference.
"""

import contextlib
import json
import os
import re
import shlex
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

from autoscout.cluster import gpus
from autoscout.cluster.devices import kind_of
from autoscout.job.hf_config import is_known
from autoscout.job.words import listed
from autoscout.machine import shell_lines
from autoscout.machine.batch_lines import Batch, asked, asked_of_srun, chdir, node_of, shows_gpus, visible
from autoscout.machine.manifests import container_in
from autoscout.machine.script_folder import runs_in, with_folders
from autoscout.targets.target import names, target
from autoscout.targets.vllm import SERVED_S
from kb import door
from kb.records import AutoscoutError

_LAUNCHERS = (
    *("torchrun", "python", "python3", "accelerate", "deepspeed", "srun", "mpirun", "trl", "vllm", "sglang", "bash"),
    *("apptainer", "singularity", "docker", "podman", "enroot", "trtllm-bench", "trtllm-serve"),
    *("numactl", "nsys", "uv"),
)
# Of an experiment on GPUs, with its start: large models are loaded, compiled and recorded for minutes.
GPU_TIMEOUT_S = 900
# Slurm's variables for the devices of a node, and the nodes.
_SLURMS_EACH: tuple[str, ...] = ("SLURM_GPUS_ON_NODE", "SLURM_GPUS_PER_NODE")
_SLURMS_NODES: tuple[str, ...] = ("SLURM_NNODES", "SLURM_JOB_NUM_NODES")
_ALONE = ("python", "python3", "bash", "sh")  # what prepares a launch begins with one
_SOME_GPU = "GPU"  # a kind that a job is refused with: only a person knows it
_VARIABLE = re.compile(r"\$\(|`|\$\{?(?:[A-Za-z_]\w*|\d)")
_ASSIGNED = re.compile(r"[A-Za-z_]\w*=.*", re.DOTALL)
_GOES = re.compile(r"""(?:cd|pushd)\s+("[^"]*"|'[^']*'|(?:\$\([^)]*\)|[^\s|])+).*""")
_PATHS = ("PATH", "PYTHONPATH", "LD_LIBRARY_PATH", "LIBRARY_PATH", "CPATH")  # to which scripts add
_HF = {
    "num_hidden_layers": "layers",
    "hidden_size": "hidden",
    "num_attention_heads": "heads",
    "num_key_value_heads": "kv_heads",
    "head_dim": "head_dim",
    "intermediate_size": "ffn",
    "vocab_size": "vocab",
    "tie_word_embeddings": "tied",
}
# Of these architectures the fields above are all of the shape, unless the config has more: experts, latent attention,
# the format of stored weights. Else the job file names the config, from which norms of queries and biases are read too.
_BY_FIELDS = ("", "llama", "mistral")
_MORE = ("num_local_experts", "num_experts", "n_routed_experts", "kv_lora_rank", "quantization_config")


def job_file(given: list[str], folder: Path) -> tuple[str, list[str]]:
    """(text of a job file, what a person should review). `given`: the words of a launch line, or one file.

    Errors: AutoscoutError (exit 2) for a file that describes neither a launch nor a model.
    """
    made, notes = described(given, folder)
    return toml(made, notes), notes


def described(given: list[str], folder: Path) -> tuple[dict[str, Any], list[str]]:
    """Like `job_file`, with the job as plain data."""
    files = [Path(word) for word in given]
    for name in names():
        if all(file.is_file() for file in files) and (made := target(name).described_by(files)) is not None:
            return made, made.pop("notes", [])
    path = Path(given[0]) if len(given) == 1 else None
    if path is not None and (path.is_file() or path.suffix in (".json", ".sh", ".sbatch")):
        try:
            text = path.read_text()
        except (OSError, UnicodeDecodeError) as error:
            raise AutoscoutError(f"{path}: cannot be read ({error})", 2) from error
        if path.suffix == ".json":
            return _of_model(path, text)
        if path.suffix in (".yaml", ".yml"):
            return _of_manifest(text, str(path), folder)
        text = with_folders(text, path, folder)
        line, variables, batch, goes, earlier = launch_in(text, str(path))
        starts = [chdir(text)] if chdir(text) else []
        place, of_place = runs_in([*starts, *goes], path, line, folder)
        made, notes = _of_line(line, place, variables, batch)
        notes += of_place + _of_branches(line, text, str(path))
        if earlier:
            notes.append(f"launch.current: the script's last launch; before it comes '{shlex.join(earlier)[:100]}'")
        if made["target"] == "command" and re.search(r"[^&]&\s*$", text, re.MULTILINE):
            start = runs_in(starts, path, line, folder)[0]  # it goes on from there by itself
            name = os.path.relpath(path.resolve(), start)
            made["launch"]["path"] = str(start)
            made["launch"]["current"] = shlex.join(["bash", str(path.resolve()) if name.startswith("..") else name])
            notes.append(
                "launch.current: the script starts something beside its last line, so it is run as a whole; for knobs "
                "write its lines into launch.command, with {name} where a value stands, and declare each in [space]"
            )
        return made, notes
    words, variables = given if len(given) > 1 else shlex.split(given[0]), {}
    if len(given) == 1:
        with contextlib.suppress(AutoscoutError):  # it begins with what is not known
            words, variables = launch_in(given[0], "the line")[:2]
    return _of_line(shell_lines.unwrapped(words), folder, variables, None)


def _of_manifest(text: str, where: str, folder: Path) -> tuple[dict[str, Any], list[str]]:
    found = container_in(text, where)
    words, variables = shell_lines.unwrapped(found.words), found.variables
    if found.script:
        words, exported = launch_in(found.script, where)[:2]
        variables = {**variables, **exported}
    made, notes = _of_line(words, folder, variables, None)
    return made, [*notes, f"launch: the container's image is {found.image}; run AutoScout where its programs are"]


class Launched(NamedTuple):
    """The `words` of a script's launch line, the variables that it `exports`, what its #SBATCH lines ask for, the
    folders that it `goes` to before that line, and the words of an `earlier` line that starts ranks or a server."""

    words: list[str]
    exports: dict[str, str]
    batch: Batch | None
    goes: list[str]
    earlier: list[str]


def _of_branches(line: list[str], text: str, where: str) -> list[str]:
    """What a person should review of the conditions that only they know."""
    try:
        other = launch_in(text, where, unsure=False).words
    except AutoscoutError:  # each line stands in such a branch
        return []
    more, less = ([word for word in one if word not in two] for one, two in ((line, other), (other, line)))
    if not more and not less:
        return []
    told = f"'{shlex.join(more)[:100]}' goes" if more else ""
    told += " and " * bool(more and less) + (f"'{shlex.join(less)[:100]}' comes" if less else "")
    return [f"launch.current: conditions of the script that are not known here are taken to hold; else {told}"]


def launch_in(text: str, where: str, unsure: bool = True) -> Launched:
    """`unsure`: whether the script's conditions hold that are not known.

    Errors: AutoscoutError (exit 2) where no line launches anything.
    """
    batch = asked(text)
    known = {"HOME": str(Path.home()), "PWD": str(Path.cwd()), **{name: os.environ.get(name, "") for name in _PATHS}}
    if batch is not None:
        known |= dict.fromkeys(_SLURMS_EACH, str(batch.each)) | dict.fromkeys(_SLURMS_NODES, str(batch.nodes))
    exported: dict[str, str] = {}
    found: list[str] = []
    goes: list[str] = []
    went: list[str] = []
    earlier: list[str] = []
    left = [shell_lines.taken(text, known, unsure)]
    while left:
        command = next(left[-1], None)
        if command is None:
            left.pop()
            continue
        if shell_lines.sets(command, known, exported):
            continue
        command = shell_lines.filled(command, known)
        if gone := _GOES.fullmatch(command):
            goes.append(gone[1].strip("\"'"))
            known["PWD"] = str(Path(known["PWD"]) / goes[-1])
        words = shell_lines.words(command)
        if words[:2] in (["bash", "-c"], ["sh", "-c"]) and len(words) == 3:
            left.append(shell_lines.taken(words[2], known, unsure))
        elif _launches(words):
            plain = _assigned(words)[1]
            loads = found and plain[:2] == ["vllm", "bench"]  # the client of the server before it
            now = [*found, *plain] if loads else shell_lines.unwrapped(words)
            before = [] if loads or now == found else _assigned(found)[1]
            earlier = [] if loads else found if before and Path(before[0]).name not in _ALONE else earlier
            found, went = now, [*goes]
    if not found:
        raise AutoscoutError(f"{where}: no line launches anything that is known ({', '.join(_LAUNCHERS[:7])} …)", 2)
    return Launched(found, exported, batch, went, earlier)


def here() -> tuple[str, int]:
    """(kind, count) of this machine's devices, as job files name them."""
    found = gpus.look()
    kind = kind_of(found[0].name, found[0].total_gib) if found else ""
    return kind or "cpu", len(found)


def _of_line(
    words: list[str], folder: Path, variables: dict[str, str], batch: Batch | None
) -> tuple[dict[str, Any], list[str]]:
    given, words = _assigned(words)
    variables = {**variables, **given}
    by_engine = sorted(names(), key=lambda name: name == "command")  # this one takes any line
    with contextlib.chdir(folder):  # where the files that the line names are
        made = next((job for name in by_engine if (job := target(name).recognises(words, variables))), None)
    if made is None:
        raise AutoscoutError(f"'{shlex.join(words)[:80]}' is no launch line that is known", 2)
    notes = made.pop("notes", [])
    nodes, of_nodes = _nodes(words, variables, batch, made.pop("devices", [0]))
    notes += of_nodes
    made["cluster"] = {"nodes": nodes, **made.get("cluster", {})}
    if each := made.pop("samples_each", 0):
        made["traffic"] = {"global_batch": each * sum(node["count"] for node in nodes)} | made.get("traffic", {})
    names_left = [name for word in words for name in _VARIABLE.findall(word)]
    unknown = sorted({"$(…)" if name in ("$(", "`") else name.replace("{", "") for name in names_left})
    if unknown and words[:2] not in (["bash", "-c"], ["sh", "-c"]):
        notes.append(f"launch.current: write what {listed(unknown)} stands for; no shell fills it in")
    launch = made.setdefault("launch", {})
    launch["path"] = str(folder.resolve())
    if "command" not in launch:
        launch.setdefault("current", shlex.join(words))
    if variables:
        launch["environment"] = {**variables, **launch.get("environment", {})}
    if nodes[0]["device"] != "cpu":
        made["launch"] = launch | times_on_gpus(made["target"]) | launch  # what the line says stays
    return made, notes


def _nodes(
    words: list[str], variables: dict[str, str], batch: Batch | None, counts: list[int]
) -> tuple[list[dict[str, Any]], list[str]]:
    """(a cluster's nodes, what a person should review). `counts`: devices of each as the line says them, 0 where it
    does not."""
    step = asked_of_srun(words)
    if batch and not (batch.by_tasks and all(counts)):
        counts = [batch.each] * batch.nodes
    elif step and not all(counts):
        counts = [step.each] * max(step.nodes, len(counts))
    counts = [each or len(visible(variables)) for each in counts]
    of_gpus = batch if batch and not batch.by_tasks else step
    site = of_gpus.kind if of_gpus else ""
    node, notes = node_of(site) if site else ({}, [])
    kind, count = here()
    if kind == "cpu" and (count or of_gpus or shows_gpus(words, variables)):
        kind = site or _SOME_GPU
    nodes = [{"device": kind, "count": each or count or 1, **node} for each in counts]
    such = ", ".join(f"{{ device = 'h100', count = {each['count']} }}" for each in nodes[:2])
    such = f"write nodes = [{such}{', …' if nodes[2:] else ''}]"
    kind = nodes[0]["device"]
    if kind == _SOME_GPU:
        why = "this machine's GPUs are of no kind that is known" if count else "this machine shows no GPU, and the line"
        why += "" if count else " does not say of which kind its GPUs are"
        notes.append(f"cluster: {why}: {such}, with yours (and its memory_gib, if `check` does not know it)")
    elif kind == "cpu":
        notes.append(f"cluster: this machine shows no GPU, so these are CPU ranks; for GPUs {such}, with your kind")
    return nodes, notes


def times_on_gpus(target: str) -> dict[str, Any]:
    """Of [launch], for a job on GPUs."""
    return {"timeout_s": GPU_TIMEOUT_S} | ({"measure_s": SERVED_S} if target == "vllm" else {})


def _assigned(words: list[str]) -> tuple[dict[str, str], list[str]]:
    """(variables set before a command, the command), as in `CUDA_VISIBLE_DEVICES=0 vllm serve …`."""
    plain = (
        _ASSIGNED.fullmatch(word) or (word == "env" and not after.startswith("-"))  # `env -u NAME …` is a command
        for word, after in pairwise([*words, ""])
    )
    count = next((i for i, of_line in enumerate(plain) if not of_line), len(words))
    pairs = (word.partition("=") for word in words[:count] if word != "env")
    return {name: value for name, _, value in pairs}, words[count:]


def _of_model(path: Path, text: str) -> tuple[dict[str, Any], list[str]]:
    try:
        config = door.parsed_json(text)
    except ValueError as error:
        raise AutoscoutError(f"{path}: is no JSON ({error})", 2) from error
    config = config.get("text_config", config) if isinstance(config, dict) else {}
    model = {ours: config[theirs] for theirs, ours in _HF.items() if config.get(theirs) is not None}
    if not {"layers", "hidden", "heads", "vocab"} <= model.keys():
        raise AutoscoutError(f"{path}: says no shape of a transformer (num_hidden_layers, hidden_size, …)", 2)
    if "rms_norm_eps" in config:
        model |= {"norm": "rmsnorm", "bias": bool(config.get("attention_bias")), "position": "rope"}
    if config.get("hidden_act") in ("silu", "swish"):
        model["gated"] = True
    kind = str(config.get("model_type") or "")
    if any(config.get(name) for name in _MORE) or (kind not in _BY_FIELDS and is_known(kind)):
        model = {"from": str(path.resolve())}
    made, notes = of_shape(model, path.resolve().parent.name)
    if kind not in _BY_FIELDS and "from" not in model:
        notes.append(
            f"model: the architecture '{kind}' is not known; compare these sizes, gates, norms and biases with it"
        )
    if flags := _beside_the_shape(config):
        notes.append(f"export: what [model] does not say of this model, a launch of Megatron-LM needs: {flags}")
    made["traffic"]["seq_len"] = min(4096, int(config.get("max_position_embeddings", 4096)))
    return made, notes


def _beside_the_shape(config: dict[str, Any]) -> str:
    """Flags of Megatron-LM for what a config.json has otherwise than Megatron-LM by itself."""
    positions = config.get("rope_parameters") or {}
    positions = {**positions, **(config.get("rope_scaling") or {})} if isinstance(positions, dict) else {}
    base, epsilon = config.get("rope_theta") or positions.get("rope_theta"), config.get("rms_norm_eps")
    flags = [f"--rotary-base {base:.0f}"] if isinstance(base, int | float) and base != 10000 else []
    flags += [f"--norm-epsilon {epsilon:g}"] if isinstance(epsilon, int | float) and epsilon != 1e-5 else []
    scaled = str(positions.get("rope_type") or positions.get("type") or "default")
    if scaled == "llama3":
        flags.append(f"--use-rope-scaling --rope-scaling-factor {positions.get('factor', 8)}")
    elif scaled != "default":
        flags.append(f"positions scaled by {scaled}")
    return ", ".join(flags)


def of_shape(model: dict[str, Any], name: str) -> tuple[dict[str, Any], list[str]]:
    """A job that trains a model on this machine's devices. `model`: its shape, or {"preset": …}."""
    kind, count = here()
    notes = ["traffic: the batch and the length that you train with; for serving task = 'serve', target = 'vllm'"]
    if kind == "cpu":
        model = {**model, "dtype": "fp32"}
        notes.append("dtype: single precision, since most processors only emulate bf16; on GPUs leave it out")
    made = {
        "name": re.sub(r"[^\w.-]", "-", name).lstrip("-_.") or "model",
        "task": "pretrain",
        "target": "megatron",
        "model": model,
        "traffic": {"seq_len": 4096, "global_batch": 64},
        "cluster": {"nodes": [{"device": kind, "count": count or 1}]},
        "objective": {"minimize": "step_time_s"},
    }
    if kind != "cpu":  # without it nothing is measured on GPUs
        made["launch"] = {"transformer_engine": True, **times_on_gpus("megatron")}
    return made, notes


def toml(job: dict[str, Any], notes: list[str]) -> str:
    """A job as a person would write it: plain keys first, then its tables."""
    lines = [f"# {note}" for note in notes]
    lines += [f"{key} = {_value(value)}" for key, value in job.items() if not isinstance(value, dict)]
    for section, fields in job.items():
        if isinstance(fields, dict):
            lines += ["", f"[{section}]"]
            lines += [f"{_key(key)} = {_value(value)}" for key, value in fields.items()]
    return "\n".join(lines) + "\n"


def _value(value: Any) -> str:
    if isinstance(value, dict):
        return "{ " + ", ".join(f"{_key(k)} = {_value(v)}" for k, v in value.items()) + " }"
    if isinstance(value, list):
        inside = ", ".join(map(_value, value))
        return f"[{inside}]"
    return json.dumps(value, ensure_ascii=False)


def _key(key: str) -> str:
    return key if re.fullmatch(r"[\w-]+", key) else json.dumps(key)


def _launches(words: list[str]) -> bool:
    """Whether they begin with a launcher, and not of what reads MLPerf's logs after the run."""
    command = _assigned(words)[1]
    reads = any("mlperf_logging.compliance_checker" in word for word in command)
    return bool(command) and Path(command[0]).name in _LAUNCHERS and not reads
