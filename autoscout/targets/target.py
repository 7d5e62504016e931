"""A target is an engine that AutoScout tunes: one class per target, in a folder here or in an installed package. A
package declares its class under the entry point group `autoscout.targets`; ours are declared the same way
(pyproject.toml). Only `name`, a catalog and `profiler` are required; everything else defaults to what a minimal target
can do. Methods import lazily: `autoscout targets` must not wait for numpy.
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
    import numpy as np

    from autoscout.line.launch_line import Line
    from autoscout.running.equivalence import Check
    from autoscout.running.interfaces import Profiler
    from autoscout.simulate.member import Columns, Member
    from autoscout.simulate.shadow.served import ServingShadow
    from autoscout.simulate.shadow.traced import Shadow
    from autoscout.space.graph import Space
    from autoscout.space.knob import Catalog, KnobEntry, RuleEntry
    from autoscout.targets.audited import Audit
    from autoscout.targets.found import Reader
    from autoscout.targets.launch import Launch
    from autoscout.targets.seams import SeamFit
    from autoscout.targets.tracing import ShadowAsked

GROUP = "autoscout.targets"
LEAST_ITERATIONS = 2  # per run, however long they take


class Target:
    name: str = ""
    tasks: tuple[str, ...] = ("pretrain", "finetune", "serve")
    about: str = ""  # one line: what it runs
    designs: bool = False  # tunes designs that are not built yet, so nothing can be measured
    needs_model: bool = False  # a job must describe a model and its traffic
    proven: str = ""  # where and with which versions it was tested; "": untested
    preset: str = ""  # default preset (line/frameworks) for reading the log of its runs
    packages: tuple[str, ...] = ()  # packages that its interpreter needs
    how: str = ""  # how to install them
    asked_for: bool = False  # `init` makes a job for it from a line only on request

    def installed(self) -> dict[str, str]:
        """Its packages in our own interpreter, with versions."""
        found = {}
        for package in self.packages:
            with contextlib.suppress(importlib.metadata.PackageNotFoundError):
                found[package] = importlib.metadata.version(package)
        return found

    def presets(self) -> dict[str, tuple[str, str]]:
        """Known third-party scripts: name → (about, what it was run against or "")."""
        return {}

    # ---- the job --------------------------------------------------------------------------------------------------

    def metrics(self, job: Job) -> tuple[str, ...]:
        """The metrics that its runs report; (): any metric."""
        from autoscout.job.metrics import metrics_of_task

        return metrics_of_task(job.task)

    def problems(self, job: Job) -> Iterator[str]:
        """A sentence for each part of a job file that does not suit this target."""
        yield from ()

    # ---- the space ------------------------------------------------------------------------------------------------

    def catalog(self, job: Job) -> "Catalog":
        """Its knobs and rules, without the user's own files: the catalog.toml next to its code.

        Errors: AutoscoutError."""
        return shipped(self.name)

    def adapted(self, catalog: "Catalog", job: Job) -> "Catalog":
        """The catalog adapted to the installed version."""
        return catalog

    def notes(self, catalog: "Catalog", job: Job) -> list[str]:
        """Notes for the user on differences between the catalog and the installed version."""
        return []

    def notes_on_job(self, job: Job) -> list[str]:
        """Notes for the user before a job is run."""
        return []

    def refuses_knob(self, knob: "KnobEntry") -> str:
        """Why a knob of the user's own catalog could not reach the engine; "" if it can."""
        return ""

    def device_rules(self, kinds: Sequence[str]) -> "list[RuleEntry]":
        """Rules on combining kinds of device in a configuration, for a cluster that mixes them."""
        return []

    def recipes(self, space: "Space") -> Iterator[Configuration]:
        """Configurations advised by the engine's own guides for a job, best first; the first is the reference. Errors:
        AutoscoutError (exit 3) if the space has none."""
        from autoscout.targets.recipes import stated_defaults

        yield from stated_defaults(space)

    def reference(self, job: Job) -> str:
        """A description of the first recipe, for the user."""
        if job.launch.current or job.launch.command:
            return "your present launch"
        return "the expert default" if job.model.layers else "the reference"

    # ---- an experiment --------------------------------------------------------------------------------------------

    def profiler(self, job: Job) -> "Profiler":
        """The profiler of a job; nothing is started yet. Errors: AutoscoutError."""
        raise AutoscoutError(
            f"nothing profiles target = '{self.name}' yet, so this job cannot be run; `autoscout space` and "
            f"`autoscout explain` work on it",
            2,
        )

    def run_s(self, job: Job, metric: str, value: float) -> float:
        """Seconds that one run takes after its start, from the predicted value of a metric; 0 if unknown."""
        if metric != "step_time_s":
            return 0.0
        wanted = min(job.launch.iterations, round(job.launch.measure_s / value))
        return value * (job.launch.warmup + max(LEAST_ITERATIONS, wanted))

    def fit(self, job: Job, environment: dict[str, str]) -> "SeamFit | None":
        """Whether the installed engine accepts what our workers call; None if that cannot be known. `environment`: the
        profiler's. Errors: AutoscoutError (exit 2) if it cannot be imported."""
        return None

    def ready(self, job: Job, environment: dict[str, str]) -> str:
        """A note for the user, or "", after an engine without a record was asked or tried. Errors: AutoscoutError (exit
        2) if no experiment could run on it."""
        from autoscout.targets.seams import REMEDY

        found = self.fit(job, environment)
        if found and found.unfit:
            raise AutoscoutError(f"{found.verdict}; {REMEDY}", 2)
        return "" if found is None or found.known else found.verdict

    def audit(self, job: Job | None) -> "Audit":
        """Compares what a job's engine, or our interpreter's, accepts with the catalog. Errors: AutoscoutError."""
        raise AutoscoutError(f"{self.name}: nothing audits its engine yet; `targets` lists what it was run against", 2)

    def draft(self, found: "Audit", flags: Sequence[str]) -> str:
        """Catalog rows for flags that no knob sets. Errors: AutoscoutError (exit 2) for a flag that is not one."""
        from autoscout.targets.auditing import draft

        return draft(found, flags)

    def equivalence(self, job: Job) -> "Check":
        """The check that a run is equivalent to the reference; by losses, if runs report any."""
        from autoscout.running.equivalence import IfTold, Losses

        return IfTold(Losses(job.model.dtype))

    def patience(self, job: Job) -> int | None:
        """Experiments without improvement after which a search stops (0: never); None: the search's own default."""
        return None

    def live(self, job: Job) -> Sequence[str]:
        """Knobs that can change from one experiment to the next without a new launch."""
        return ()

    def in_turn(self, job: Job, batch: list[Configuration]) -> list[Configuration]:
        """The batch in the order in which it runs fastest."""
        return batch

    def probe_line(self, job: Job, configuration: Configuration, experiment: Path) -> str:
        """A shell command that runs one experiment by itself, for `--dry-run`; "" if there is none. On several nodes it
        has one line per node, or one for all, in which NODE is 0, 1, … and HEAD the first node's address."""
        return ""

    def shadow(self, asked: "ShadowAsked") -> "Shadow | ServingShadow":
        """Runs the engine's own code for some ranks without a device: whether it starts and fits, and what it
        communicates; for a serving engine, under the job's load. Errors: AutoscoutError (exit 2) if the engine cannot
        be traced."""
        raise AutoscoutError(
            f"target = '{self.name}' cannot be run as a shadow yet, only Megatron-core, vLLM and PyTorch scripts can; "
            f"`autoscout predict` and `autoscout profile` work on it",
            2,
        )

    def losing(self, asked: "ShadowAsked") -> "ServingShadow":
        """A shadow in which engines fail. Errors: AutoscoutError (exit 2) if the target's shadows have no engines, or
        none would remain."""
        raise AutoscoutError(f"target = '{self.name}' has no engines that --lose could end; only vLLM has", 2)

    def one_device(self, asked: "ShadowAsked") -> "Shadow":
        """A shadow with its ranks' kernels measured on one device, one rank after the other; communication is priced.
        Errors: AutoscoutError (exit 2) if the engine does not support it, or no device is free."""
        raise AutoscoutError(f"target = '{self.name}' cannot run on one device yet; only Megatron-core can", 2)

    # ---- a design of what is not built yet ------------------------------------------------------------------------

    def outcomes(self, job: Job, columns: "Columns") -> "Mapping[str, np.ndarray]":
        """Metric → (n,) values: the outcome of an experiment with each of n designs. Errors: AutoscoutError (exit 2) if
        the target has no such table."""
        raise AutoscoutError(f"{job.name}: target = '{self.name}' evaluates its configurations one by one only", 2)

    def purchase(self, job: Job, usd: float, watts: float, kb: Path | None, today: Job | None) -> tuple[Any, str]:
        """The fastest cluster within a budget (dollars and watts), as a document and as text. `today`: a measured job,
        by which predictions are corrected. Errors: AutoscoutError; exit code 2 if the target designs no cluster, 3 if
        the budget buys nothing."""
        raise AutoscoutError(
            f'{job.name}: target = "{job.target}"; a cluster is chosen for a job of target = "stack"', 2
        )

    # ---- a launch -------------------------------------------------------------------------------------------------

    def launch(self, job: Job, configuration: Configuration) -> "Launch":
        """The launch of a configuration, exactly as in an experiment. Errors: AutoscoutError (exit 2) for none."""
        raise AutoscoutError(f"there is no export for target = '{self.name}' yet; `autoscout best` shows its knobs", 2)

    def as_measured(self, launch: "Launch", environment: dict[str, str]) -> "Launch":
        """The launch adapted to the versions that it was measured with."""
        return launch

    def formats(self) -> "Mapping[str, Callable[[Launch], str]]":
        """Export formats by name, added to those of every target (or replacing one)."""
        return {}

    def check(self, job: Job, launch: "Launch", form: str) -> float:
        """Starts an exported launch here; returns the seconds until it worked. Errors: AutoscoutError."""
        raise AutoscoutError(f"--check cannot start target = '{self.name}' by itself; run the exported command", 2)

    def soak(self, job: Job, launch: "Launch", form: str) -> float:
        """Like `check`, but long enough to write a checkpoint and to evaluate."""
        raise AutoscoutError(f"--soak cannot run target = '{self.name}' by itself; run the exported command", 2)

    def checkpoint(self, job: Job, now: Configuration, new: Configuration) -> str:
        """What happens to the checkpoint of a training run when it continues as `new` instead of `now`, as the end of a
        sentence; "" if unknown."""
        return ""

    # ---- knowledge ------------------------------------------------------------------------------------------------

    def simulators(self, job: Job) -> "list[Member]":
        """Simulators of the job's objective that need no measured rows."""
        from autoscout.simulate.members import analytic

        return analytic(job.objective.metric, job.task)

    def untold(self, job: Job) -> str:
        """What a job's simulators need but the job does not give, as a clause; "" if nothing."""
        return ""

    def not_modelled(self, job: Job) -> list[str]:
        """Settings of a job, other than knobs, that change speed or memory but that predictions ignore."""
        return []

    def columns(self) -> Mapping[str, str]:
        """Further column names that a table may use → knobs: flags with other names than what the knob sets."""
        return {}

    def readers(self) -> "Mapping[str, Reader]":
        """Readers for results of the engine's own tools, by name, for `autoscout import`."""
        return {}

    def described_by(self, files: list[Path]) -> dict[str, Any] | None:
        """A job file's content from files of another tool, or None if it does not know them. Errors: AutoscoutError
        (exit 2) for known files that cannot be read."""
        return None

    def recognises(self, line: "Line") -> dict[str, Any] | None:
        """A job file's content from the user's own launch line, or None if the line is not this engine's."""
        return None

    def model_of_line(self, line: "Line") -> tuple[dict[str, Any], list[str]]:
        """The [model] that the flags of a line describe, whatever its script is called, and notes on it; {} where they
        give none. Errors: AutoscoutError (exit 2) naming the flags of a model that no job has."""
        return {}, []


def target(name: str) -> Target:
    """Errors: AutoscoutError (exit 2) for an unknown name, (exit 1) for a package that cannot be loaded."""
    known = _entry_points()
    if name not in known:
        raise AutoscoutError(f"target = '{name}'{nearest_name(name, known)}; `autoscout targets` lists all", 2)
    return _loaded(name)


def shipped(name: str) -> "Catalog":
    """The catalog next to a target's code. Errors: AutoscoutError (exit 2)."""
    from autoscout.space.knob import read_catalog

    folder = Path(str(importlib.resources.files(type(target(name)).__module__)))
    return read_catalog(folder / "catalog.toml")


def target_of(job: Job) -> Target:
    return target(job.target)


def reference_of(job: Job | None) -> str:
    """A description of the reference (the configuration with which others are compared); it also works for the journal
    of a target that is not installed here."""
    if job is None:
        return "the reference"
    return (target_of(job) if job.target in names() else Target()).reference(job)


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
        raise AutoscoutError(f"target '{name}' ({found.value}) is not an autoscout.Target")
    return made
