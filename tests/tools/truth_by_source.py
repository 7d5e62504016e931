"""Prediction errors on every table, by source and device: with all stated columns, without columns on software, and
after three measured rows of a model without columns on software; also the calibration of out-of-memory probabilities.

    python -m tests.tools.truth_by_source ../shared/data/validation [TABLE…] [--words WORD…] [--things] --write now.json
    PYTHONPATH=OTHER_TREE python tests/tools/truth_by_source.py ../shared/data/validation --write before.json
    python -m tests.tools.truth_by_source --before before.json --now now.json [--least POINTS]
    python -m tests.tools.truth_by_source --now now.json --calibration docs/lab/calibration.svg

Each error is a mean over two halves of the rows, by model and device. Changes are developed on one half (a) and judged
on the other. `--words`: only tables whose path contains one of them. `--things`: adds the column whose removal
increases the error most. `--calibration`: draws how often intervals and chances hold, and prints which sources miss a
goal. Of tables with more than 2,000 rows, a sixteenth is sampled by hash."""

import argparse
import hashlib
import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from statistics import NormalDist
from typing import Any

import numpy as np

from autoscout.job.headers import ALIASES
from autoscout.simulate.encode import take
from autoscout.simulate.learned.weighing import SPAN
from autoscout.simulate.members import analytic
from autoscout.simulate.training.memory import Memory
from autoscout.simulate.validation.column_names import plain
from autoscout.simulate.validation.measured import MeasuredRows, MeasuredTable, read_rows
from kb.table_files import read_table

Array = np.ndarray
Row = dict[str, Any]
Half = dict[str, float]
Found = dict[str, dict[str, dict[str, Half]]]  # source and metric → known columns → half
# removed property → the columns that state it
THINGS = {
    "source": "source round submitter system suite group",
    "framework": "framework",
    "release": "version round",
    "cache": "kv_dtype",
    "kernels": "attention fused_norm fused_activation te graphs",
    "overlaps": "overlap_grad overlap_param overlap_p2p tp_comm_overlap",
    "notes": "other config_file source_file file blob commit",  # texts that may contain them
}
HOWS = ("said", "unsaid", "after three")
LEVELS = (50, 68, 80, 90, 95)  # percent of rows that an interval is meant to hold
CHANCES = ((0.0, 0.05), (0.05, 0.2), (0.2, 0.5), (0.5, 0.8), (0.8, 1.01))
_MANY, _EVERY = 2000, 16
_FEWEST, _KNOWN = 6, 3  # minimum of rows of a model on a device; number of measured ones


def main() -> None:
    parser = argparse.ArgumentParser(description="Errors, cover and chances by source: said, unsaid, after three rows.")
    parser.add_argument("tables", type=Path, nargs="*", help="files and folders")
    parser.add_argument("--words", nargs="*", default=[])
    parser.add_argument("--things", action="store_true")
    parser.add_argument("--write", type=Path)
    parser.add_argument("--before", type=Path)
    parser.add_argument("--now", type=Path)
    parser.add_argument("--calibration", type=Path, help="the picture to write")
    parser.add_argument("--least", type=float, default=0.0, help="points of error by which a line must differ")
    options = parser.parse_args()
    found = (
        json.loads(options.now.read_bytes())
        if options.now
        else of_tables(options.tables, options.words, options.things)
    )
    if options.write:
        options.write.write_text(json.dumps(found, indent=1) + "\n")
    if options.calibration:
        from tests.tools import reliability  # an older tree, whose predictions this file may judge, lacks it

        options.calibration.write_text(reliability.picture(found))
        print("\n".join(reliability.wrong(found)))
    elif options.before:
        print("\n".join(changes(json.loads(options.before.read_bytes()), found, options.least)))
    else:
        print("\n".join([*lines(found), "", *chances(found)]))


def lines(found: Found) -> Iterator[str]:
    """A Markdown table with a row per source and metric."""
    yield "| source | metric | rows | said | unsaid | after three rows | cover: said, unsaid, after | dearest |"
    yield "|---|---|---|---|---|---|---|---|"
    for key, of in sorted(found.items()):
        if "said" not in of:
            continue
        rows = sum(half["rows"] for half in of["said"].values())
        errors = " | ".join(_percent(mean(of.get(how, {}), "error")) for how in HOWS)
        cover = ", ".join(_percent(mean(of[how], "cover"), 0) for how in HOWS if how in of)
        yield f"| {key} | {rows:.0f} | {errors} | {cover} | {_dearest(of)} |"


