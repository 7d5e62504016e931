"""Which device a job file, a driver, a scheduler or a table means by a name, and what that says of it."""

import math
import re
from collections.abc import Callable, Iterable
from functools import cache
from typing import Any

from autoscout.job.device_records import DeviceRecord, by_name, contents, plain, records
from autoscout.job.words import nearest_name

KEPT = 0.88  # of what a kind has, at least, a driver reports: some of it is kept for error correction and itself
UNKNOWN_CAPABILITY = 0.0  # of a device that no record has: nothing is assumed of it
_VARIANT_HAS = 1.1  # times what a driver reports: who says more than that means another variant of the device
_ROUNDED = 0.98  # and who says less
# What a name says of other clocks, links or parts of a device, which no record is of.
_VARIANT = re.compile(r"\b\d+ ?w\b|\bnvl\b|\bmig\b|\b\dg\.\d+gb\b|\bmax q\b|\blaptop\b")
_FORMS = re.compile(r"\b(pcie|sxm|oam)\d?\b")
_GIB = re.compile(r"\b(\d{1,3}) ?g(?:i?b)?\b")


def record_of(name: str) -> DeviceRecord | None:
    """The device that a job file, a table or a driver calls by this name; None if no record is of it."""
    stem = stem_of(name)
    return records()[stem] if stem else None


def stem_of(name: str) -> str:
    """The record's name; "" if there is none."""
    known = by_name()
    return known.get(plain(name)) or _described(name)


def kinds() -> list[str]:
    """The names of all records: what job files may call devices."""
    return list(records())


def an_example() -> str:
    """A GPU for sentences that show how to write one."""
    return next(stem for stem, record in records().items() if record.calibrated and not record.cores)


def memory_gib_of(name: str) -> float | None:
    known = record_of(name)
    return known.memory_gib if known else None


def capability_of(name: str) -> float:
    """CUDA's compute capability; `UNKNOWN_CAPABILITY` for what no record is of, and for what has none."""
    known = record_of(name)
    return known.capability if known else UNKNOWN_CAPABILITY


def small_steps(name: str) -> bool:
    """Whether vLLM's defaults for it are those of devices with less memory, by `[serving.kernels]` of its record."""
    known = contents().get(stem_of(name), {})
    return bool(known.get("serving", {}).get("kernels", {}).get("small_steps", False))


def formats_of(name: str) -> list[str]:
    """What the device multiplies: the formats with a peak."""
    known = record_of(name)
    return list(known.peak_tflops) if known else []


def is_cpu(name: str) -> bool:
    """Whether a job's node, or the knob of a kind of device, is a CPU."""
    known = record_of(name)
    return known.cores > 0 if known else bool(_alike(name, lambda record: record.cores > 0))


def vendor_of(name: str) -> str:
    """Of what no record is of, that of all records whose names begin with the same letters."""
    known = record_of(name)
    return known.vendor if known else _alike(name, lambda record: record.vendor) or ""


def is_called(kind: str, driver_says: str) -> bool:
    """Whether a driver's name may be that of a kind of device, whatever its memory. A form that is not the usual one of
    its series has to be said."""
    known = record_of(kind)
    if known is None:
        return False
    if plain(driver_says) in map(plain, (known.name, *known.names)):
        return True
    text = _words(driver_says)
    usual = [record_of(series) or known for series in known.series]
    said = known.form in (*(record.form for record in usual), *_FORMS.findall(text))
    return said and any(re.search(rf"\b{_spelled(series)}(?!\d| d\b)", text) for series in known.series)


def device_meant(says: str, gib: float | None = None) -> str:
    """The record that is meant by what a driver or a table says, and by the memory that there is; where none is of just
    that, of those that may be called so the largest that has no more memory; "" if there is none."""
    named = re.search(r"(\d+) ?GB\b", says)
    gib = gib or (float(named[1]) if named else math.inf)

    def fitting(alike: Iterable[str]) -> str:
        fits = [kind for kind in alike if kind and gib >= KEPT * (memory_gib_of(kind) or 0.0)]
        return max(fits, key=lambda kind: memory_gib_of(kind) or 0.0, default="")

    return fitting([stem_of(says)]) or fitting(kind for kind in kinds() if is_called(kind, says))


def device_within(name: str) -> str:
    """The known device all of whose words are in a name for it: "A100-80GB-PCIe" → "a100-pcie"; "" if none is."""
    text = plain(name)
    return max((known for known in kinds() if all(part in text for part in known.split("-"))), key=len, default="")


def sold_by(stated: Any, reported: Any) -> Any:
    """Whether a job states the GiB that a device is sold by, of which its driver reports a little less; of arrays, of
    each."""
    return (reported < stated) & (stated < _VARIANT_HAS * reported)


def unknown(name: str) -> str:
    """The end of a sentence on a name that no record has. A part of a device or a form with other clocks is none of
    the records whose words are in its name, and another series is none that is spelled nearly so."""
    meant = device_within(name)
    if meant and _VARIANT.search(_words(name)):
        return f", which is unknown: a variant of '{meant}' that no record is of"
    digits = re.findall(r"\d+", name)
    alike = [kind for kind in kinds() if re.findall(r"\d+", kind) == digits]
    return f", which is unknown; did you mean '{meant}'?" if meant else nearest_name(name, alike, kinds())


@cache
def _described(name: str) -> str:
    """ "NVIDIA A100-SXM4-80GB" → the record; "" for none, for another variant of it, and for two devices at once."""
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
    return re.sub(r"[_\-/(),]+", " ", name.lower())


def _spelled(series: str) -> str:
    return re.escape(series).replace(r"\ ", " ?")


def _alike(name: str, figure: Callable[[DeviceRecord], Any]) -> Any:
    """What all records say whose names begin with the same letters ("cpu-old" with "cpu"); None if they differ."""
    begins = re.match(r"[a-z]+", name.lower())
    alike = begins and re.compile(rf"{begins[0]}(?![a-z])")
    said = {figure(record) for stem, record in records().items() if alike and alike.match(stem)}
    return said.pop() if len(said) == 1 else None
