"""Imports COSMIC's parameter files: its knobs (Python dictionaries) and the base network, system and workload. A knob
file is read as data, never run: {name: (set | (min, max, step), "TRUE" | "FALSE" | "N/A")}; the flag says whether all
dimensions share one value. Settings in the other files without a knob are fixed. The result is a job of target =
"stack" with COSMIC's [space].
"""

import ast
import re
from pathlib import Path
from typing import Any

from autoscout.job.names import as_name
from autoscout.job.words import nearest_name
from kb import door
from kb.records import AutoscoutError

_SECTIONS = ("SYSTEM_KNOBS", "NETWORK_KNOBS", "WORKLOAD_KNOBS", "DERIVED_KNOBS", "CONSTRAINTS")
_WORDS = {
    "Ring": "ring",
    "Switch": "switch",
    "FullyConnected": "fully_connected",
    "halvingDoubling": "halving_doubling",
    "doubleBinaryTree": "double_tree",
    "localBWAware": "hierarchical",
    "FIFO": "fifo",
    "LIFO": "lifo",
}
_KNOBS = {  # theirs → ours; one per dimension if it ends with _
    "scheduling-policy": "scheduling",
    "collective-optimization": "collectives",
    "preferred-dataset-splits": "chunks",
    "all-reduce-implementation": "algorithm_",
    "topology": "topology_",
    "npus-count": "npus_",
    "bandwidth": "bandwidth_",
    "latency": "latency_",
    "dimensions-count": "dims",
    "dp": "dp",
    "sp": "sp",
    "pp": "pp",
    "weight_sharded": "zero",
}
_SAID_OTHERWISE = {  # fields of their files that our models do not use, or read elsewhere
    *("endpoint-delay", "active-chunks-per-dimension", "boost-mode", "roofline-enabled", "num_npus", "peak-perf"),
    *("local-mem-bw", "memory-capacity", "din", "dout", "dff", "dmodel", "batch", "seq", "head", "num_stacks", "tp"),
    *("all-gather-implementation", "reduce-scatter-implementation", "all-to-all-implementation"),
}
_DERIVED = {
    "network bandwidth": "bandwidth",
    "system all-reduce-implementation": "algorithm",
    "system implementations": "",
    "system all-gather-implementation": "",
    "system reduce-scatter-implementation": "",
    "system all-to-all-implementation": "",
    "network bandwidth-links": "",
    "network bandwidth divided": "",
}
_CONSTRAINTS = (  # N1 and L1 of our catalog
    "product network npus-count == num workload num_npus",
    "mult workload dp workload sp workload pp <= num workload num_npus",
)
_MATCHING = {"ring": "ring", "fully_connected": "direct", "switch": "halving_doubling"}


def job_of(files: list[Path]) -> dict[str, Any] | None:
    """A job file's content; None if no file is a knob file. Errors: AutoscoutError (exit 2)."""
    knob_files = [f for f in files if f.suffix == ".py" and any(word in f.read_text() for word in _SECTIONS[:3])]
    if not knob_files:
        return None
    sections = _sections(knob_files[0])
    said: dict[str, Any] = {}
    for file in files:
        if file != knob_files[0]:
            said |= _plain(file)
    missing = [name for name in ("dmodel", "head", "num_stacks", "batch", "seq", "num_npus") if name not in said]
    if missing:
        raise AutoscoutError(
            f"{knob_files[0]}: give the workload file too, which says {', '.join(missing)}: autoscout init KNOBS.py "
            f"NETWORK.yml SYSTEM.json WORKLOAD.json",
            2,
        )
    return _job(knob_files[0], sections, said)


