"""Model shapes that job files may name."""

import functools
import tomllib
from collections.abc import Mapping
from importlib.resources import files
from typing import Any


@functools.cache
def models() -> Mapping[str, dict[str, Any]]:
    return tomllib.loads(files("autoscout.job.presets").joinpath("models.toml").read_text(encoding="utf-8"))