def _dearest(of: dict[str, dict[str, Half]]) -> str:
    costs = {thing: mean(of[thing], "error") - mean(of["said"], "error") for thing in THINGS if thing in of}
    dearest = max(costs, key=lambda thing: costs[thing], default="")
    return f"its {dearest} +{100 * costs[dearest]:.0f}" if dearest and costs[dearest] >= 0.01 else ""


def changes(before: Found, now: Found, least: float) -> Iterator[str]:
    """A Markdown table with a row per source and metric whose error changed by `least` points: before → now, with the
    biases of both halves with all stated columns."""
    yield "| source | metric | rows | said | unsaid | after three rows | cover | halves of said |"
    yield "|---|---|---|---|---|---|---|---|"
    for key in sorted({*before, *now}):
        old, new = before.get(key, {}), now.get(key, {})
        both = [tuple(mean(of.get(how, {}), "error") for of in (old, new)) for how in HOWS]
        if "said" in new and any(not abs(b - a) * 100 < least for a, b in both if not np.isnan([a, b]).all()):
            rows = sum(half["rows"] for half in new["said"].values())
            errors = " | ".join(f"{_percent(a)} → {_percent(b)}" for a, b in both)
            cover = ", ".join(
                f"{_percent(mean(old.get(how, {}), 'cover'), 0)} → {_percent(mean(new.get(how, {}), 'cover'), 0)}"
                for how in HOWS
            )
            halves = "; ".join(
                f"{_percent(old.get('said', {}).get(half, {}).get('error', np.nan))} → {_percent(one['error'])},"
                f" {one['bias']:+.0%}"
                for half, one in sorted(new["said"].items())
            )
            yield f"| {key} | {rows:.0f} | {errors} | {cover} | {halves} |"


def chances(found: Found) -> Iterator[str]:
    """A Markdown table with a row per source: number of runs by predicted out-of-memory probability, and how many ran
    out of memory."""
    named = " | ".join(f"{low:.0%} to {min(high, 1):.0%}" for low, high in CHANCES)
    yield f"| chance to run out of memory: runs, died | {named} |"
    yield "|---|" + "---|" * len(CHANCES)
    for key, of in sorted(found.items()):
        for how, halves in of.items():
            if how.startswith("died"):
                cells = (
                    tuple(sum(half[f"{name} {i}"] for half in halves.values()) for name in ("runs", "died"))
                    for i in range(len(CHANCES))
                )
                yield f"| {key}{how[4:]} | " + " | ".join(f"{n:.0f}, {d / n:.0%}" if n else "" for n, d in cells) + " |"


def _percent(value: float, digits: int = 1) -> str:
    return "" if np.isnan(value) else f"{100 * value:.{digits}f} %"


def mean(halves: dict[str, Half], name: str) -> float:
    rows = sum(one["rows"] for one in halves.values())
    return sum(one["rows"] * one[name] for one in halves.values()) / rows if rows else float("nan")


def of_tables(paths: Sequence[Path], words: Sequence[str] = (), things: bool = False) -> Found:
    found: Found = {}
    for path in (file for some in paths for file in (sorted(some.glob("**/*.csv*")) if some.is_dir() else [some])):
        if words and not any(word in str(path) for word in words):
            continue
        for (source, half), rows in _parts(path).items():
            without = {how: [_without(row, *removed) for row in rows] for how, removed in _removed(things)}
            read = {how: read_rows(some) for how, some in without.items()}
            scored = [(how, one) for how, table in read.items() for one in _scores(table)]
            for how, (metric, one) in [*scored, *(("after three", one) for one in _after_three(read["unsaid"]))]:
                found.setdefault(f"{source} | {metric}", {}).setdefault(how, {})[half] = one
            for how in HOWS[:2]:
                if (runs := read[how].runs) is not None:
                    found.setdefault(source, {}).setdefault(f"died, {how}", {})[half] = _died(runs)
    return found


