"""Interprets a node's report (worker/node_health.py) on the clocks and links of its GPUs.

A GPU that is slowed by heat or its power supply counts as faulty, because its speed changes unpredictably. Power and
clock limits, and links that differ between hosts, may be intended, so they are only reported."""

import re
from collections import Counter
from typing import Any

from autoscout.running.conditions import SLOWED

# Limits below this share of the default power or clock are reported. Smaller differences may be rounding by the driver.
_LIMITED = 0.98
_CELL = re.compile(r"NV\d+|PIX|PXB|PHB|NODE|SYS")


def slowed(gpus: list[dict[str, Any]]) -> tuple[str, str] | None:
    """(a description of a GPU that its hardware currently slows, remedy); None if no GPU is slowed."""
    for gpu in gpus:
        reasons = str(gpu.get("throttled", "")).strip()
        if re.fullmatch(r"0x[0-9a-fA-F]+", reasons) and int(reasons, 16) & SLOWED:
            return (
                f"GPU {gpu['index']} is slowed by heat or its power supply",
                "check the GPU's cooling and power (`nvidia-smi -q -d PERFORMANCE`)",
            )
    return None


def limits(gpus: list[dict[str, Any]]) -> tuple[str, str] | None:
    """(power and clock limits below the GPUs' defaults, how to reset them); None if there are none."""
    watts = [g for g in gpus if _below(g.get("watts"), g.get("default_watts"))]
    clocks = [g for g in gpus if _below(g.get("application_mhz"), g.get("default_mhz"))]
    found, mend = [], []
    if watts:
        first = watts[0]
        found.append(f"{_names(watts)} limited to {first['watts']:.0f} of {first['default_watts']:.0f} W")
        mend.append(f"`nvidia-smi -pl {first['default_watts']:.0f}`")
    if clocks:
        first = clocks[0]
        found.append(f"{_names(clocks)} held at {first['application_mhz']:.0f} of {first['default_mhz']:.0f} MHz")
        mend.append("`nvidia-smi -rac`")
    return ("; ".join(found), f"run {' and '.join(mend)}, unless the limit is intended") if found else None


def joined(matrix: str) -> str:
    """The links between a node's GPUs in the output of `nvidia-smi topo -m`, such as "NV12 between all" or "NV4 × 2,
    SYS × 4"; "" for fewer than two GPUs."""
    rows = [line.split() for line in matrix.splitlines() if re.match(r"\s*GPU\d+\s", line)]
    rows = [row for row in rows if "X" in row]  # excludes the header
    pairs: Counter[str] = Counter()
    for i, row in enumerate(rows):
        pairs.update(cell for cell in row[2 + i : 1 + len(rows)] if _CELL.fullmatch(cell))
    if len(pairs) == 1:
        return f"{next(iter(pairs))} between all GPUs"
    return ", ".join(f"{kind} × {count}" for kind, count in sorted(pairs.items()))


def odd_ones(by_host: dict[str, str]) -> dict[str, str]:
    """Host → the usual links, for each host whose GPUs are linked differently from those of most hosts."""
    known = {host: links for host, links in by_host.items() if links}
    if len(known) < 2:
        return {}
    (usual, count), *others = Counter(known.values()).most_common()
    if others and others[0][1] == count:
        return {}
    return {host: usual for host, links in known.items() if links != usual}


def _below(now: float | None, default: float | None) -> bool:
    return now is not None and default is not None and now < _LIMITED * default


def _names(gpus: list[dict[str, Any]]) -> str:
    numbers = [str(gpu["index"]) for gpu in gpus]
    return f"GPU {numbers[0]} is" if len(numbers) == 1 else f"GPUs {', '.join(numbers)} are"
