"""What a target is: an engine that AutoScout tunes. One class a target, in a folder here or in an installed package.

A package declares its class under the entry point group `autoscout.targets`; ours are declared the same way
(pyproject.toml). Only `name`, a catalog and `profiler` are needed; everything else has a default that says what a
target of which nothing more is known can do. Methods import what they need when they are called: `autoscout targets`
must not wait for numpy.
"""

import contextlib
import functools
import importlib.metadata
import importlib.resources
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from autoscout.job.words import nearest_name
from kb.records import AutoscoutError, Configuration, Job

if TYPE_CHECKING:
    from autoscout.running.equivalence import Check
    from autoscout.running.interfaces import Profiler
    from autoscout.simulate.member import Member
    from autoscout.simulate.shadow.served import ServingShadow
    from autoscout.simulate.shadow.traced import Shadow
    from autoscout.space.graph import Space
    from autoscout.space.knob import Catalog, KnobEntry, RuleEntry
    from autoscout.targets.found import Reader
    from autoscout.targets.launch import Launch

GROUP = "autoscout.targets"


class Target:
    name: str = ""
    tasks: tuple[str, ...] = ("pretrain", "finetune", "serve")
    about: str = ""  # in a line: what it runs
    designs: bool = False  # none of its numbers can be measured: what it tunes is not built yet
    needs_model: bool = False  # a job has to describe a model and its traffic
    proven: str = ""  # what it was run against, and where; "" unproven
    preset: str = ""  # of command/presets: what the log of its runs says, where a job names no script of its own
    packages: tuple[str, ...] = ()  # what the interpreter that runs it must have …
    how: str = ""  # … and how to get them

    def installed(self) -> dict[str, str]:
        """Of its packages those that our own interpreter has, with their versions."""
        found = {}
        for package in self.packages:
            with contextlib.suppress(importlib.metadata.PackageNotFoundError):
                found[package] = importlib.metadata.version(package)
        return found

    def presets(self) -> dict[str, tuple[str, str]]:
        """Scripts of others that it knows: name → (about, what that was run against or "")."""
        return {}

    # ---- the job --------------------------------------------------------------------------------------------------

    def metrics(self, job: Job) -> tuple[str, ...]:
        """The metrics that its runs report; () any."""
        from autoscout.job.metrics import metrics_of_task

        return metrics_of_task(job.task)

    def problems(self, job: Job) -> Iterator[str]:
        """What of a job file does not go with this target, a sentence each."""
        yield from ()

    # ---- the space ------------------------------------------------------------------------------------------------

    def catalog(self, job: Job) -> "Catalog":
        """Its knobs and rules, without what a person's files add: the catalog.toml beside its code.

        Errors: AutoscoutError."""
        return shipped(self.name)

    def adapted(self, catalog: "Catalog", job: Job) -> "Catalog":
        """The catalog as the installed version has it."""
        return catalog

    def notes(self, catalog: "Catalog", job: Job) -> list[str]:
        """What a person should know about how the catalog and the installed version differ."""
        return []

    def notes_on_job(self, job: Job) -> list[str]:
        """What a person should know before a job is run."""
        return []

    def refuses_knob(self, knob: "KnobEntry") -> str:
        """ "" or why a knob of a person's own catalog could not reach the engine."""
        return ""

    def device_rules(self, kinds: Sequence[str]) -> "list[RuleEntry]":
        """Rules about which kinds of device a configuration uses together, on a cluster that mixes them."""
        return []

    def recipes(self, space: "Space") -> Iterator[Configuration]:
        """What the engine's own guides advise for a job, the best first; others are held against it.

        Errors: AutoscoutError (exit 3) when the space has none."""
        from autoscout.targets.recipes import stated_defaults

        yield from stated_defaults(space)

    # ---- an experiment --------------------------------------------------------------------------------------------

    def profiler(self, job: Job) -> "Profiler":
        """Nothing is started yet. Errors: AutoscoutError."""
        raise AutoscoutError(
            f"nothing profiles target = '{self.name}' yet, so this job cannot be run; `autoscout space` and "
            f"`autoscout explain` work on it",
            2,
        )

    def equivalence(self, job: Job) -> "Check":
        """How it is told whether a configuration computes what the reference computes; by losses, if runs tell any."""
        from autoscout.running.equivalence import IfTold, Losses

        return IfTold(Losses(job.model.dtype))

    def patience(self, job: Job) -> int | None:
        """Experiments without a gain after which a search that ends by itself ends (0: never); None: its own number."""
        return None

    def in_turn(self, job: Job, batch: list[Configuration]) -> list[Configuration]:
        """The order in which a batch is best run."""
        return batch

    def probe_line(self, job: Job, configuration: Configuration, experiment: Path) -> str:
        """A shell command that runs one experiment by itself, for `--dry-run`; "" if there is none. On several nodes
        a line for each, or one for all of them, where NODE is 0, 1, … and HEAD the first one's address."""
        return ""

    def shadow(
        self,
        job: Job,
        configuration: Configuration,
        name: str,
        kb: Path | None,
        limit_s: float,
        ranks: list[int] | None = None,
        stopping: Callable[[], bool] = lambda: False,
        *,
        parts: bool = False,
    ) -> "Shadow | ServingShadow":
        """The engine's own code run for some ranks without a device: does it start, does it fit, what does it send; of
        a serving engine, under the job's load. `parts`: from traces of small jobs, which other configurations share.

        Errors: AutoscoutError (exit 2) where the engine cannot be traced."""
        raise AutoscoutError(
            f"target = '{self.name}' cannot be run as a shadow yet, only Megatron-core, vLLM and PyTorch scripts can; "
            f"`autoscout predict` and `autoscout profile` work on it",
            2,
        )

    def one_device(
        self, job: Job, configuration: Configuration, name: str, kb: Path | None, limit_s: float
    ) -> "Shadow":
        """A shadow whose ranks' kernels were run on one device, one rank after the other; what they send is priced.

        Errors: AutoscoutError (exit 2) where the engine has no such run, or the device is not free."""
        raise AutoscoutError(f"target = '{self.name}' has no run on one device yet, only Megatron-core has", 2)

    # ---- a launch -------------------------------------------------------------------------------------------------

    def launch(self, job: Job, configuration: Configuration) -> "Launch":
        """What runs a configuration, exactly as an experiment is run. Errors: AutoscoutError (exit 2) when it cannot
        be written down."""
        raise AutoscoutError(f"there is no export for target = '{self.name}' yet; `autoscout best` shows its knobs", 2)

    def as_measured(self, launch: "Launch", environment: dict[str, str]) -> "Launch":
        """The launch with the versions that measured it, as far as it names any."""
        return launch

    def formats(self) -> "Mapping[str, Callable[[Launch], str]]":
        """Formats of an export, by name, beside those that every target has (or in place of one)."""
        return {}

    def check(self, job: Job, launch: "Launch", form: str) -> float:
        """Starts an exported launch here; seconds until it worked. Errors: AutoscoutError."""
        raise AutoscoutError(f"--check cannot start target = '{self.name}' by itself; run the exported command", 2)

    def soak(self, job: Job, launch: "Launch", form: str) -> float:
        """As `check`, for long enough to write a checkpoint and to evaluate."""
        raise AutoscoutError(f"--soak cannot run target = '{self.name}' by itself; run the exported command", 2)

    def checkpoint(self, job: Job, now: Configuration, new: Configuration) -> str:
        """What becomes of a checkpoint of a training that runs as `now` when it goes on as `new`, as the end of a
        sentence; "" where nothing is known."""
        return ""

    # ---- knowledge ------------------------------------------------------------------------------------------------

    def simulators(self, job: Job) -> "list[Member]":
        """Simulators of the job's objective that need no measured row."""
        from autoscout.simulate.members import analytic

        return analytic(job.objective.metric, job.task)

    def readers(self) -> "Mapping[str, Reader]":
        """Readers of results that the engine's own tools leave, by name, for `autoscout import`."""
        return {}

    def described_by(self, files: list[Path]) -> dict[str, Any] | None:
        """A job file's content from files of another tool, or None if they are none that it knows.

        Errors: AutoscoutError (exit 2) for files that it knows, with what it cannot read."""
        return None

    def recognises(self, words: list[str]) -> dict[str, Any] | None:
        """A job file's content from a person's own launch line, or None if the line is not this engine's."""
        return None


