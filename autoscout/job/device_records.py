"""Device data: one TOML file per kind of device, in fixtures/hardware and in a folder next to the knowledge base.

A record has figures from the data sheet, figures fitted to measurements, and the names that drivers and tables use. The
entry `like` names a record from which missing figures are copied. The origin of figures is given by `source`, and by
`[sources]` for figures with a different origin. `autoscout calibrate` writes its measurements as a record that replaces
a shipped record."""

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

# The last CUDA compute capability without tensor cores for a format (CUDA C++ Programming Guide, tensor cores).
_NEWEST_WITHOUT = {"fp8": 8.6, "fp4": 9.0}
# Number format → the next wider format. A device with the first must also have the second, at no higher peak.
_WIDER = {"fp4": "fp8", "fp8": "bf16"}


class DeviceRecord(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A device's general figures. (Figures of kernels and links are in `Hardware` and `ServingDevice`.)

    `names`: further names in job files, schedulers and tables. `series`: names in drivers; records that differ only in
    memory size or in `form` (the form factor, such as PCIe) may share these names. `vendor`: "" for a CPU.
    `capability`: CUDA compute capability, 0 for none. `peak_tflops`: dense peak by number format."""

    name: str
    names: list[str] = []
    series: list[str] = []
    form: str = ""
    source: str
    sources: dict[str, str] = {}
    like: str = ""
    links: str = ""  # name of the record from which missing figures of links are copied; "": `like`
    vendor: str
    capability: float = 0.0
    memory_gib: float  # as reported by the driver
    memory_gb_s: float
    multiprocessors: int
    per_node: int  # devices in an island of fast links (NVLink domain)
    per_tray: int = 0  # devices per host if an island (NVLink domain) spans hosts; 0: an island is one host
    peak_tflops: dict[str, float]
    cores: int = 0  # cores of a CPU, which all ranks of a node share; 0: each rank has its own device
    alone: float = 1.0  # speed of a CPU's core while the others rest, relative to its speed while all compute
    crowded: float = 1.0  # time of a CPU rank's threads if twice as many threads as cores run, relative to enough cores
    doubled: float = 1.0  # time of matrix products on a CPU with twice as many threads, as a share
    watts: float = 0.0  # nominal power limit; 0: unknown
    host_gb_s: float = 32.0  # bandwidth to the host in one direction; default: PCIe 4.0
    # sequential reads of the node's storage; default: one NVMe drive for data centres, the Micron 7450 (ServeTheHome,
    # "Micron 7450 SSDs Launched with 176-Layer NAND")
    storage_gb_s: float = 6.8
    channel_gb_s: float = 0.0  # bandwidth of one NCCL channel over the island's links; 0: unknown
    context_gib: float  # memory for the driver, its libraries and communicators
    calibrated: bool = False  # the kernels were measured on such a device, not taken from a data sheet
    # additional standard error of log(measured / predicted), for devices whose measured runs contradict the kernel
    # figures
    doubt: float = 0.0


def folder() -> Path:
    return shipped.folder() / "hardware"


def own_folder() -> Path:
    """Returns the folder for the user's own records."""
    return default_path().parent / "hardware"


@cache
def contents() -> Mapping[str, Content]:
    """Returns stem of the file name → content of the record, completed by device_likeness.py.

    Errors: AutoscoutError (exit 2) if the entries `like` form a cycle, or name an unknown record."""
    known = shipped_contents()
    return {**known, **completed(_read(own_folder()), known, where)}


@cache
def shipped_contents() -> Mapping[str, Content]:
    """Returns the contents of the records that ship with AutoScout, without records that a calibration or the user
    added."""
    return completed(_read(folder()), {}, where)


@cache
def records() -> dict[str, DeviceRecord]:
    """Returns all records by key. Errors: AutoscoutError (exit 2) for a record with a missing or contradictory
    figure."""
    return {stem: _converted(stem, content) for stem, content in contents().items()}


def where(stem: str) -> Path:
    """Returns the path of a record's file."""
    own = own_folder() / f"{stem}.toml"
    return own if own.exists() else folder() / f"{stem}.toml"


@cache
def by_name() -> dict[str, str]:
    """Returns name (normalized by `plain`) → record's key, for all names of all records. Names in a user's records take
    precedence over names in shipped records.

    Errors: AutoscoutError (exit 2) for a name that two records of one folder claim."""
    found: dict[str, str] = {}
    own = {path.stem for path in own_folder().glob("*.toml")}
    for people in (False, True):
        here: dict[str, str] = {}
        for stem, record in records().items():
            for name in (stem, record.name, *record.names) if (stem in own) == people else ():
                if (other := here.setdefault(plain(name), stem)) != stem:
                    raise AutoscoutError(
                        f"{where(stem)}: '{name}' is also a name in {where(other)}; remove it from one of the "
                        "two files",
                        2,
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
        anew = " (`autoscout calibrate` rewrites this file)" if where(stem).parent == own_folder() else ""
        raise AutoscoutError(
            f"{where(stem)}: it lacks {listed(missing)}; add the missing entries, or set `like` to a similar "
            f"device{anew}",
            2,
        )
    try:
        found = msgspec.convert({k: v for k, v in content.items() if k not in (*SECTIONS, "serving")}, DeviceRecord)
    except msgspec.ValidationError as e:
        raise AutoscoutError(f"{where(stem)}: {e}", 2) from None
    for problem in _contradictions(found):
        raise AutoscoutError(f"{where(stem)}: {problem}", 2)
    return found


def _contradictions(one: DeviceRecord) -> Iterator[str]:
    figures = ("memory_gib", "memory_gb_s", "multiprocessors", "per_node", "storage_gb_s")
    for name, value in (*((n, getattr(one, n)) for n in figures), *one.peak_tflops.items()):
        if not value > 0:
            yield f"{name} = {value:g} must be more than 0"
    for narrow, wide in _WIDER.items():
        peaks = one.peak_tflops
        if narrow in peaks and wide not in peaks:
            yield f"peak_tflops has {narrow}, but not {wide}; add {wide}"
        elif narrow in peaks and peaks[narrow] < peaks[wide]:
            slower = f"{narrow} = {peaks[narrow]:g} is slower than {wide} = {peaks[wide]:g}"
            yield f"peak_tflops: {slower}; correct one of the two"
        if narrow in peaks and 0 < one.capability <= _NEWEST_WITHOUT[narrow]:
            yield (
                f"a device with capability = {one.capability:g} has no {narrow}, but peak_tflops gives "
                f"{narrow} = {peaks[narrow]:g}; correct one of the two"
            )
    if one.vendor and one.cores:
        yield f"vendor = '{one.vendor}' is for GPUs, but cores = {one.cores} is for CPUs; remove one of the two"
    if one.per_tray and one.per_node % one.per_tray:
        yield f"per_node = {one.per_node} is not a multiple of per_tray = {one.per_tray}; correct one of the two"
