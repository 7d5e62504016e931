"""The ask/tell interface of strategies, and how strategies are found.

A strategy is declared by a `Kind` named STRATEGY in its own module, which a package lists under the entry points
`autoscout.strategies`; or it is passed to `register`.
How a session treats a strategy depends on what its kind declares, never on its name.
"""

import functools
import importlib
import importlib.metadata
import importlib.util
from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

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
SAMPLE = 20_000  # sample size for strategies that need a list of a space too large for one
_OURS = {"autoscout": "autoscout.search.autoscout", "paper": "autoscout.search.paper"}
_registered: dict[str, "Kind"] = {}


class Strategy(Protocol):
    def ask(self) -> list[Configuration]:
        """The next configurations to evaluate; empty when there is nothing left to try."""
        ...

    def tell(self, measurements: list[Measurement]) -> None:
        """Takes in results of asked configurations, in any order, and known results of others."""
        ...

    def drain(self) -> list[Event]:
        """Decisions since the last call, for the journal."""
        ...

    def recommend(self) -> Configuration | None:
        """The configuration to use, given the results so far; None if nothing ran."""
        ...

    def switch_to_profiling(self) -> None:
        """Called when evaluation has moved from simulators to real experiments."""
        ...


class Proposed(msgspec.Struct, frozen=True, kw_only=True):
    """A configuration that a person, an agent or a script proposes, and why: data for the search, never an order."""

    configuration: Configuration
    by: str
    why: str = ""


class Listens(Protocol):
    """Additional methods of strategies whose kind `listens`."""

    def propose(self, proposed: Proposed) -> None: ...

    def hold(self, held: bool) -> None:
        """Sets whether proposals are paused."""
        ...


class Search(msgspec.Struct, frozen=True, kw_only=True):
    """Everything a search starts from. A strategy's state is a function of this and of the results that it is given.

    `default`: the configuration evaluated first; None where it is unknown, as for a table. `seeded`: orderings that won
    earlier tournaments; `simulators`: codes → predicted metric values (NaN: no prediction, inf: predicted to fail);
    `foreseen`: MEMORY (belief/foreseen.py) or a constraint → codes → predicted log of the share of its memory that the
    fullest device uses, or of the metric over its bound (of the bound over the metric for >=; NaN: no prediction);
    `past`: similar jobs; `proposed`: people's proposals (`held`: they are paused);
    `told`: earlier measurements of this job, in order; `batch`: configurations per ask;
    `patience`: experiments without a gain after which a strategy that ends by itself stops (0: never; None: its own
    default); `live`: knobs that can change without a new launch.
    """

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
        """The default, or a random configuration where there is none."""
        return self.default or self.space.sample(np.random.default_rng((self.seed, 1)))


class Kind(msgspec.Struct, frozen=True, kw_only=True):
    """`lists`: needs every valid configuration as a row, and searches a sample if there are too many.
    `asks_simulators`: queries simulators about the whole space itself; otherwise they replace experiments while they
    are accurate. `learns`: also uses past jobs, earlier measurements and experiments that a person ordered.
    `listens`: has an arm for proposals (`Listens`). `several`: can be asked again before it gets results.
    `finite`: ends by itself after a few experiments. `hyper`: class of its hyper-parameters, if it has its own.
    `packages`: packages that must be installed; `how`: the way to install them."""

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
        """Which package the strategy lacks, and how to get it; "" if none."""
        lacking = [package for package in self.packages if importlib.util.find_spec(package) is None]
        return f"strategy '{self.name}' needs {' and '.join(lacking)}: {self.how}" if lacking else ""


def strategy(
    name: str,
    space: Space,
    seed: int = 0,
    default: Configuration | None = None,
    seeded: Sequence[list[str]] = (),
    hyper: Hyper | None = None,
    simulators: Mapping[str, Predictor] | None = None,
    foreseen: Mapping[str, Predictor] | None = None,
    past: Sequence[Past] = (),
    proposed: Sequence[Proposed] = (),
    told: Sequence[Measurement] = (),
    batch: int = 1,
    patience: int | None = None,
) -> Strategy:
    """A strategy by its name; the arguments are those of `Search`; `default` falls back to the space's reference.

    Errors: AutoscoutError (exit 2) for an unknown name or a missing package."""
    return made(
        usable(name),
        Search(
            space=space,
            default=default or space.reference,
            seed=seed,
            hyper=hyper,
            seeded=seeded,
            simulators=simulators or {},
            foreseen=foreseen or {},
            past=past,
            proposed=proposed,
            told=told,
            batch=batch,
            patience=patience,
        ),
    )


def usable(name: str) -> Kind:
    """Like `kind_of`. Errors: also (exit 2) if a package is missing."""
    kind = kind_of(name)
    if why := kind.missing:
        raise AutoscoutError(why, 2)
    return kind


def made(kind: Kind, search: Search) -> Strategy:
    """Makes the strategy; one that needs a list of a space too large to list gets a sample."""
    space = search.space
    if kind.lists and not space.enumerable:
        wanted = [*([search.default] if search.default else []), *(m.configuration for m in search.told)]
        sample = space.sampled(SAMPLE, np.random.default_rng((search.seed, 2)), including=wanted)
        search = msgspec.structs.replace(search, space=sample)
    return kind.make(search)


def sampled(kind: Kind, space: Space) -> str:
    """A sentence if the strategy searches only a sample of the space, else ""."""
    if not kind.lists or space.enumerable:
        return ""
    return f"'{kind.name}' needs every configuration as a row: it searches a random {SAMPLE:,} of {space.count:,}"


def kind_of(name: str) -> Kind:
    """A strategy's kind. Errors: AutoscoutError (exit 2) for an unknown name, (exit 1) for a package that cannot be
    loaded."""
    if name in _registered:
        return _registered[name]
    known = _modules()
    if name not in known:
        raise AutoscoutError(f"strategy '{name}'{nearest_name(name, names())}", 2)
    return _loaded(name, known[name])


def module_of(name: str) -> str:
    """The module that declares a strategy. Errors: AutoscoutError (exit 2) for an unknown name."""
    kind = kind_of(name)
    return _modules().get(name, kind.make.__module__)


def names() -> list[str]:
    """Names of strategies: ours first, then those of installed packages, then registered ones."""
    return [*_modules(), *_registered]


def register(kind: Kind) -> None:
    """Adds a strategy in this process. Errors: AutoscoutError (exit 2) for a name that is taken."""
    if kind.name in names():
        raise AutoscoutError(f"there is a strategy '{kind.name}' already; choose another name", 2)
    _registered[kind.name] = kind


@functools.cache
def _modules() -> dict[str, str]:
    """Strategy → the module that declares it."""
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
    except Exception as error:  # the plug-in's code may raise anything
        raise AutoscoutError(f"strategy '{name}' ({module}) cannot be loaded: {error}") from error
    if not isinstance(kind, Kind) or kind.name != name:
        raise AutoscoutError(f"{module} declares no strategy '{name}': STRATEGY is {kind!r:.100}")
    return kind
