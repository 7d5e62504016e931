"""Reads trials from Optuna's journal file, a log of operations that must be replayed to its end."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from kb import door

_STATES = ["RUNNING", "COMPLETE", "PRUNED", "FAIL", "WAITING"]  # in the order of the numbers that the journal uses


def trials(path: Path) -> Iterator[tuple[str, dict[str, Any], str]]:
    """Yields (location in the file, {study, number, state, params, values, user, began, ended}, "") for each trial of a
    study that was not deleted. A single objective is named `value`; several are named value_0, value_1 and so on.

    Errors: ValueError if the file is not an Optuna journal."""
    # a deleted study keeps its place in the list, with the name ""
    studies: list[tuple[str, list[dict[str, Any]]]] = []
    numbered: list[dict[str, Any]] = []
    for line in _lines(path):
        match line.get("op_code"):
            case 0:
                studies.append((line["study_name"], []))
            case 1:
                studies[line["study_id"]] = ("", [])
            case 4:
                name, of_study = studies[line["study_id"]]
                trial = {"study": name, "number": len(of_study), "state": _STATES[line.get("state", 0)]}
                trial |= {"params": {}, "user": {}, "values": _named(line.get("values") or _single(line.get("value")))}
                trial |= {"began": line.get("datetime_start"), "ended": line.get("datetime_complete")}
                for parameter, text in (line.get("distributions") or {}).items():
                    trial["params"][parameter] = _external(line["params"][parameter], json.loads(text))
                numbered.append(trial)
                of_study.append(trial)
            case 5:
                distribution = json.loads(line["distribution"])
                value = _external(line["param_value_internal"], distribution)
                numbered[line["trial_id"]]["params"][line["param_name"]] = value
            case 6:
                trial = numbered[line["trial_id"]]
                trial["state"], trial["values"] = _STATES[line["state"]], _named(line.get("values") or [])
                trial["began"] = line.get("datetime_start") or trial["began"]
                trial["ended"] = line.get("datetime_complete")
            case 8:
                numbered[line["trial_id"]]["user"] |= {f"user_{k}": v for k, v in line["user_attr"].items()}
    if not studies:
        raise ValueError("the file is not an Optuna journal")
    for name, of_study in studies:
        yield from ((f"trial {trial['number']}", trial, "") for trial in of_study if name)


def _lines(path: Path) -> Iterator[dict[str, Any]]:
    with open(path, "rb") as file:
        if file.read(11) != b'{"op_code":':
            return
        file.seek(0)
        for line in file:
            try:
                yield door.parsed_json(line)
            except ValueError:
                return  # the last line is truncated


def _single(value: float | None) -> list[float]:
    return [] if value is None else [value]


def _named(values: list[float]) -> dict[str, float]:
    return {"value": values[0]} if len(values) == 1 else {f"value_{i}": value for i, value in enumerate(values)}


def _external(internal: float, distribution: dict[str, Any]) -> Any:
    """Converts a stored parameter to the objective function's argument; categorical choices are stored by index."""
    attributes = distribution["attributes"]
    if "choices" in attributes:
        return attributes["choices"][int(internal)]
    return int(internal) if distribution["name"].startswith("Int") else internal
