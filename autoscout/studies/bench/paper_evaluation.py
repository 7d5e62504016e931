"""Repeats the evaluation of the AutoScout paper (§4) on landscapes from AutoScout's models of its four jobs.

Figures 4-7: the best configuration found and the number of experiments needed, compared with UDO, CherryPick, Metis and
expert defaults. Figure 8: ablations. Figure 9: number K of trees in the tournament. Figure 10: spaces of increasing
size. Figure 11: noise on the simulators. Strategy `paper` is Algorithm 1 as published, with the paper's simulators
(four linear regressions); `autoscout` is this project's default.

The spaces have the knobs of the paper's Table 1; all other settings are an expert's (see `_limits`). The paper's
degrees are powers of two; these spaces also include 3, 6 and 12, without which no layout would use all 12 devices."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Literal

import msgspec
import numpy as np

from autoscout.space.attributes import device_counts
from autoscout.studies.bench.every import run_all
from autoscout.studies.bench.job_landscape import landscape
from autoscout.studies.bench.landscape import Landscape
from autoscout.studies.bench.run import BenchRun, BenchSettings
from autoscout.targets.jobs import JobSpace, load_job
from autoscout.targets.megatron.expert import advised
from autoscout.targets.target import target_of
from kb.records import Job, SpaceLimits, Value

Scope = Literal["3dp", "5dp", "full"]

TRAINING = {"qwen3-30b-a3b": "Figure 4", "llama-3.2-3b": "Figure 5", "llama-3.1-nemotron-nano-8b": "Figure 6"}
SERVING = {"llama-3-8b-serve": "Figure 7"}
FIGURES = ("4", "5", "6", "7", "8", "9", "10", "11")
ABLATED = "qwen3-30b-a3b"
LINEAR = "linear"

_OF_3DP = ("tp", "pp", "dp", "mbs")  # knobs of 3D parallelism, besides the number of devices of each kind
_OF_5DP = (*_OF_3DP, "cp", "ep", "sp")
_OF_TABLE_1 = (*_OF_5DP, "ar", "distopt", "ddp_bucket", "tp_comm")
_FIXED: dict[str, Value] = {  # values of knobs outside of a scope, which need little memory, so that every job can run
    **{"vpp": 1, "etp": 1, "dispatcher": "alltoall", "overlap_p2p": False, "ar_method": "uniform", "ar_layers": 1},
    **{"overlap_grad": True, "overlap_param": True, "tp_comm_overlap": True, "permute_fusion": True, "ce_fusion": True},
    **{"cp": 1, "ep": 1, "sp": True, "ar": "full", "distopt": True, "ddp_bucket": 8, "tp_comm": 16},
}
_LIMITED: dict[str, list[Value]] = {"ar": ["none", "full"], "ddp_bucket": [1, 2, 4, 8], "mbs": [1, 2, 4, 8]}
_SERVING_FIXED: dict[str, Value] = {"quantization": "none", "spec": "none", "kv_offload": 0.0, "long_prefill": 0}


class Comparison(msgspec.Struct, frozen=True, kw_only=True):
    """Strategies to compare on the landscape of `job`, restricted to the knobs of `scope`; `simulator`: "" for none."""

    figure: str
    job: str
    scope: Scope = "full"
    simulator: str = ""
    strategies: list[str]

    @property
    def landscape(self) -> str:
        return " ".join(part for part in (self.job, self.scope, self.simulator) if part)


def comparisons() -> list[Comparison]:
    found = []
    for job, figure in {**TRAINING, **SERVING}.items():
        found.append(Comparison(figure=figure, job=job, strategies=["autoscout", "paper", "udo", "cherrypick"]))
        simulated = ["autoscout", "paper", "metis"]
        found.append(Comparison(figure=figure, job=job, simulator=LINEAR, strategies=simulated))
    parts = ["paper", "paper:dense=false", "paper:bandit=false", "autoscout"]
    parts += [f"autoscout:{part}=false" for part in ("sparse", "dense", "effects")]
    found.append(Comparison(figure="Figure 8", job=ABLATED, simulator=LINEAR, strategies=parts))
    found.append(Comparison(figure="Figure 8", job=ABLATED, strategies=["paper", "autoscout"]))
    trees = [f"paper:k={k}" for k in (0, 1, 5, 10, 20, 40)]
    found.append(Comparison(figure="Figure 9", job=ABLATED, simulator=LINEAR, strategies=trees))
    both = ["paper", "autoscout"]
    scopes: tuple[Scope, ...] = ("3dp", "5dp", "full")
    found += [
        Comparison(figure="Figure 10", job=ABLATED, scope=scope, simulator=LINEAR, strategies=both) for scope in scopes
    ]
    for noise in ("", "+40", "+80"):
        found.append(Comparison(figure="Figure 11", job=ABLATED, simulator=LINEAR + noise, strategies=both))
    return found


class Results(msgspec.Struct, frozen=True, kw_only=True):
    """The results of the evaluation. `runs`: by (landscape, strategy). `experts`: by job, the metric of the expert's
    configuration on all devices and on the faster ones."""

    settings: BenchSettings
    seeds: int
    landscapes: dict[str, Landscape]
    runs: dict[tuple[str, str], list[BenchRun]]
    experts: dict[str, tuple[float, float]]


def evaluate(
    seeds: int,
    settings: BenchSettings,
    folder: Path | None = None,
    figures: Sequence[str] = (),
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> Results:
    """Executes the runs of the given figures (default: all). Runs that several figures need are executed once."""
    wanted = [c for c in comparisons() if not figures or c.figure.removeprefix("Figure ") in figures]
    strategies: dict[str, dict[str, None]] = {}
    landscapes: dict[str, Landscape] = {}
    for c in wanted:
        strategies.setdefault(c.landscape, {}).update(dict.fromkeys(c.strategies))
        if c.landscape not in landscapes:
            simulators = [c.simulator] if c.simulator else []
            landscapes[c.landscape] = landscape(job_of(c.job, c.scope), simulators, c.landscape)
    total = sum(len(names) for names in strategies.values()) * seeds
    runs: dict[tuple[str, str], list[BenchRun]] = {}
    before = 0
    for name, chosen in strategies.items():
        done = run_all(
            [landscapes[name]],
            list(chosen),
            seeds,
            settings,
            folder,
            progress=lambda at, _, before=before: progress(before + at, total),
        )
        before += len(chosen) * seeds
        for strategy in chosen:
            runs[name, strategy] = [r for r in done if r.strategy == strategy]
    experts = {}
    for c in wanted:
        land = landscapes[c.landscape]
        job = job_of(c.job, c.scope)
        _, *slower = device_counts(job)
        alone: dict[str, Value] = dict.fromkeys(slower, 0)
        experts.setdefault(c.job, (expert_value(job, land, {}), expert_value(job, land, alone)))
    return Results(settings=settings, seeds=seeds, landscapes=landscapes, runs=runs, experts=experts)


def job_of(name: str, scope: Scope) -> Job:
    job = load_job(name)
    if job.task == "serve":  # the serving model supports a single kind of device
        cluster = msgspec.structs.replace(job.cluster, nodes=job.cluster.nodes[:1])
        return msgspec.structs.replace(job, cluster=cluster, space=SpaceLimits(fix=_SERVING_FIXED))
    launch = msgspec.structs.replace(job.launch, transformer_engine=True)  # required by tp_comm
    return msgspec.structs.replace(job, launch=launch, space=_limits(job, scope))


def _limits(job: Job, scope: Scope) -> SpaceLimits:
    free = (*device_counts(job), *{"3dp": _OF_3DP, "5dp": _OF_5DP, "full": _OF_TABLE_1}[scope])
    knobs = JobSpace.of_job(msgspec.structs.replace(job, space=SpaceLimits())).knob
    return SpaceLimits(
        fix={name: _FIXED.get(name, knob.values[0]) for name, knob in knobs.items() if name not in free},
        limit={name: values for name, values in _LIMITED.items() if name in knobs and name in free},
    )


def expert_value(job: Job, land: Landscape, firm: dict[str, Value]) -> float:
    """The metric of the first configuration that runs, in the order in which an expert would try configurations.
    `firm`: fixed knobs."""
    advice = target_of(job).recipes(land.space) if job.task == "serve" else advised(land.space, firm)
    for configuration in advice:
        value = land.truth[land.space.feasible.index(configuration) or 0]
        if np.isfinite(value):
            return float(value)
    return float("nan")
