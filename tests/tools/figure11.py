"""The paper's Figure 11 on an analytic landscape: noise of 0, 40 and 80 % injected into the simulators.

    python -m tests.tools.figure11 [SEEDS]

The truth is the analytic training model of llama-3.2-3b on 8 A100 (16,189 valid configurations; 15,815 keep the job's
limit on memory, 13 of these are within 1 % of the best), measured with 1 % noise; the simulators are learned ones only,
fitted on 300 rows of it beforehand. Their noise is additive in proportion to the value, predicted · (1 + noise · z),
with one z per configuration and seed, so that asking again does not average it away.
"""

import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

import msgspec
import numpy as np

from autoscout.job.objective import constraint
from autoscout.search.hyper import Hyper
from autoscout.search.strategy import strategy
from autoscout.simulate import encode
from autoscout.simulate.ensemble import Predictor, Simulators, medians
from autoscout.simulate.learned.stack import Ensemble
from autoscout.simulate.members import with_learned
from autoscout.simulate.training.memory import Memory
from autoscout.simulate.training.step import Training
from autoscout.space.codes import INACTIVE
from autoscout.space.graph import Space
from autoscout.targets.jobs import JobSpace, load_job
from autoscout.tuning.evaluator import Evaluator
from autoscout.tuning.tape import Tape
from kb.journal import Checked, FidelitySwitched, Journal
from kb.records import Configuration, Job, Measurement, SpaceLimits, Value
from tests.autoscout.landscape import driven

NAME = "llama-3.2-3b"
FIXED: dict[str, Value] = {"a40": 0, "cp": 1}
NOISES = (0.0, 0.4, 0.8)
BUDGET = 100  # experiments
LEAST = 0.02  # of a prediction: no step takes less


class Landscape:
    """The space, and of every configuration the noise-free seconds, and GiB; `best`: the least seconds of those that
    keep the job's constraint."""

    def __init__(self) -> None:
        self.job = load_job(Path(f"fixtures/jobs/{NAME}.toml"))
        self.space = JobSpace.of_job(msgspec.structs.replace(self.job, space=SpaceLimits(fix=FIXED)))
        columns = {**encode.of_job(self.job), **self.space.feasible.columns()}
        self.seconds, self.gib = Training().predict(columns).value, Memory().predict(columns).value
        metric, _, most = constraint(self.job.objective.constraints[0])
        assert metric == "peak_memory_gib"
        self.kept = self.gib <= most
        self.best = float(self.seconds[self.kept].min())

    def row(self, configuration: Configuration) -> int:
        row = self.space.feasible.index(configuration)
        assert row is not None
        return row

    def regret(self, configuration: Configuration) -> float:
        """How far its noise-free seconds are above the best, as a fraction; inf where it breaks the constraint."""
        row = self.row(configuration)
        return float(self.seconds[row]) / self.best - 1 if self.kept[row] else np.inf

    def measure(self, configuration: Configuration, seed: int, times: int = 0) -> Measurement:
        """`times`: how often it was measured before."""
        row = self.row(configuration)
        noise = 0.01 * np.random.default_rng([seed, times, int(configuration.id, 16)]).standard_normal()
        seconds = float(self.seconds[row] * np.exp(noise))
        return Measurement(
            configuration=configuration,
            name=self.space.name(configuration),
            context="figure 11",
            status="ok",
            metrics={self.job.objective.metric: seconds, "peak_memory_gib": float(self.gib[row])},
        )

    def history(self, rows: int = 300) -> list[Measurement]:
        chosen = np.random.default_rng(5).choice(len(self.seconds), rows, replace=False)
        return [self.measure(self.space.feasible.configuration(int(i)), 0) for i in chosen]


class Noisy(Simulators):
    """Learned members only, as the analytic one is the truth here; every prediction is off by its own noise."""

    def __init__(self, job: Job, space: Space, rows: list[Measurement], noise: float, seed: int) -> None:
        super().__init__(job, space, rows, published=True)
        self.noise, self.seed = noise, seed
        self.ensemble = Ensemble(with_learned([]))
        configurations, values = medians(rows, job.objective.metric)
        self.ensemble.fit(self.columns(configurations), np.array(values))

    def predict(self, configuration: Configuration) -> tuple[float, dict[str, float]]:
        value, members = super().predict(configuration)
        return value * self._factor(configuration), members

    def predictors(self, space: Space | None = None) -> dict[str, Predictor]:
        knobs = self.space.knobs

        def of(row: np.ndarray) -> Configuration:
            return Configuration({k.name: k.values[c] for k, c in zip(knobs, row, strict=True) if c != INACTIVE})

        def predict(codes: np.ndarray) -> np.ndarray:
            return self.ensemble.predict({**self.attributes, **self.space.feasible.columns(codes)}).value * np.array(
                [self._factor(of(c)) for c in codes]
            )

        return {"ensemble": predict}

    def _factor(self, configuration: Configuration) -> float:
        z = np.random.default_rng([self.seed, int(configuration.id, 16)]).standard_normal()
        return max(LEAST, 1 + self.noise * float(z))


