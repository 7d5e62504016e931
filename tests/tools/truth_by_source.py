"""How right predictions are on every table of a folder, by source and device, with all that rows say and with nothing
of their software: the error and the share inside the 90 % interval, of each half of the rows. A change is judged on
both halves, of which one was kept from sight while it was made; a row's half follows from its model and device.

    python -m tests.tools.truth_by_source ../shared/data [WORD…] --write now.json
    PYTHONPATH=OTHER_TREE python tests/tools/truth_by_source.py ../shared/data --write before.json
    python -m tests.tools.truth_by_source ../shared/data --before before.json --now now.json [--least POINTS]

WORD: only tables whose path has one of them. With PYTHONPATH it runs the simulators of an older tree, so it asks for no
more than these had. Of tables of more than 2,000 rows every sixteenth is taken, by its hash.
"""

import argparse
import csv
import hashlib
import json
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from autoscout.simulate.learned.weighing import SPAN
from autoscout.simulate.members import analytic
from autoscout.simulate.validation.column_names import ALIASES, plain
from autoscout.simulate.validation.measured import read
from kb.records import AutoscoutError
from kb.table_files import read_table

Row = dict[str, Any]
Half = dict[str, float]
_SAY = (
    "source source_ref round submitter system suite group framework version kv_dtype attention fused_norm"
    " fused_activation te graphs overlap_grad overlap_param overlap_p2p tp_comm_overlap other config_file source_file"
    " file blob commit"
)
OF_SOFTWARE = frozenset(_SAY.split())  # columns that say what ran
_MANY, _EVERY = 2000, 16


def main() -> None:
    parser = argparse.ArgumentParser(description="Errors and cover by source, said and unsaid, in two halves.")
    parser.add_argument("data", type=Path)
    parser.add_argument("words", nargs="*")
    parser.add_argument("--write", type=Path)
    parser.add_argument("--before", type=Path)
    parser.add_argument("--now", type=Path)
    parser.add_argument("--least", type=float, default=0.0, help="points of error by which a line must differ")
    options = parser.parse_args()
    found = json.loads(options.now.read_bytes()) if options.now else of_folder(options.data, options.words)
    if options.write:
        options.write.write_text(json.dumps(found, indent=1) + "\n")
    before = json.loads(options.before.read_bytes()) if options.before else {}
    print("| source | metric | rows | before | now | cover: before, now | halves: before → now, bias |")
    print("|---|---|---|---|---|---|---|")
    for key in sorted({*found, *before}):
        old, new = before.get(key, {}), found.get(key, {})
        if not before or abs(_mean(new, "error") - _mean(old, "error")) >= options.least:
            print(_line(key, old, new))


def _line(key: str, old: dict[str, Half], new: dict[str, Half]) -> str:
    each = "; ".join(
        f"{_percent(old.get(half, {}).get('error', np.nan))} → {_percent(one['error'])}, {one['bias']:+.0%}"
        for half, one in sorted(new.items())
    )
    errors = " | ".join(_percent(_mean(one, "error")) for one in (old, new))
    cover = ", ".join(f"{_mean(one, 'cover'):.0%}" for one in (old, new) if one)
    return f"| {key} | {sum(one['rows'] for one in new.values()):.0f} | {errors} | {cover} | {each} |"


def _percent(value: float) -> str:
    return "" if np.isnan(value) else f"{value:.1%}"


def _mean(halves: dict[str, Half], name: str) -> float:
    rows = sum(one["rows"] for one in halves.values())
    return sum(one["rows"] * one[name] for one in halves.values()) / rows if rows else float("nan")


def of_folder(folder: Path, words: list[str]) -> dict[str, dict[str, Half]]:
    """ "source | metric, said or unsaid" → half → rows, error, bias (a median) and cover, as fractions."""
    found: dict[str, dict[str, Half]] = {}
    for path in sorted(folder.glob("**/*.csv*")):
        if words and not any(word in str(path) for word in words):
            continue
        for (source, half), rows in _parts(path).items():
            for how, some in (("said", rows), ("unsaid", [_without(row) for row in rows])):
                for metric, one in _scores(some):
                    found.setdefault(f"{source} | {metric}, {how}", {})[half] = one
    return found


def _parts(path: Path) -> dict[tuple[str, str], list[Row]]:
    """By source with device, and half."""
    table = read_table(path)
    names = [plain(name) for name in table.columns]
    found: dict[tuple[str, str], list[Row]] = {}
    for values in table.rows:
        row = dict(zip(names, values, strict=True))
        if len(table.rows) > _MANY and _hash(*map(str, values)) % _EVERY:
            continue
        gpu = str(row.get("gpu") or row.get("accelerator") or "")
        source = row.get("benchmark") or row.get("source") or row.get("framework") or ""
        kind = gpu.replace("NVIDIA", "").strip().partition(" ")[0].partition("-")[0]
        half = "ab"[_hash(f"{row.get('model') or ''}{gpu}{row.get('layers')}") % 2]
        found.setdefault((f"{path.name.partition('.')[0]}: {source} {kind}".strip(), half), []).append(row)
    return found


def _hash(*words: str) -> int:
    return int(hashlib.md5(" ".join(words).encode(), usedforsecurity=False).hexdigest(), 16)


def _without(row: Row) -> Row:
    return {name: value for name, value in row.items() if ALIASES.get(name, name) not in OF_SOFTWARE}


def _scores(rows: list[Row]) -> Iterator[tuple[str, Half]]:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "rows.csv"
        with path.open("w", newline="") as file:
            writer = csv.DictWriter(file, list(rows[0]))
            writer.writeheader()
            writer.writerows(rows)
        try:
            sets = read(path).sets
        except AutoscoutError:  # none of them can be predicted
            return
    for some in sets:
        member = next((m for m in analytic(some.metric, some.task) if not m.applies(some.columns)), None)
        if member is None:
            continue
        said = member.predict(some.columns)
        with np.errstate(divide="ignore", invalid="ignore"):
            off = np.log(said.value / some.values)
        known = np.isfinite(off)
        if known.any():
            inside = np.abs(off[known]) <= SPAN * said.error[known]
            error = float(np.abs(np.expm1(off[known])).mean())
            bias, cover = float(np.expm1(np.median(off[known]))), float(inside.mean())
            yield some.metric, {"rows": float(known.sum()), "error": error, "bias": bias, "cover": cover}


if __name__ == "__main__":
    main()