def _job(path: Path, sections: dict[str, Any], said: dict[str, Any]) -> dict[str, Any]:
    knobs = {k: v for section in _SECTIONS[:3] for k, v in sections.get(section, {}).items()}
    for name in [*knobs, *said]:
        if name not in _KNOBS and name not in _SAID_OTHERWISE:
            raise AutoscoutError(f"{path}: parameter '{name}'{nearest_name(name, [*_KNOBS, *_SAID_OTHERWISE])}", 2)
    for text in sections.get("CONSTRAINTS", []):
        if " ".join(text.split()) not in _CONSTRAINTS:
            raise AutoscoutError(f"{path}: constraint '{text}'{nearest_name(text, _CONSTRAINTS)}", 2)
    dims = len(said.get("npus-count", said.get("npus_count", [4] * 4)))
    if dims > 4:
        raise AutoscoutError(f"{path}: {dims} dimensions; a stack has at most 4", 2)
    fix: dict[str, Any] = {"dims": dims, "mbs": 1}
    limit: dict[str, list[Any]] = {}
    for theirs, ours in _KNOBS.items():
        if theirs in knobs:
            _limited(path, theirs, ours, knobs[theirs], dims, limit)
        elif theirs in said:
            _fixed(ours, _of_all_links(said) if theirs == "bandwidth" else said[theirs], dims, fix)
    rules = []
    for text in sections.get("DERIVED_KNOBS", []):
        if text not in _DERIVED:
            raise AutoscoutError(f"{path}: derived knob '{text}'{nearest_name(text, _DERIVED)}", 2)
        if _DERIVED[text] == "bandwidth":  # 100 GB/s per NPU and dimension, over any number of links
            fix |= {f"bandwidth_{i}": 100 for i in range(1, dims + 1)}
        elif _DERIVED[text] == "algorithm":
            rules += [
                {"holds": f"topology_{i} != '{topology}' or algorithm_{i} == '{algorithm}'"}
                for i in range(1, dims + 1)
                for topology, algorithm in _MATCHING.items()
            ]
    fix = {name: value for name, value in fix.items() if name not in limit and not (rules and name[:5] == "algor")}
    model = {"layers": said["num_stacks"], "hidden": said["dmodel"], "heads": said["head"], "vocab": said["dmodel"]}
    return {
        "name": as_name(path.stem, "cosmic"),
        "task": "pretrain",
        "target": "stack",
        "model": {**model, "ffn": said.get("dff", 4 * said["dmodel"])},
        "traffic": {"seq_len": said["seq"], "global_batch": said["batch"]},
        "cluster": {"nodes": [{"device": "npu", "count": said["num_npus"], "memory_gib": 22.35}]},
        "objective": {"minimize": "latency_s"},
        "space": {"fix": fix, "limit": limit, **({"rule": rules} if rules else {})},
        "notes": [
            "weight_sharded 1 is zero = 3; tp is what dp, sp and pp leave; bandwidths are of an NPU over all its links",
            "device: COSMIC's NPU of 10 TFLOP/s, 50 GB/s and 24 GB; name one that you can buy",
        ],
    }


def _limited(path: Path, theirs: str, ours: str, declared: Any, dims: int, limit: dict[str, list[Any]]) -> None:
    try:
        values, flag = declared
        if isinstance(values, tuple):
            low, high, step = values
            values = [low + i * step for i in range(int((high - low) / step) + 1)]
    except (TypeError, ValueError) as error:
        raise AutoscoutError(f"{path}: {theirs}: write ({{values}}, flag) or ((min, max, step), flag)", 2) from error
    found = sorted({_value(ours, v) for v in values})
    for name in _names(ours, dims):
        limit[name] = found
    if flag == "TRUE" and ours.endswith("_"):
        raise AutoscoutError(f"{path}: {theirs}: one value in all dimensions; write it as [[space.rule]] in the job", 2)


def _of_all_links(said: dict[str, Any]) -> list[Any]:
    """Bandwidth per NPU over all its links; their files give it per link."""
    sizes, wired = said.get("npus-count", []), said.get("topology", [])
    links = {"Ring": lambda n: 2, "FullyConnected": lambda n: n - 1}
    return [b * links.get(t, lambda n: 1)(n) for b, t, n in zip(said["bandwidth"], wired, sizes, strict=False)]


def _fixed(ours: str, value: Any, dims: int, fix: dict[str, Any]) -> None:
    values = value if isinstance(value, list) else [value] * dims
    for name, each in zip(_names(ours, dims), values, strict=False):
        fix[name] = _value(ours, each)


def _names(ours: str, dims: int) -> list[str]:
    return [f"{ours}{i}" for i in range(1, dims + 1)] if ours.endswith("_") else [ours]


def _value(ours: str, value: Any) -> Any:
    if ours == "zero":
        return 3 if value else 0
    return _WORDS.get(value, value) if isinstance(value, str) else value


def _sections(path: Path) -> dict[str, Any]:
    try:
        tree = ast.parse(path.read_text())
        found = {}
        for node in tree.body:
            if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
                found[node.targets[0].id] = ast.literal_eval(node.value)
    except (SyntaxError, ValueError) as error:
        raise AutoscoutError(
            f"{path}: a knob file holds dictionaries and lists of literals only ({error})", 2
        ) from error
    for name in found:
        if name not in _SECTIONS:
            raise AutoscoutError(f"{path}: '{name}'{nearest_name(name, _SECTIONS)}", 2)
    return found


def _plain(path: Path) -> dict[str, Any]:
    """The content of a JSON file, or of COSMIC's network files, which are flat lists."""
    text = path.read_text()
    if path.suffix == ".json":
        try:
            return door.parsed_json(text)
        except ValueError as error:
            raise AutoscoutError(f"{path}: is no JSON ({error})", 2) from error
    found: dict[str, Any] = {}
    name = ""
    for line in (line.partition("#")[0].strip() for line in text.splitlines()):
        if line.startswith("- ") and name:
            found[name] = [*(found[name] or []), _scalar(line[2:])]
        elif ":" in line:
            name, _, rest = line.partition(":")
            name = {"npus_count": "npus-count"}.get(name.strip(), name.strip())
            inside = rest.strip().strip("[]")
            found[name] = [_scalar(word) for word in inside.split(",")] if inside else []
        elif line:
            raise AutoscoutError(f"{path}: '{line}' is no line of a network file (name: [ a, b, … ])", 2)
    return found


def _scalar(text: str) -> Any:
    text = text.strip().strip("\"'")
    try:
        return int(text) if re.fullmatch(r"-?\d+", text) else int(f) if (f := float(text)).is_integer() else f
    except ValueError:
        return text