class Run(msgspec.Struct):
    to_1_percent: int | None  # experiments until a profiled configuration was so near to the optimum
    regret: float  # of the best profiled one at the end
    recommended: float  # the same of the one recommended
    checks: int
    mape: float  # at the last check
    switched: str  # why fidelity went over to profiling, "" if it did not


def search(
    landscape: Landscape, name: str, noise: float, seed: int, history: list[Measurement], budget: int = BUDGET
) -> Run:
    """One search of so many experiments; only what was profiled counts."""
    space, job, hyper = landscape.space, landscape.job, Hyper(patience=budget)
    profiled: list[Configuration] = []
    events = []

    def profile(configuration: Configuration, purpose: str) -> Measurement:
        profiled.append(configuration)
        return landscape.measure(configuration, seed + 1, profiled.count(configuration))

    with tempfile.TemporaryDirectory() as folder:
        tape = Tape(Journal(Path(folder) / "journal.jsonl"), [], events.append)
        default = space.reference
        stand_in = name != "autoscout"
        evaluator = make_evaluator(noise, seed)(
            job, space, tape, lambda m: m, [("", m) for m in history], "adaptive", hyper, "", default, stand_in
        )
        simulators = None if stand_in else evaluator.predictors(space)
        chosen = strategy(name, space, seed, default, hyper=hyper, simulators=simulators)
        step = 0
        while len(profiled) < budget and (asked := chosen.ask()):
            step += 1
            if getattr(chosen, "repeats", None):  # the end of the budget: front-runners are measured again
                chosen.tell([driven(evaluator.run_now(c, again=True), profile) for c in asked])
                continue
            told, switched = driven(evaluator.evaluate(asked, step), profile)
            if switched:
                chosen.switch_to_profiling()
            chosen.tell(told)
    checks = [e for e in events if isinstance(e, Checked)]
    switches = [e.why for e in events if isinstance(e, FidelitySwitched)]
    regret = np.minimum.accumulate([landscape.regret(c) for c in profiled])
    recommended = chosen.recommend()
    return Run(
        to_1_percent=reached(regret, 0.01),
        regret=float(regret[-1]),
        recommended=np.inf if recommended is None else landscape.regret(recommended),
        checks=len(checks),
        mape=checks[-1].mape if checks else 0.0,
        switched=switches[0] if switches else "",
    )


def make_evaluator(noise: float, seed: int) -> Callable[..., Evaluator]:
    class WithNoise(Evaluator):
        def _fit(self):
            return Noisy(self.job, self.space, self._training, noise, seed)

    return WithNoise


def reached(regret: np.ndarray, within: float) -> int | None:
    hits = np.flatnonzero(regret <= within)
    return int(hits[0]) + 1 if len(hits) else None


def main() -> None:
    seeds = int(sys.argv[1]) if len(sys.argv) > 1 else 10
    landscape = Landscape()
    known = landscape.history()
    header = ("strategy", "noise", "experiments to 1 %", "ended within 1 %", "regret", "recommended within 1 %")
    print("| " + " | ".join((*header, "guard switched", "MAPE")) + " |")
    print("|---" * (len(header) + 2) + "|")
    for name in ("paper", "autoscout"):
        for noise in NOISES:
            runs = [search(landscape, name, noise, seed, known) for seed in range(seeds)]
            erred = sum("more than ε" in run.switched for run in runs)
            print(
                f"| {name} | {noise:.0%} | {median([r.to_1_percent for r in runs])} | "
                f"{sum(r.regret <= 0.01 for r in runs)} of {seeds} | {np.median([r.regret for r in runs]):.1%} | "
                f"{sum(r.recommended <= 0.01 for r in runs)} of {seeds} | "
                f"{erred} of {seeds} | {np.median([r.mape for r in runs]):.0%} |",
                flush=True,
            )


def median(counts: list[int | None]) -> str:
    found = float(np.median([c if c is not None else np.inf for c in counts]))
    return f"{found:.0f}" if np.isfinite(found) else f"over {BUDGET}"


if __name__ == "__main__":
    main()