def _removed(alone: bool) -> list[tuple[str, tuple[str, ...]]]:
    each = [(thing, (thing,)) for thing in THINGS] if alone else []
    return [("said", ()), ("unsaid", tuple(THINGS)), *each]


def _parts(path: Path) -> dict[tuple[str, str], list[Row]]:
    """The rows of a table by (source and device, half)."""
    table = read_table(path)
    names = [plain(name) for name in table.columns]
    found: dict[tuple[str, str], list[Row]] = {}
    for values in table.rows:
        row = dict(zip(names, values, strict=True))
        if len(table.rows) > _MANY and _hash(*map(str, values)) % _EVERY:
            continue
        gpu = str(row.get("gpu") or row.get("accelerator") or "")
        if (one := read_rows([row])).skipped and not one.sets and one.runs is None:
            continue  # without its engine's name, it would look like another engine's
        source = row.get("benchmark") or row.get("source") or row.get("framework") or ""
        kind = gpu.replace("NVIDIA", "").strip().partition(" ")[0].partition("-")[0]
        half = "ab"[_hash(f"{row.get('model') or ''}{gpu}{row.get('layers')}") % 2]
        found.setdefault((f"{path.name.partition('.')[0]}: {source} {kind}".strip(), half), []).append(row)
    return found


def _hash(*words: str) -> int:
    return int(hashlib.md5(" ".join(words).encode(), usedforsecurity=False).hexdigest(), 16)


def _without(row: Row, *things: str) -> Row:
    names = {name for thing in things for name in THINGS[thing].split()}
    return {name: value for name, value in row.items() if ALIASES.get(name, name) not in names}


def _scores(table: MeasuredTable) -> Iterator[tuple[str, Half]]:
    for some in table.sets:
        if (one := _scored(some, np.zeros(0, dtype=int), np.arange(len(some.values)))) is not None:
            yield some.metric, one


def _after_three(table: MeasuredTable) -> Iterator[tuple[str, Half]]:
    """Scores the other rows of a model on a device, given the first, the middle and the last one."""
    for some in table.sets:
        names = np.array([" on ".join(pair) for pair in zip(some.groups["model"], some.groups["gpu"], strict=True)])
        each: list[Half] = []
        for name in np.unique(names):
            here = np.flatnonzero(names == name)
            known = here[np.linspace(0, len(here) - 1, _KNOWN).astype(int)]
            if len(here) >= _FEWEST and (one := _scored(some, known, np.setdiff1d(here, known))) is not None:
                each.append(one)
        if each:
            halves = {str(i): one for i, one in enumerate(each)}
            figures = {name: mean(halves, name) for name in each[0]}
            yield some.metric, figures | {"rows": sum(one["rows"] for one in each)}


def _scored(some: MeasuredRows, known: Array, asked: Array) -> Half | None:
    """Number of the rows `asked`, and as fractions their error, median bias, coverage, and coverage of the interval of
    each level; None if none is predicted."""
    member = next((m for m in analytic(some.metric, some.task) if not m.applies(some.columns)), None)
    if member is None:
        return None
    if len(known):
        member.fit(take(some.columns, known), some.values[known])
    said = member.predict(take(some.columns, asked))
    with np.errstate(divide="ignore", invalid="ignore"):
        off = np.log(said.value / some.values[asked])
    seen = np.isfinite(off)
    if not seen.any():
        return None
    spans = {"cover": SPAN} | {f"inside {level}": NormalDist().inv_cdf(0.5 + level / 200) for level in LEVELS}
    inside = {name: float((np.abs(off[seen]) <= span * said.error[seen]).mean()) for name, span in spans.items()}
    error, bias = float(np.abs(np.expm1(off[seen])).mean()), float(np.expm1(np.median(off[seen])))
    return {"rows": float(seen.sum()), "error": error, "bias": bias, **inside}


def _died(runs: MeasuredRows) -> Half:
    chance, died = Memory().oom_probability(runs.columns), np.isposinf(runs.values)
    found: Half = {}
    for i, (low, high) in enumerate(CHANCES):
        here = (chance >= low) & (chance < high)
        found |= {f"runs {i}": float(here.sum()), f"died {i}": float(died[here].sum())}
        found[f"chance {i}"] = float(chance[here].sum())
    return found


if __name__ == "__main__":
    main()
