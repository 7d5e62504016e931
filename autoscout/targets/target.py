"""The base class of targets, the engines that AutoScout can tune.

Each target is a class in a subfolder or in an installed package, which registers it under the entry point group
`autoscout.targets` (AutoScout's own targets are registered in its pyproject.toml). Only `name`, a catalog and
`profiler` are required; the defaults of all other members suffice for a minimal target. Methods import lazily, so that
`autoscout targets` need not wait for numpy."""

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
    from autoscout.targets.model_of_server import ServedModel
    from autoscout.targets.seams import SeamFit
    from autoscout.targets.tracing import ShadowAsked

GROUP = "autoscout.targets"
LEAST_ITERATIONS = 2  # minimum number of iterations per run, regardless of the time limit


class Target:
    name: str = ""
    tasks: tuple[str, ...] = ("pretrain", "finetune", "serve")
    about: str = ""  # description in one line
    designs: bool = False  # whether the target tunes designs of future clusters, which cannot be measured
    needs_model: bool = False  # whether jobs must describe a model and its traffic
    proven: str = ""  # where and with which versions the target was tested; "" if untested
    preset: str = ""  # default preset (line/frameworks) for reading the logs of runs
    packages: tuple[str, ...] = ()  # packages needed in the target's interpreter
    how: str = ""  # how to install the packages
    asked_for: bool = False  # whether `init` creates a job of this target only if the user names the target

    def installed(self) -> dict[str, str]:
        """Returns the versions of `packages` in our own interpreter."""
        found = {}
        for package in self.packages:
            with contextlib.suppress(importlib.metadata.PackageNotFoundError):
                found[package] = importlib.metadata.version(package)
        return found

    def presets(self) -> dict[str, tuple[str, str]]:
        """Returns supported third-party scripts: name → (about, what it was tested with or "")."""
        return {}

    # ---- the job --------------------------------------------------------------------------------------------------

    def metrics(self, job: Job) -> tuple[str, ...]:
        """Returns the metrics that runs report; () if runs may report any metric."""
        from autoscout.job.metrics import metrics_of_task

        return metrics_of_task(job.task)

    def problems(self, job: Job) -> Iterator[str]:
        """Yields a sentence for each setting of a job file that is invalid for this target."""
        yield from ()

    # ---- the space ------------------------------------------------------------------------------------------------

    def catalog(self, job: Job) -> "Catalog":
        """Returns the knobs and rules in the catalog.toml next to the target's code, without those in the user's own
        files.

        Errors: AutoscoutError."""
        return shipped(self.name)

    def adapted(self, catalog: "Catalog", job: Job) -> "Catalog":
        """Returns the catalog adapted to the engine's installed version."""
        return catalog

    def notes(self, catalog: "Catalog", job: Job) -> list[str]:
        """Returns notes for the user on differences between the catalog and the engine's installed version."""
        return []

    def notes_on_job(self, job: Job) -> list[str]:
        """Returns notes for the user that are shown before a job is run."""
        return []

    def refuses_knob(self, knob: "KnobEntry") -> str:
        """Returns why a knob of the user's own catalog cannot be passed to the engine; "" if it can."""
        return ""

    def device_rules(self, kinds: Sequence[str]) -> "list[RuleEntry]":
        """Returns rules on using several kinds of device in a configuration, for a mixed cluster."""
        return []

    def recipes(self, space: "Space") -> Iterator[Configuration]:
        """Yields configurations that the engine's own guides advise for a job, best first. The first one is the
        reference. Errors: AutoscoutError (exit 3) if the space has none."""
        from autoscout.targets.recipes import first, stated

        yield first(space, stated(space), iter([{}]))

    def reference(self, job: Job) -> str:
        """Returns a text for the user that describes the first recipe."""
        if job.launch.current or job.launch.command:
            return "your present launch"
        return "the expert default" if job.model.layers else "the reference"

    # ---- an experiment --------------------------------------------------------------------------------------------

    def profiler(self, job: Job) -> "Profiler":
        """Returns the profiler of a job, without starting anything. Errors: AutoscoutError."""
        raise AutoscoutError(
            f"target = '{self.name}' cannot be profiled yet, so this job cannot be run; only `autoscout space` "
            "and `autoscout explain` work on it",
            2,
        )

    def run_s(self, job: Job, metric: str, value: float) -> float:
        """Returns how many seconds a run takes after its start, given a metric's predicted value; 0 if unknown."""
        if metric != "step_time_s":
            return 0.0
        wanted = min(job.launch.iterations, round(job.launch.measure_s / value))
        return value * (job.launch.warmup + max(LEAST_ITERATIONS, wanted))

    def fit(self, job: Job, environment: dict[str, str]) -> "SeamFit | None":
        """Returns whether the installed engine accepts the calls of our workers; None if that cannot be determined.
        `environment`: result of the profiler's environment(). Errors: AutoscoutError (exit 2) if the engine cannot be
        imported."""
        return None

    def ready(self, job: Job, environment: dict[str, str]) -> str:
        """Returns a note if the engine was queried or tested, because its release is not recorded; else "". Errors:
        AutoscoutError (exit 2) if no experiment could run on it."""
        from autoscout.targets.seams import REMEDY

        found = self.fit(job, environment)
        if found and found.unfit:
            raise AutoscoutError(f"{found.verdict}; {REMEDY}", 2)
        return "" if found is None or found.known else found.verdict

    def audit(self, job: Job | None) -> "Audit":
        """Returns the result of comparing the catalog with what a job's engine accepts (without a job: the engine in
        AutoScout's interpreter). Errors: AutoscoutError."""
        raise AutoscoutError(
            f"{self.name}: the engine cannot be audited yet; `autoscout targets` lists the versions it was tested with",
            2,
        )

    def draft(self, found: "Audit", flags: Sequence[str]) -> str:
        """Returns catalog entries (TOML) for flags without a knob. Errors: AutoscoutError (exit 2) for an unknown
        flag."""
        from autoscout.targets.auditing import draft

        return draft(found, flags)

    def equivalence(self, job: Job) -> "Check":
        """Returns the check that a run is equivalent to the reference. Default: by losses, if runs report any."""
        from autoscout.running.equivalence import IfTold, Losses

        return IfTold(Losses(job.model.dtype))

    def patience(self, job: Job) -> int | None:
        """Returns the number of experiments without improvement after which a search stops (0: never); None for the
        search's default."""
        return None

    def live(self, job: Job) -> Sequence[str]:
        """Returns the knobs that can change between experiments without a new launch."""
        return ()

    def in_turn(self, job: Job, batch: list[Configuration]) -> list[Configuration]:
        """Returns a batch of configurations in the order in which it runs fastest."""
        return batch

    def probe_line(self, job: Job, configuration: Configuration, experiment: Path) -> str:
        """Returns a shell command that runs one experiment, for `--dry-run`; "" if there is none. For several nodes, it
        has a line for each node, or one line for all nodes with the placeholders NODE (0, 1, …) and HEAD (the first
        node's address)."""
        return ""

    def shadow(self, asked: "ShadowAsked") -> "Shadow | ServingShadow":
        """Returns the result of running the engine's own code for some ranks without a device: whether it starts,
        whether it fits in memory, and what it communicates. A serving engine runs under the job's load. Errors:
        AutoscoutError (exit 2) if the engine does not support this."""
        raise AutoscoutError(
            f"target = '{self.name}' does not support shadow runs (without a GPU) yet, only Megatron-core, vLLM and "
            "PyTorch scripts do; use `autoscout predict` or `autoscout profile`",
            2,
        )

    def losing(self, asked: "ShadowAsked") -> "ServingShadow":
        """Returns the result of a shadow run in which some serving engines fail. Errors: AutoscoutError (exit 2) if the
        target does not serve, or no engine would be left."""
        raise AutoscoutError(
            f"--lose ends engines of a server, which target = 'vllm' has and '{self.name}' has not; omit --lose", 2
        )

    def one_device(self, asked: "ShadowAsked") -> "Shadow":
        """Returns the result of a shadow run with kernel times measured on one device, which runs the ranks in turn.
        Communication times are predicted. Errors: AutoscoutError (exit 2) if unsupported, or if no device is free."""
        raise AutoscoutError(f"target = '{self.name}' cannot run on one device yet; only Megatron-core can", 2)

    # ---- designs of future clusters -------------------------------------------------------------------------------

    def outcomes(self, job: Job, columns: "Columns") -> "Mapping[str, np.ndarray]":
        """Returns metric → array of values, one per design in `columns`. Errors: AutoscoutError (exit 2) if the target
        cannot predict many designs at once."""
        raise AutoscoutError(f"{job.name}: target = '{self.name}' cannot evaluate many configurations at once", 2)

    def purchase(self, job: Job, usd: float, watts: float, kb: Path | None, today: Job | None) -> tuple[Any, str]:
        """Returns the fastest cluster within a budget (dollars and watts), as a document and as text. `today`: a
        measured job that calibrates the predictions. Errors: AutoscoutError; exit code 2 if the target designs no
        clusters, 3 if the budget is too small."""
        raise AutoscoutError(
            f'{job.name}: the job has target = "{job.target}", but a cluster can be chosen only for target = "stack"', 2
        )

    # ---- a launch -------------------------------------------------------------------------------------------------

    def launch(self, job: Job, configuration: Configuration) -> "Launch":
        """Returns the launch that runs a configuration as in an experiment. Errors: AutoscoutError (exit 2) if there is
        none."""
        raise AutoscoutError(f"there is no export for target = '{self.name}' yet; `autoscout best` shows its knobs", 2)

    def as_measured(self, launch: "Launch", environment: dict[str, str]) -> "Launch":
        """Returns the launch adapted to the versions with which it was measured."""
        return launch

    def formats(self) -> "Mapping[str, Callable[[Launch], str]]":
        """Returns name → function for further export formats. A format with the name of a common one replaces it."""
        return {}

    def check(self, job: Job, launch: "Launch", form: str) -> float:
        """Starts an exported launch on this machine; returns the seconds until it worked. Errors: AutoscoutError."""
        raise AutoscoutError(f"--check cannot start target = '{self.name}' by itself; run the exported command", 2)

    def soak(self, job: Job, launch: "Launch", form: str) -> float:
        """Like `check`, but runs long enough to write a checkpoint and to evaluate the model."""
        raise AutoscoutError(f"--soak cannot run target = '{self.name}' by itself; run the exported command", 2)

    def checkpoint(self, job: Job, now: Configuration, new: Configuration) -> str:
        """Returns what happens to a training run's checkpoint if the run continues with the configuration `new`, as the
        end of a sentence; "" if unknown."""
        return ""

    # ---- knowledge ------------------------------------------------------------------------------------------------

    def simulators(self, job: Job) -> "list[Member]":
        """Returns simulators of the job's objective that work without measurements."""
        from autoscout.simulate.members import analytic

        return analytic(job.objective.metric, job.task)

    def untold(self, job: Job) -> str:
        """Returns a clause that names what the job lacks for its simulators; "" if nothing."""
        return ""

    def not_modelled(self, job: Job) -> list[str]:
        """Returns settings of a job (other than knobs) that affect speed or memory but are not simulated."""
        return []

    def served(self, job: Job) -> "ServedModel | None":
        """Returns the model that a job serves, and the engine; None if the job serves none."""
        return None

    def servers_of(self, job: Job, model: "ServedModel") -> "Mapping[str, Job | str]":
        """Returns engine → a job that serves the model with it, under the load and on the devices of `job`, or the
        reason why the engine cannot."""
        return {}

    def columns(self) -> Mapping[str, str]:
        """Returns column of an imported table → knob, for columns not named like the flag in the knob's `sets`."""
        return {}

    def readers(self) -> "Mapping[str, Reader]":
        """Returns readers for results of the engine's own tools, by name, for `autoscout import`."""
        return {}

    def described_by(self, files: list[Path]) -> dict[str, Any] | None:
        """Returns a job file's content from files of a different tool; None if the target does not know the format.
        Errors: AutoscoutError (exit 2) for known files that cannot be read."""
        return None

    def recognises(self, line: "Line") -> dict[str, Any] | None:
        """Returns a job file's content from the user's launch line; None if the line starts a different engine."""
        return None

    def model_of_line(self, line: "Line") -> tuple[dict[str, Any], list[str]]:
        """Returns ([model] from the flags of a line, notes), even if the line's script is unknown to the target.
        [model] is {} without such flags. Errors: AutoscoutError (exit 2) naming flags of a model that jobs cannot
        describe."""
        return {}, []


def target(name: str) -> Target:
    """Returns a target by name. Errors: AutoscoutError (exit 2) for an unknown name, (exit 1) for a broken package."""
    known = _entry_points()
    if name not in known:
        raise AutoscoutError(f"target = '{name}'{nearest_name(name, known)}; `autoscout targets` lists all", 2)
    return _loaded(name)


def shipped(name: str) -> "Catalog":
    """Returns the catalog next to a target's code. Errors: AutoscoutError (exit 2)."""
    from autoscout.space.knob import read_catalog

    folder = Path(str(importlib.resources.files(type(target(name)).__module__)))
    return read_catalog(folder / "catalog.toml")


def target_of(job: Job) -> Target:
    return target(job.target)


def reference_of(job: Job | None) -> str:
    """Returns a description of the reference (the baseline configuration), even if the job's target is not installed
    here, for example for a journal from a different machine."""
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
    except Exception as error:  # any exception of a plug-in's code
        raise AutoscoutError(f"target '{name}' ({found.value}) cannot be loaded: {error}") from error
    if not isinstance(made, Target):
        raise AutoscoutError(f"target '{name}' ({found.value}) is not an autoscout.Target")
    return made
