"""What is known about kinds of device, as data: one TOML file per kind, in fixtures/hardware and in a folder next to
the knowledge base. A record holds figures of the data sheet, figures fitted from measurements, the names that drivers
and tables use, and the name of the record that it is `like`, which supplies every figure that it does not state.
`[sources]` gives the origin of figures that `source` does not cover. `autoscout calibrate` writes its measurements as a
record, too, which replaces a shipped one.
"""

import tomllib
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any

import msgspec

from autoscout.job import shipped
from autoscout.job.device_likeness import SECTIONS, Content, completed
from autoscout.job.words import listed
from kb.records import AutoscoutError
from kb.store import default_path

# The first CUDA compute capability whose multiprocessors support a format (CUDA C++ Programming Guide, tensor cores).
_NEWEST_WITHOUT = {"fp8": 8.6, "fp4": 9.0}
_WIDER = {"fp4": "fp8", "fp8": "bf16"}  # a format → the wider one to which its values are converted


class DeviceRecord(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The figures that all rooms may read; for those of kernels and links see `Hardware` and `ServingDevice`.

    `names`: further names in job files, schedulers and tables. `series`: the words for it in drivers' names, which it
    may share with records of another memory size or another `form` (how it is built in). `vendor`: "" for a CPU.
    `capability`: CUDA's, 0 for none. `peak_tflops`: dense, by number format."""

    name: str
    names: list[str] = []
    series: list[str] = []
    form: str = ""
    source: str
    sources: dict[str, str] = {}
    like: str = ""
    links: str = ""  # the record whose links it has, if not that of `like`
    vendor: str
    capability: float = 0.0
    memory_gib: float  # as its driver reports it
    memory_gb_s: float
    multiprocessors: int
    per_node: int  # devices that share one island of fast links
    per_tray: int = 0  # devices of one host, if an island spans hosts; 0: an island is one host
    peak_tflops: dict[str, float]
    cores: int = 0  # a CPU's cores, which all ranks of a node share; 0: every rank has its own device
    watts: float = 0.0  # the power limit in its data sheet; 0: unknown
    host_gb_s: float = 32.0  # bandwidth to its host, one way; default: PCIe 4.0's
    channel_gb_s: float = 0.0  # what one NCCL channel moves over the island's links; 0: unknown
    context_gib: float  # memory that the driver, its libraries and the communicators occupy
    calibrated: bool = False  # its kernels were measured on this machine, not taken from a data sheet
    doubt: float = 0.0  # extra error of log(measured / predicted), for devices whose runs disagree with their kernels


def folder() -> Path:
    return shipped.folder() / "hardware"


def own_folder() -> Path:
    """The user's own records, next to the knowledge base."""
    return default_path().parent / "hardware"


@cache
def contents() -> Mapping[str, Content]:
    """Each record by its file's name without the ending, completed from the records that it is like.

    Errors: AutoscoutError (exit 2) for one that is like itself, or like an unknown one."""
    known = shipped_contents()
    return {**known, **completed(_read(own_folder()), known, where)}


@cache
def shipped_contents() -> Mapping[str, Content]:
    """The records that ship with AutoScout, even if this machine has been calibrated since."""
    return completed(_read(folder()), {}, where)


@cache
def records() -> dict[str, DeviceRecord]:
    """Errors: AutoscoutError (exit 2) for a record with a missing or contradicting figure."""
    return {stem: _converted(stem, content) for stem, content in contents().items()}


def where(stem: str) -> Path:
    """The file of a record."""
    own = own_folder() / f"{stem}.toml"
    return own if own.exists() else folder() / f"{stem}.toml"


@cache
def by_name() -> dict[str, str]:
    """Every name of every record, in `plain` letters → the record. Names in a user's records override those in shipped
    ones.

    Errors: AutoscoutError (exit 2) for a name that two records of one folder claim."""
    found: dict[str, str] = {}
    own = {path.stem for path in own_folder().glob("*.toml")}
    for people in (False, True):
        here: dict[str, str] = {}
        for stem, record in records().items():
            for name in (stem, record.name, *record.names) if (stem in own) == people else ():
                if (other := here.setdefault(plain(name), stem)) != stem:
                    raise AutoscoutError(
                        f"{where(stem)}: '{name}' is a name of {where(other)}, too; remove it from one of them", 2
                    )
        found |= here
    return found


def plain(name: str) -> str:
    return "".join(c for c in name.lower() if c.isalnum())


def _read(where_from: Path) -> dict[str, dict[str, Any]]:
    found = {}
    for path in sorted(where_from.glob("*.toml"), key=lambda path: path.stem):
        try:
            found[path.stem] = tomllib.loads(path.read_text(encoding="utf-8"))
        except (tomllib.TOMLDecodeError, UnicodeDecodeError) as e:
            raise AutoscoutError(f"{path}: {e}", 2) from None
    return found


def _converted(stem: str, content: Content) -> DeviceRecord:
    needed = [f.name for f in msgspec.structs.fields(DeviceRecord) if f.required]
    missing = [name for name in needed if name not in content]
    missing += [f"[{name}]" for name in SECTIONS if not content.get(name)]
    if missing:
        anew = " (`autoscout calibrate` rewrites it)" if where(stem).parent == own_folder() else ""
        raise AutoscoutError(f"{where(stem)}: it lacks {listed(missing)}; state that, or set `like`{anew}", 2)
    try:
        found = msgspec.convert({k: v for k, v in content.items() if k not in (*SECTIONS, "serving")}, DeviceRecord)
    except msgspec.ValidationError as e:
        raise AutoscoutError(f"{where(stem)}: {e}", 2) from None
    for problem in _contradictions(found):
        raise AutoscoutError(f"{where(stem)}: {problem}", 2)
    return found


def _contradictions(one: DeviceRecord) -> Iterator[str]:
    figures = ("memory_gib", "memory_gb_s", "multiprocessors", "per_node")
    for name, value in (*((n, getattr(one, n)) for n in figures), *one.peak_tflops.items()):
        if not value > 0:
            yield f"{name} = {value:g} must be more than 0"
    for narrow, wide in _WIDER.items():
        peaks = one.peak_tflops
        if narrow in peaks and wide not in peaks:
            yield f"peak_tflops has {narrow}, but not {wide}"
        elif narrow in peaks and peaks[narrow] < peaks[wide]:
            yield f"peak_tflops: {narrow} = {peaks[narrow]:g} is slower than {wide} = {peaks[wide]:g}"
        if narrow in peaks and 0 < one.capability <= _NEWEST_WITHOUT[narrow]:
            yield f"capability = {one.capability:g} has no {narrow}, but peak_tflops gives {peaks[narrow]:g} for it"
    if one.vendor and one.cores:
        yield f"vendor = '{one.vendor}' is for GPUs, but cores = {one.cores} is for CPUs"
    if one.per_tray and one.per_node % one.per_tray:
        yield f"per_node = {one.per_node} is not a multiple of per_tray = {one.per_tray}"
