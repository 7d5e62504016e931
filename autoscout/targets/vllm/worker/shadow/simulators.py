"""Loads files of simulate/serving, which the engine's interpreter cannot import: it does not have our package."""

import importlib.util
from pathlib import Path
from typing import Any

_FOLDER = Path(__file__).parents[4] / "simulate" / "serving"


def loaded(name: str) -> Any:
    spec = importlib.util.spec_from_file_location(name, _FOLDER / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
