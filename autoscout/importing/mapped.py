"""Reads other tools' result files as rows. This code is independent of the tools: each tool has a TOML file
(tool_file.py) that maps paths in its result files to columns."""

import json
import math
import re
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

import numpy as np

from autoscout.importing import paths
from autoscout.importing.decoding import Documents, Tree, documents, text_beside
from autoscout.importing.tool_file import ToolFile
from autoscout.job.units import factor, unit_of
from autoscout.targets.found import Row
from kb import sources
from kb.records import AutoscoutError

_OUT_OF_MEMORY = re.compile(r"out of memory|OutOfMemory|std::bad_alloc|oom-kill", re.IGNORECASE)
_SCALE = {"s": 1.0, "ms": 1e-3, "us": 1e-6, "ns": 1e-9}
Keys = dict[str, set[str]]
BROKEN = (ValueError, TypeError, LookupError, AttributeError, ArithmeticError, RecursionError, UnicodeError)


def recognized(path: Path, tools: tuple[ToolFile, ...], keys: Keys) -> tuple[ToolFile, Tree | None] | None:
    """Returns (the first tool whose file-name patterns and required keys match, the file's tree or None if it was not
    parsed completely); None if no tool matches. `keys`: the result of `keys_by_kind`."""
    first: dict[str, tuple[Tree | None, bool]] = {}  # by kind of file, so that each kind is parsed only once
    for tool in (tool for tool in tools if any(fnmatch(path.name, name) for name in tool.file.names)):
        kind, patterns = tool.file.kind, tool.file.patterns
        if kind not in first or patterns:
            first[kind] = _first(path, kind, keys[kind], patterns=patterns)
        tree, whole = first[kind]
        if tree is None and tool.file.repair:
            tree = _first(path, kind, keys[kind], tool.file.repair)[0]
        if tree is None:
            continue
        companions = _beside(path, tool)
        if all(paths.at({**tree, **companions}, need) is not None for need in tool.file.needs):
            return tool, tree if whole else None
    return None


def _first(
    path: Path, kind: str, wanted: set[str], repair: str = "", patterns: Mapping[str, str] | None = None
) -> tuple[Tree | None, bool]:
    """Returns (a file's first tree, whether this is the whole file)."""
    try:
        if kind == "sqlite":
            return dict.fromkeys(sources.sqlite_tables(path), True), False
        found = documents(path, kind, "", repair, wanted, patterns)
        _, tree, problem = next(found, ("", {}, "is empty"))
        return (None, False) if problem else (tree, kind == "json" and next(found, None) is None)
    except (AutoscoutError, OSError, *BROKEN):
        return None, False


def torn(path: Path) -> str:
    """Returns why a file with the suffix of JSON is not valid JSON; "" if it is."""
    try:
        if path.suffix in (".json", ".jsonl"):
            next(documents(path, "json", wanted=set()), None)
    except BROKEN as error:
        return f"the file is not JSON, or is truncated ({' '.join(str(error).split())[:100]})"
    except OSError:
        pass
    return ""


def _beside(path: Path, tool: ToolFile) -> Tree:
    return {key: text_beside(path.parent / name) for key, name in tool.file.beside.items()}


def rows(path: Path, tool: ToolFile, where: str, whole: Tree | None = None) -> Iterator[Row]:
    """Yields the rows of a file. `whole`: the file's tree, if already parsed. An unreadable file gives one row with the
    reason."""
    try:
        companions = _beside(path, tool)
        found: Documents = iter([("", whole or {}, "")])
        if whole is None:
            found = documents(
                path, tool.file.kind, tool.file.query, tool.file.repair, _wanted(tool), tool.file.patterns
            )
        for at, tree, problem in found:
            place = ", ".join(part for part in (where, at) if part)
            top = {**tree, **companions}
            problem = problem or next(
                (why for at, why in tool.file.refused.items() if paths.at(top, at) is not None), ""
            )
            if problem:
                yield Row(place, {}, problem)
                continue
            for key, each in _rows_of(top, tool.file.rows):
                yield _row(f"{place} {key}".strip(), each, top, tool)
    except AutoscoutError as error:
        yield Row(where, {}, str(error))
    except (OSError, *BROKEN) as error:
        reason = " ".join(str(error).split())[:200]
        yield Row(where, {}, f"the file is not a complete result of {tool.tool} ({reason})")


def keys_by_kind(tools: tuple[ToolFile, ...]) -> Keys:
    """Returns kind of file → keys that at least one tool reads. (Lists at other keys need not be parsed.)"""
    found: Keys = {}
    for tool in tools:
        found.setdefault(tool.file.kind, set()).update(_wanted(tool))
    return found


def _wanted(tool: ToolFile) -> set[str]:
    texts = [*tool.derived.values(), *tool.says.values(), tool.status.of, tool.status.failed, tool.status.finished]
    texts += [tool.file.rows, tool.file.steps, *tool.file.settings, *tool.file.needs, tool.file.part]
    texts += [tool.times.began, tool.times.ended, tool.engine, tool.engine_version, *tool.columns]
    return {key for text in texts if text for key in paths.first_keys(text)}


def _rows_of(top: Tree, path: str) -> Iterator[tuple[str, Tree]]:
    if not path:
        yield "", top
        return
    found = paths.at(top, path)
    if isinstance(found, Mapping):
        yield from ((str(key), each) for key, each in found.items() if isinstance(each, dict))
    elif isinstance(found, list):
        yield from ((f"{path}[{i}]", each) for i, each in enumerate(found) if isinstance(each, dict))
    else:
        raise ValueError(f"{path} is missing")


