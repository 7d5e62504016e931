"""The ask/tell interface of search strategies, and their registry.

A strategy is declared by a `Kind` named STRATEGY in a module of its own. Packages list the module under the entry
points `autoscout.strategies`; alternatively, the kind is passed to `register`. A session treats a strategy by the
properties of its kind, never by its name."""

import functools
import importlib
import importlib.metadata
import importlib.util
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

import msgspec
import numpy as np

from autoscout.job.words import nearest_name
from autoscout.search.belief.prior_means import Predictor
from autoscout.search.earlier import Past
from autoscout.search.hyper import Hyper
from autoscout.space.graph import Space
from kb.journal import Event
from kb.records import AutoscoutError, Configuration, Measurement

GROUP = "autoscout.strategies"
SAMPLE = 20_000  # sample size for strategies that need a list, in spaces too large to list
_OURS = {"autoscout": "autoscout.search.autoscout", "paper": "autoscout.search.paper"}
_registered: dict[str, "Kind"] = {}


class Strategy(Protocol):
    def ask(self) -> list[Configuration]:
        """The next configurations to evaluate; empty if there is nothing left to try."""
        ...

    def tell(self, measurements: list[Measurement]) -> None:
        """Adds results of requested configurations, in any order, or of other configurations."""
        ...

    def drain(self) -> list[Event]:
        """The decisions since the last call, for the journal."""
        ...

    def recommend(self) -> Configuration | None:
        """The best configuration, given the results so far; None if nothing ran."""
        ...

    def switch_to_profiling(self) -> None:
        """Called when the session switches from simulation to real experiments."""
        ...


class Proposed(msgspec.Struct, frozen=True, kw_only=True):
    """A configuration proposed by a person, agent or script, with a reason. The search decides whether to try it."""

    configuration: Configuration
    by: str
    why: str = ""


class Listens(Protocol):
    """Additional methods of strategies that accept proposals (`Kind.listens`)."""

    def propose(self, proposed: Proposed) -> None: ...

    def hold(self, held: bool) -> None:
        """Pauses (True) or resumes proposals."""
        ...


class Search(msgspec.Struct, frozen=True, kw_only=True):
    """The inputs of a search. A strategy's state must be a function of these and of its results, so that a session can
    be resumed.

    `default`: the configuration to evaluate first, if there is one. `seeded`: orderings of knobs that won earlier
    tournaments. `simulators`: name → function from rows of codes to predicted metric values (NaN: no prediction, inf:
    predicted to fail). `foreseen`: bound → function from rows of codes to log(value / bound), inverted for >= (NaN: no
    prediction); the bound is MEMORY (belief/foreseen.py) or a constraint. `past`: results of similar jobs. `proposed`:
    proposals (`held`: they are paused). `told`: earlier measurements of this job, in order. `batch`: configurations per
    ask. `patience`: experiments without a gain after which a strategy that ends by itself stops (0: never; None: the
    strategy's default). `live`: knobs that can change without a new launch."""

    space: Space
    default: Configuration | None = None
    seed: int = 0
    hyper: Hyper | None = None
    seeded: Sequence[list[str]] = ()
    simulators: Mapping[str, Predictor] = {}
    foreseen: Mapping[str, Predictor] = {}
    past: Sequence[Past] = ()
    proposed: Sequence[Proposed] = ()
    held: bool = False
    told: Sequence[Measurement] = ()
    batch: int = 1
    patience: int | None = None
    live: Sequence[str] = ()

    def first(self) -> Configuration:
        """The default, or a random configuration if there is none."""
        return self.default or self.space.sample(np.random.default_rng((self.seed, 1)))


