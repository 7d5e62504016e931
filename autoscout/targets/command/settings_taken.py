"""Checks whether the installed releases of a trainer's packages accept the settings that AutoScout adds to a launch
line. Known releases are recorded (taken/PACKAGE.json); sources of unknown releases are parsed without import."""

import subprocess
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

import msgspec

from autoscout.line.flags import setting
from autoscout.line.launch_line import Line
from autoscout.line.line_devices import flags_of_a_node
from autoscout.space.knob import KnobEntry
from autoscout.targets import seams
from autoscout.targets.command import surroundings
from autoscout.targets.command.arguments import Place, Started, export_place
from autoscout.targets.command.preset import Preset, preset_of
from autoscout.targets.current_launch import command_line
from autoscout.targets.jobs import JobSpace
from autoscout.targets.jobs import declared as declared_by
from autoscout.targets.package_sources import declared
from kb.records import Configuration, Job

RECORDS = Path(__file__).parent / "taken"
_PARSER = "accelerate.commands.launch.launch_command_parser"
_LIMIT_S = 60.0
_PLACES = """import importlib.util, json
found = {name: importlib.util.find_spec(name) for name in NAMES}
print(json.dumps({name: [*spec.submodule_search_locations][0] for name, spec in found.items() if spec}))
"""

Taken = dict[str, list[str]]  # setting → alternative names, of which a release must have at least one


def of_preset(preset: Preset, knobs: Iterable[str]) -> Taken:
    """Returns the settings added by experiments, export checks and knobs. Settings that can only replace a setting of
    the line are omitted, since the user's release evidently accepts them. A setting must be a field of one of the
    classes that `taken_by` lists for the longest matching prefix."""
    batch = [preset.batch.flag] if preset.batch else []
    found = {}
    for text in [*preset.measuring, *preset.soak, *batch, *knobs]:
        name = text.removesuffix("=")
        begin = max((b for b in preset.taken_by if name.startswith(b)), key=len, default=None)
        if begin is not None and " " not in name:  # the text may be a description instead of a setting
            own = setting(name) if begin == "--" else name.removeprefix(begin)
            found[name] = [f"{each}.{own}" for each in preset.taken_by[begin]]
    return found


def of_launcher(line: Line) -> Taken:
    """Returns the flags that tell accelerate a node's rank, if the line uses accelerate."""
    given = flags_of_a_node(line).split() if "accelerate" in line.launcher.names else []
    return {flag: [f"{_PARSER}.{flag}"] for flag in given if flag.startswith("--")}


def recorded(package: str) -> seams.Recorded:
    """Returns the records of a package's releases; empty if there are none."""
    path = RECORDS / f"{package}.json"
    text = path.read_bytes() if path.is_file() else b'{"made_by": "", "releases": [], "names": {}}'
    return msgspec.json.decode(text, type=seams.Recorded)


def fit(
    job: Job,
    ours: Iterable[KnobEntry],
    environment: Mapping[str, str],
    started: Callable[[Job, Configuration, Place], Started],
) -> seams.SeamFit | None:
    """Returns whether the packages accept the settings; None if that cannot be determined. `ours`: knobs of shipped
    catalogs. (A user's own knobs depend on the user's script, so they are not checked.) `environment`: versions of
    installed packages. `started`: returns the command whose interpreter has the packages, for releases without a
    record.

    Errors: AutoscoutError (exit 2) for an unreadable source."""
    own = {knob.sets for knob in ours}
    knobs = [knob.sets for knob in declared_by(job).knob if knob.sets in own]
    taken = of_launcher(command_line(job)) | of_preset(preset_of(job), knobs)
    packages = {_package(name): "" for names in taken.values() for name in names}
    versions = {name: environment[name].partition("+")[0] for name in sorted(packages) if name in environment}
    signatures: dict[str, str | None] = {}
    for name, version in versions.items():
        signatures |= recorded(name).of(version) or {}
    new = [name for name, version in versions.items() if version not in recorded(name).releases]
    if new:
        example = started(job, JobSpace.of_job(job).reference, export_place(job))
        roots = places(surroundings.python_of(job, example), [*versions])
        if not {*new} <= {*roots}:
            return None
        signatures |= {n: declared(roots, n) for names in taken.values() for n in names if _package(n) in new}
    asked = {text: known for text, names in taken.items() if (known := [n for n in names if _package(n) in versions])}
    if not asked:
        return None
    return seams.SeamFit(
        engine=" and ".join(f"{name} {versions[name]}" for name in new or versions),
        known=not new,
        names=len(asked),
        unfit=[f"no {text}" for text, names in asked.items() if all(signatures.get(n) is None for n in names)],
    )


def places(python: str, packages: list[str]) -> dict[str, Path]:
    """Returns package → folder, for those of `packages` that an interpreter can import; {} if the query fails."""
    try:
        script = _PLACES.replace("NAMES", repr(packages))
        done = subprocess.run([python, "-c", script], stdin=subprocess.DEVNULL, capture_output=True, timeout=_LIMIT_S)
        found = msgspec.json.decode(done.stdout.rstrip().rsplit(b"\n", 1)[-1], type=dict[str, str])
    except (OSError, subprocess.SubprocessError, msgspec.MsgspecError):
        return {}
    return {name: Path(place) for name, place in found.items() if Path(place).is_dir()}


def _package(name: str) -> str:
    return name.partition(".")[0]
