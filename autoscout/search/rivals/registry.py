"""The rivals by name. Each is a search over rows (see sequential.py) in a file of its own, imported when it is used."""

import importlib
import importlib.util
from collections.abc import Mapping

from autoscout.search.rivals.sequential import Predictor, Sequential
from autoscout.space.graph import Space
from kb.records import AutoscoutError, Configuration

_SEARCHES = {
    "random": "random:uniform",
    "expert": "reference:only_the_reference",
    "grid": "grid:grid",
    "deepspeed": "deepspeed_tuner:deepspeed",
    "udo": "udo:udo",
    "cherrypick": "cherrypick:cherrypick",
    "gp-ei": "gp_pool:gp_pool",
    "metis": "metis:metis",
    "walker": "walker:walker",
    "genetic": "genetic:genetic",
    "ants": "ants:ants",
    "bayes": "bayes:bayes",
    "optuna-tpe": "optuna_tpe:optuna_tpe",
    "optuna-gp": "optuna_gp:optuna_gp",
    "smac": "smac3:smac3",
    "hebo": "hebo_gp:hebo_gp",
}
_NEEDS = {  # packages, and how to get them
    "optuna-tpe": (("optuna",), "pip install 'autoscout[rivals]'"),
    "optuna-gp": (("optuna", "torch"), "pip install 'autoscout[rivals]' torch"),
    "smac": (("smac",), "pip install smac, in an environment without HEBO"),
    "hebo": (("hebo",), "pip install HEBO, in an environment of its own: it pins old numpy and scikit-learn"),
}

RIVALS: tuple[str, ...] = tuple(_SEARCHES)
FINITE: tuple[str, ...] = ("expert", "metis")  # those that have said everything after a few experiments


def missing(name: str) -> str:
    """ "" or which package a rival lacks, and how to get it."""
    packages, how = _NEEDS.get(name, ((), ""))
    lacking = [package for package in packages if importlib.util.find_spec(package) is None]
    return f"strategy '{name}' needs {' and '.join(lacking)}: {how}" if lacking else ""


def rival(
    name: str, space: Space, default: Configuration, seed: int, simulators: Mapping[str, Predictor] | None = None
) -> Sequential:
    """Errors: AutoscoutError (exit 2) where a package is missing."""
    if why := missing(name):
        raise AutoscoutError(why, 2)
    module, function = _SEARCHES[name].split(":")
    search = getattr(importlib.import_module(f"autoscout.search.rivals.{module}"), function)
    return Sequential(name, search, space, default, seed, simulators)
