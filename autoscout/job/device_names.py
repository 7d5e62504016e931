"""Looks up device records by the names in job files, drivers, schedulers and tables."""

import math
import re
from collections.abc import Callable, Iterable
from functools import cache
from typing import Any

from autoscout.job.device_records import DeviceRecord, by_name, contents, plain, records
from autoscout.job.words import nearest_name

# Least share of the nominal memory that a driver reports for a device (error correction reserves some).
KEPT = 0.88
UNKNOWN_CAPABILITY = 0.0  # value for devices without a record
_VARIANT_HAS = 1.1  # a name with more than this multiple of the record's memory denotes a different variant
_ROUNDED = 0.98  # so does a name with less than this multiple of the record's memory
# Words in a name that mean different clocks, different links or only a part of a device. Such variants have no record.
_VARIANT = re.compile(r"\b\d+ ?w\b|\bnvl\b|\bmig\b|\b\dg\.\d+gb\b|\bmax q\b|\blaptop\b")
_FORMS = re.compile(r"\b(pcie|sxm|oam)\d?\b")
_GIB = re.compile(r"\b(\d{1,3}) ?g(?:i?b)?\b")


def record_of(name: str) -> DeviceRecord | None:
    """Returns the record of the device with this name; None if there is none."""
    stem = stem_of(name)
    return records()[stem] if stem else None


def stem_of(name: str) -> str:
    """Returns the stem of the record's file name, which is its key in `records`; "" if there is none."""
    known = by_name()
    return known.get(plain(name)) or _described(name)


def kinds() -> list[str]:
    """Returns the keys of all records. Job files may use them as names of devices."""
    return list(records())


def an_example() -> str:
    """Returns the name of a GPU for examples in messages."""
    return next(stem for stem, record in records().items() if record.calibrated and not record.cores)


def the_largest() -> str:
    """Returns the name of the GPU with the most memory."""
    return max((record.memory_gib, stem) for stem, record in records().items() if not record.cores)[1]


def memory_gib_of(name: str) -> float | None:
    known = record_of(name)
    return known.memory_gib if known else None


def capability_of(name: str) -> float:
    """Returns the CUDA compute capability: UNKNOWN_CAPABILITY without a record, 0 for devices without CUDA."""
    known = record_of(name)
    return known.capability if known else UNKNOWN_CAPABILITY


def per_tray_of(name: str) -> float:
    """Returns the number of devices per host, if an island spans the hosts of a rack; 0 otherwise."""
    known = record_of(name)
    return float(known.per_tray) if known else 0.0


# Figures of devices that conditions in the records of engines may name.
DEVICE_FIGURES = {"capability": capability_of, "per_tray": per_tray_of}


def small_steps(name: str) -> bool:
    """Whether vLLM uses its smaller default batch sizes on the device, according to [serving.kernels] of the record."""
    known = contents().get(stem_of(name), {})
    return bool(known.get("serving", {}).get("kernels", {}).get("small_steps", False))


def formats_of(name: str) -> list[str]:
    """Returns the number formats for which the device's peak rate of matrix products is known."""
    known = record_of(name)
    return list(known.peak_tflops) if known else []


def is_cpu(name: str) -> bool:
    """Whether a device name, or a value of the knob for the kind of device, denotes a CPU."""
    known = record_of(name)
    return known.cores > 0 if known else bool(_alike(name, lambda record: record.cores > 0))


def vendor_of(name: str) -> str:
    """Returns the vendor of a device. Without a record, returns the common vendor of all records with the same first
    letters, "" if their vendors differ."""
    known = record_of(name)
    return known.vendor if known else _alike(name, lambda record: record.vendor) or ""


def is_called(kind: str, driver_says: str) -> bool:
    """Whether a driver's name may mean this kind of device, regardless of memory size. If the record's form factor
    (such as PCIe) is not the default one of its series, it must be part of the driver's name."""
    known = record_of(kind)
    if known is None:
        return False
    if plain(driver_says) in map(plain, (known.name, *known.names)):
        return True
    text = _words(driver_says)
    usual = [record_of(series) or known for series in known.series]
    of_this_form = known.form in (*(record.form for record in usual), *_FORMS.findall(text))
    return of_this_form and any(re.search(rf"\b{_spelled(series)}(?!\d| d\b)", text) for series in known.series)