def _row(where: str, row: Tree, top: Tree, tool: ToolFile) -> Row:
    row = {**row, **{key: json.loads(row[key] or "{}") for key in tool.file.json}} if tool.file.json else row
    cells: dict[str, Any] = {k: v for k, v in row.items() if not isinstance(v, dict | list) and _kept(k, tool)}
    for path in tool.file.settings:
        found = _looked_up(path, row, top)
        if isinstance(found, Mapping):
            cells |= paths.flat(found)
    if tool.file.steps:
        cells |= _usual(paths.at(row, tool.file.steps), tool.file.warmup, tool.file.usual)
    for theirs in tool.columns:
        if theirs not in cells and (found := _looked_up(theirs, row, top)) is not None:
            cells[theirs] = found
    for ours, text in tool.derived.items():
        name, _, unit = ours.partition("@")
        number = paths.value(text, {**row, **cells}, top)
        if number is not None:
            cells[name] = float(number) * factor(text, unit, unit_of(name)) if unit else number
    stated = {name: paths.value(text, row, top) for name, text in tool.says.items() if _there(text, row, top)}
    if "arrivals" in stated:
        stated["arrivals"] = tool.arrivals.get(str(stated["arrivals"]), stated["arrivals"])
    for name, text in (("engine", tool.engine), ("engine_version", tool.engine_version)):
        if text and (found := paths.value(text, row, top)):
            cells[name] = str(found)
    began, ended = (_moment(_looked_up(p, row, top), tool.times.form) for p in (tool.times.began, tool.times.ended))
    if not math.isnan(ended):
        cells["at"] = ended
        if not math.isnan(began) and "cost_s" not in cells:
            cells["cost_s"] = max(ended - began, 0.0)
    part = str(_looked_up(tool.file.part, row, top) or "") if tool.file.part else ""
    status, problem = _status(row, top, tool)
    return Row(where, {**cells, **status}, problem or _other_unit(row, top, tool), stated, part)


def _other_unit(row: Tree, top: Tree, tool: ToolFile) -> str:
    """Returns a sentence if a unit stated in the file differs from the unit that the tool's mapping expects; else
    ""."""
    for path, unit in tool.units.items():
        found = _looked_up(path, row, top)
        if found not in (None, unit):
            return f"the file states {path} = {found}, but its values are read as {unit}"
    return ""


def _kept(key: str, tool: ToolFile) -> bool:
    return tool.file.only is None or any(fnmatch(key, pattern) for pattern in tool.file.only)


def _there(text: str, row: Tree, top: Tree) -> bool:
    """Whether the path exists. A null value counts, since it means "no limit"."""
    if " " in text or text[0] == "'":
        return paths.value(text, row, top) is not None
    *above, last = text.rpartition(".")
    table = _looked_up(above[0], row, top) if above[0] else row
    return paths.value(text, row, top) is not None or (isinstance(table, Mapping) and last in table)


def _looked_up(path: str, row: Tree, top: Tree) -> Any:
    if not path:
        return None
    return paths.at(top, path[1:]) if path[0] == "/" else paths.at(row, path)


def _usual(found: Any, warmup: int, which: str) -> dict[str, float]:
    """Returns the median or mean of each column, given a list of rows or a table of lists, without the warm-up rows."""
    if isinstance(found, list):
        steps = [step for step in found if isinstance(step, Mapping)]
        keys = dict.fromkeys(key for step in steps for key in step)
        found = {key: [step[key] for step in steps if isinstance(step.get(key), int | float)] for key in keys}
    if not isinstance(found, Mapping):
        return {}
    counted = {key: np.asarray(values, float) for key, values in found.items() if len(values)}
    counted = {key: values[warmup:] if len(values) > warmup else values for key, values in counted.items()}
    return {key: float(np.median(v) if which == "median" else np.mean(v)) for key, v in counted.items()}


def _status(row: Tree, top: Tree, tool: ToolFile) -> tuple[dict[str, str], str]:
    """Returns (cells with a run's status, reason to skip the row or "")."""
    how = tool.status
    failed = _looked_up(how.failed, row, top)
    if failed:
        lines = [line.strip() for line in str(failed).splitlines() if line.strip()]
        evidence = lines[-1][:300] if lines else "the run failed"
        return {"status": "oom" if _OUT_OF_MEMORY.search(str(failed)) else "error", "evidence": evidence}, ""
    word = _looked_up(how.of, row, top)
    if word is not None and str(word) in how.left_out:
        return {}, how.left_out[str(word)]
    if how.finished and _looked_up(how.finished, row, top) in (None, False, ""):
        return {}, "the run has not ended"
    ours = how.words.get(str(word), "" if word is None else how.words.get("*", ""))
    if not how.of or (isinstance(word, float) and not ours):  # the value is a number rather than a status word
        return {}, ""
    if not ours:
        return (
            {},
            f"the run's status '{word}' is unknown"
            if word is not None
            else "the file does not state how the run ended",
        )
    return {"status": ours} | ({} if ours == "ok" else {"evidence": f"{tool.tool} reports {word}"}), ""


def _moment(found: Any, form: str) -> float:
    """Converts a time to unix seconds; NaN if unknown. `form`: see RunTimes in tool_file.py."""
    try:
        if form in _SCALE:
            return float(found) * _SCALE[form]
        plain = form.removesuffix(" utc")
        moment = datetime.fromisoformat(str(found)) if plain == "iso" else datetime.strptime(str(found), plain)
        return (moment.replace(tzinfo=UTC) if form != plain and moment.tzinfo is None else moment).timestamp()
    except (TypeError, ValueError, OverflowError):
        return math.nan
