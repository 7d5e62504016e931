"""Python imports this file at start-up if its folder is the first in PYTHONPATH. It makes an RL trainer time its
iterations by phase (phase_clock.py), and then imports the environment's own sitecustomize."""

import importlib.abc
import importlib.machinery
import importlib.util
import sys
from pathlib import Path

_TIMED = "trl.trainer.grpo_trainer"


class _WhenImported(importlib.abc.MetaPathFinder):
    """An import hook that wraps the trainer's classes after their module was imported."""

    def find_spec(self, fullname, path=None, target=None):  # type: ignore[no-untyped-def]
        if fullname != _TIMED:
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(fullname)
        if spec is None or spec.loader is None:
            return spec
        load = spec.loader.exec_module

        def loaded(module):  # type: ignore[no-untyped-def]
            load(module)
            import phase_clock

            phase_clock.of_trl(module)

        spec.loader.exec_module = loaded  # type: ignore[method-assign]
        return spec


sys.meta_path.insert(0, _WhenImported())
_others = [place for place in sys.path if Path(place) != Path(__file__).parent]
_theirs = importlib.machinery.PathFinder.find_spec("sitecustomize", _others)
if _theirs is not None and _theirs.loader is not None:
    _theirs.loader.exec_module(importlib.util.module_from_spec(_theirs))
