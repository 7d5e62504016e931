"""Reads Optuna studies without Optuna: its SQLite storage, and its journal file. A trial's parameters are columns, its
values are `value` (or value_0, value_1 …), its user attributes user_NAME."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from autoscout.targets.found import Reader, Row, Source
from kb import door
from kb.records import AutoscoutError
from kb.sources import sqlite_tables

_TABLES = ["studies", "trials", "trial_params", "trial_values", "trial_user_attributes"]
_STATES = ["RUNNING", "COMPLETE", "PRUNED", "FAIL", "WAITING"]  # by the number that journals use


def recognizes(path: Path) -> bool:
    try:
        with open(path, "rb") as file:
            start = file.read(4096)
    except OSError:
        return False
    if start.startswith(b"SQLite format 3"):
        return bool(sqlite_tables(path, ["studies"])["studies"])
    return start.startswith(b'{"op_code"')


def read(path: Path, study: str = "") -> Source:
    """`study`: its name, if a storage has several. Errors: AutoscoutError (exit 2)."""
    with open(path, "rb") as file:
        sqlite = file.read(15) == b"SQLite format 3"
    studies = _of_sqlite(path) if sqlite else _of_journal(path)
    if not study and len(studies) == 1:
        (study,) = studies
    if study not in studies:
        names = ", ".join(studies) or "none"
        raise AutoscoutError(f"{path}: say which study with --reader optuna:NAME; it has {names}", 2)
    rows = [_row(number, trial) for number, trial in sorted(studies[study].items())]
    columns = list(dict.fromkeys(name for row in rows for name in row.cells))
    return Source(reader="optuna", columns=columns, rows=iter(rows))


def _row(number: int, trial: dict[str, Any]) -> Row:
    where, state, values = f"trial {number}", trial["state"], trial["values"]
    cells = {**trial["params"], **{f"user_{name}": value for name, value in trial["user"].items()}}
    if len(values) == 1:
        cells["value"] = values[0]
    else:
        cells |= {f"value_{i}": value for i, value in enumerate(values)}
    if state == "COMPLETE":
        return Row(where, cells)
    if state == "FAIL":
        return Row(where, {**cells, "status": "error", "evidence": "the trial failed"})
    return Row(where, cells, f"is {state.lower()}, not complete")


def _of_sqlite(path: Path) -> dict[str, dict[int, dict[str, Any]]]:
    tables = sqlite_tables(path, _TABLES)
    names = {row["study_id"]: row["study_name"] for row in tables["studies"]}
    trials = {row["trial_id"]: (row, _trial(row["state"])) for row in tables["trials"]}
    for row in tables["trial_params"]:
        distribution = json.loads(row["distribution_json"])
        trials[row["trial_id"]][1]["params"][row["param_name"]] = _external(row["param_value"], distribution)
    for row in sorted(tables["trial_values"], key=lambda r: r["objective"]):
        trials[row["trial_id"]][1]["values"].append(row["value"])
    for row in tables["trial_user_attributes"]:
        trials[row["trial_id"]][1]["user"][row["key"]] = json.loads(row["value_json"])
    studies: dict[str, dict[int, dict[str, Any]]] = {name: {} for name in names.values()}
    for row, trial in trials.values():
        studies[names[row["study_id"]]][row["number"]] = trial
    return studies


def _of_journal(path: Path) -> dict[str, dict[int, dict[str, Any]]]:
    names: list[str] = []
    studies: dict[str, dict[int, dict[str, Any]]] = {}
    trials: list[dict[str, Any]] = []
    for line in _lines(path):
        match line.get("op_code"):
            case 0:
                names.append(line["study_name"])
                studies[line["study_name"]] = {}
            case 4:
                trial = _trial(_STATES[line.get("state", 0)])
                for name, text in (line.get("distributions") or {}).items():
                    trial["params"][name] = _external(line["params"][name], json.loads(text))
                trial["values"] = line.get("values") or ([line["value"]] if line.get("value") is not None else [])
                trials.append(trial)
                of_study = studies[names[line["study_id"]]]
                of_study[len(of_study)] = trial
            case 5:
                distribution = json.loads(line["distribution"])
                value = _external(line["param_value_internal"], distribution)
                trials[line["trial_id"]]["params"][line["param_name"]] = value
            case 6:
                trials[line["trial_id"]]["state"] = _STATES[line["state"]]
                trials[line["trial_id"]]["values"] = line.get("values") or []
            case 8:
                trials[line["trial_id"]]["user"] |= line["user_attr"]
    return studies


def _lines(path: Path) -> Iterator[dict[str, Any]]:
    with open(path, "rb") as file:
        for line in file:
            try:
                yield door.parsed_json(line)
            except ValueError:
                return  # a torn last line


def _trial(state: str) -> dict[str, Any]:
    return {"state": state, "params": {}, "values": [], "user": {}}


def _external(internal: float, distribution: dict[str, Any]) -> Any:
    """The value as the objective saw it; choices are stored by index."""
    attributes = distribution["attributes"]
    if "choices" in attributes:
        return attributes["choices"][int(internal)]
    return int(internal) if distribution["name"].startswith("Int") else internal


READER = Reader(
    recognizes=lambda path: path.is_file() and recognizes(path),
    read=lambda path, job, space, part: read(path, part),
    rank=4,
)