class Kind(msgspec.Struct, frozen=True, kw_only=True):
    """The properties of a strategy. `lists`: needs a list of all valid configurations (a sample if there are too many).
    `asks_simulators`: uses the simulators itself; for all other strategies, the session replaces experiments by
    simulations while simulations are accurate. `learns`: also uses past jobs, earlier measurements, and experiments
    that a person requested. `listens`: accepts proposals (`Listens`). `several`: `ask` may be called again before
    results arrive. `finite`: ends by itself after a few experiments. `hyper`: class of its hyper-parameters.
    `packages`: required packages; `how`: how to install them."""

    name: str
    make: Callable[[Search], Strategy]
    lists: bool = True
    asks_simulators: bool = False
    learns: bool = False
    listens: bool = False
    several: bool = False
    finite: bool = False
    hyper: type[Hyper] | None = None
    packages: tuple[str, ...] = ()
    how: str = ""

    @property
    def missing(self) -> str:
        """A message that a required package is missing, with how to install it; "" if all are installed."""
        lacking = [package for package in self.packages if importlib.util.find_spec(package) is None]
        return f"strategy '{self.name}' needs {' and '.join(lacking)}: {self.how}" if lacking else ""


def strategy(name: str, space: Space, seed: int = 0, default: Configuration | None = None, **inputs: Any) -> Strategy:
    """Creates a strategy by its name. `default` falls back to the space's reference; `inputs`: the other fields of
    `Search`.

    Errors: AutoscoutError (exit 2) for an unknown name or a missing package."""
    kind = usable(name)
    return made(kind, Search(space=space, seed=seed, default=default or space.reference, **inputs))


def usable(name: str) -> Kind:
    """Like `kind_of`. Errors: also AutoscoutError (exit 2) if a required package is missing."""
    kind = kind_of(name)
    if why := kind.missing:
        raise AutoscoutError(why, 2)
    return kind


def made(kind: Kind, search: Search) -> Strategy:
    """Creates the strategy. If it needs a list but the space is too large, it gets a sample of the space."""
    space = search.space
    if kind.lists and not space.enumerable:
        wanted = [*([search.default] if search.default else []), *(m.configuration for m in search.told)]
        sample = space.sampled(SAMPLE, np.random.default_rng((search.seed, 2)), including=wanted)
        search = msgspec.structs.replace(search, space=sample)
    return kind.make(search)


def sampled(kind: Kind, space: Space) -> str:
    """A sentence if the strategy searches only a sample of the space; "" otherwise."""
    if not kind.lists or space.enumerable:
        return ""
    return f"'{kind.name}' needs a list of all configurations, so it searches a random {SAMPLE:,} of {space.count:,}"


def kind_of(name: str) -> Kind:
    """The kind of a strategy. Errors: AutoscoutError (exit 2) for an unknown name, (exit 1) if loading it fails."""
    if name in _registered:
        return _registered[name]
    known = _modules()
    if name not in known:
        raise AutoscoutError(f"strategy '{name}'{nearest_name(name, names())}", 2)
    return _loaded(name, known[name])


def module_of(name: str) -> str:
    """The name of the module that declares a strategy. Errors: AutoscoutError (exit 2) for an unknown name."""
    kind = kind_of(name)
    return _modules().get(name, kind.make.__module__)


def names() -> list[str]:
    """Names of all strategies: AutoScout's, those of other installed packages, then registered ones."""
    return [*_modules(), *_registered]


def register(kind: Kind) -> None:
    """Adds a strategy to this process. Errors: AutoscoutError (exit 2) for a name that exists."""
    if kind.name in names():
        raise AutoscoutError(f"a strategy named '{kind.name}' exists already; choose a different name", 2)
    _registered[kind.name] = kind


@functools.cache
def _modules() -> dict[str, str]:
    """Name of a strategy → the module that declares it."""
    found = dict(_OURS)
    for entry in importlib.metadata.entry_points(group=GROUP):
        if entry.name in found:
            raise AutoscoutError(f"{entry.value} adds a strategy '{entry.name}', but that name is taken", 2)
        found[entry.name] = entry.value
    return found


@functools.cache
def _loaded(name: str, module: str) -> Kind:
    try:
        kind = importlib.import_module(module).STRATEGY
    except Exception as error:  # a plug-in may raise anything
        raise AutoscoutError(f"strategy '{name}' ({module}) cannot be loaded: {error}") from error
    if not isinstance(kind, Kind) or kind.name != name:
        raise AutoscoutError(f"{module} declares no strategy '{name}': STRATEGY is {kind!r:.100}")
    return kind