def device_meant(says: str, gib: float | None = None) -> str:
    """Returns the key of the record that matches a driver's or a table's name and the memory size in GiB; "" if there
    is none. Without an exact match, returns the matching record with the most memory that is not above this size."""
    named = re.search(r"(\d+) ?GB\b", says)
    gib = gib or (float(named[1]) if named else math.inf)

    def fitting(alike: Iterable[str]) -> str:
        fits = [kind for kind in alike if kind and gib >= KEPT * (memory_gib_of(kind) or 0.0)]
        return max(fits, key=lambda kind: memory_gib_of(kind) or 0.0, default="")

    return fitting([stem_of(says)]) or fitting(kind for kind in kinds() if is_called(kind, says))


def device_within(name: str) -> str:
    """Returns the longest device name whose words all occur in this text, such as "a100-pcie" for "A100-80GB-PCIe"; ""
    if there is none."""
    text = plain(name)
    return max((known for known in kinds() if all(part in text for part in known.split("-"))), key=len, default="")


def sold_by(stated: Any, reported: Any) -> Any:
    """Whether `stated` is the nominal memory size (GiB), which is slightly larger than the size that the driver
    reports. Elementwise for arrays."""
    return (reported < stated) & (stated < _VARIANT_HAS * reported)


def unknown(name: str) -> str:
    """Returns the end of a message about a device name without a record. It suggests a similar name, except for a MIG
    slice or a variant with different clocks, even if the name contains the name of a known device."""
    meant = device_within(name)
    if meant and _VARIANT.search(_words(name)):
        return f" is unknown: it is a variant of '{meant}', but AutoScout has no record of this variant"
    digits = re.findall(r"\d+", name)
    alike = [kind for kind in kinds() if re.findall(r"\d+", kind) == digits]
    return f" is unknown; did you mean '{meant}'?" if meant else nearest_name(name, alike, kinds())


@cache
def _described(name: str) -> str:
    """Returns the key of the record for a description such as "NVIDIA A100-SXM4-80GB"; "" for an unknown name, a
    variant without a record, or a text that names two devices."""
    text = _words(name)
    of_series = {
        series: [stem for stem, record in records().items() if series in record.series]
        for series in {series for record in records().values() for series in record.series}
        if re.search(rf"\b{_spelled(series)}\b(?! d\b)", text)
    }
    if len(of_series) != 1 or _VARIANT.search(text):
        return ""
    ((series, stems),) = of_series.items()
    forms, sizes = set(_FORMS.findall(text)), [float(gib) for gib in _GIB.findall(text)]
    fitting = [stem for stem in stems if _fits(records()[stem], forms, sizes)]
    usual = [stem for stem in fitting if by_name().get(plain(series)) == stem]
    return fitting[0] if len(fitting) == 1 else usual[0] if usual else ""


def _fits(record: DeviceRecord, forms: set[str], sizes: list[float]) -> bool:
    has = record.memory_gib
    sized = all(_ROUNDED * has <= gib < _VARIANT_HAS * has for gib in sizes)
    return sized and (not forms or not record.form or record.form in forms)


def _words(name: str) -> str:
    """Normalizes a name: lower case, spaces as separators, without a leading number of devices ("8xH100")."""
    return re.sub(r"[_\-/(),]+|^\d+ ?x ?", " ", name.lower())


def _spelled(series: str) -> str:
    return re.escape(series).replace(r"\ ", " ?")


def _alike(name: str, figure: Callable[[DeviceRecord], Any]) -> Any:
    """Returns the value that all records with the same first letters share (such as "cpu-old" and "cpu"); None if the
    values differ."""
    begins = re.match(r"[a-z]+", name.lower())
    alike = begins and re.compile(rf"{begins[0]}(?![a-z])")
    values = {figure(record) for stem, record in records().items() if alike and alike.match(stem)}
    return values.pop() if len(values) == 1 else None