def target(name: str) -> Target:
    """Errors: AutoscoutError (exit 2) for an unknown name, (exit 1) for a package that cannot be loaded."""
    known = _entry_points()
    if name not in known:
        raise AutoscoutError(f"target = '{name}'{nearest_name(name, known)}; `autoscout targets` lists all", 2)
    return _loaded(name)


def shipped(name: str) -> "Catalog":
    """The catalog beside a target's code. Errors: AutoscoutError (exit 2)."""
    from autoscout.space.knob import read_catalog

    folder = Path(str(importlib.resources.files(type(target(name)).__module__)))
    return read_catalog(folder / "catalog.toml")


def target_of(job: Job) -> Target:
    return target(job.target)


def names() -> list[str]:
    return sorted(_entry_points())


@functools.cache
def _entry_points() -> dict[str, importlib.metadata.EntryPoint]:
    return {found.name: found for found in importlib.metadata.entry_points(group=GROUP)}


@functools.cache
def _loaded(name: str) -> Target:
    found = _entry_points()[name]
    try:
        made = found.load()()
    except Exception as error:  # a plug-in's own code
        raise AutoscoutError(f"target '{name}' ({found.value}) cannot be loaded: {error}") from error
    if not isinstance(made, Target):
        raise AutoscoutError(f"target '{name}' ({found.value}) is no autoscout.Target")
    return made
