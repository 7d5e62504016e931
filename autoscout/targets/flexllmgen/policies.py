"""A configuration as a policy: its cost by FlexLLMGen's model, and its flags."""

import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from autoscout.running.interpreter import context_of
from autoscout.simulate.member import Columns, Prediction
from autoscout.simulate.serving.offloading import ERROR, GB, Generation, Machine, evaluate
from autoscout.space.attributes import memory_gib
from autoscout.space.graph import Space
from autoscout.targets.launch import Launch
from kb.records import DESIGNED, Configuration, Job, Measurement, Value, shape

_QUARTER = 0.25  # size of a 4-bit weight relative to half precision


def asked(job: Job) -> tuple[Generation, Machine]:
    model, traffic = shape(job.model), job.traffic
    assert isinstance(traffic.input_len, int)
    assert isinstance(traffic.output_len, int)
    generation = Generation(
        prompt=traffic.input_len,
        tokens=traffic.output_len,
        layers=model.layers,
        hidden=model.hidden,
        ffn=model.ffn,
        heads=model.heads,
    )
    return generation, Machine(gpu=memory_gib(job.cluster.nodes[0]) * GB)


def shares(columns: Mapping[str, Any]) -> dict[str, Any]:
    """Knobs in percent → shares of weights, cache and activations on GPU, CPU and disk."""
    wg, wc, cg, cc = (np.asarray(columns[n]) / 100 for n in ("w_gpu", "w_cpu", "c_gpu", "c_cpu"))
    hg = np.asarray(columns["h_gpu"]) / 100
    return {"wg": wg, "wc": wc, "wd": 1 - wg - wc, "cg": cg, "cc": cc, "cd": 1 - cg - cc, "hg": hg, "hc": 1 - hg} | {
        "hd": 0.0 * hg
    }


def costs(job: Job, columns: Mapping[str, Any]) -> dict[str, Any]:
    """Metrics of n policies, (n,) each."""
    generation, machine = asked(job)
    packed = np.asarray(columns.get("compress_weight", False), dtype=bool)
    weight = np.where(packed, _QUARTER, 1.0)
    batch, batches = (np.asarray(columns[n], dtype=float) for n in ("gpu_batch", "gpu_batches"))
    return evaluate(generation, machine, batch, batches, shares(columns), weight)


class CostModel:
    name = "FlexLLMGen's cost model"

    def __init__(self, job: Job) -> None:
        self._job = job

    def applies(self, columns: Columns) -> str:
        return "" if "w_gpu" in columns else "the configuration is no offloading policy"

    def fit(self, columns: Columns, values: np.ndarray) -> None:
        """Not fitted: there are no measurements to fit it on."""

    def predict(self, columns: Columns) -> Prediction:
        found = costs(self._job, columns)
        objective = self._job.objective
        value = np.where(found["fits"], found[objective.metric], np.inf if objective.minimize else 0.0)
        return Prediction(value=np.atleast_1d(value), error=np.full(np.atleast_1d(value).shape, ERROR))


class PolicyProfiler:
    """Evaluates the cost model in place of a run; fidelity is always "predicted"."""

    def __init__(self, job: Job) -> None:
        self._job = job

    def environment(self) -> dict[str, str]:
        return {"recommended": DESIGNED, "model": "FlexLLMGen cost model, constants of a T4"}

    def run(self, configuration: Configuration, name: str, folder: Path) -> Measurement:
        began = time.time()
        found = costs(self._job, configuration.knobs)
        about = self.environment()
        metrics = {metric: float(value) for metric, value in found.items() if metric != "fits"}
        used = ", ".join(f"{metrics[f'{n}_gib']:.1f} GiB of {n}" for n in ("gpu", "cpu", "disk"))
        fits = bool(found["fits"])
        cost = time.time() - began
        return Measurement(
            configuration=configuration,
            name=name,
            context=context_of(self._job, about),
            status="ok" if fits else "oom",
            fidelity="predicted",
            metrics=metrics if fits else {},
            evidence=f"{DESIGNED}; nothing was measured" if fits else f"needs {used}",
            cost_s=cost,
            environment=about,
            at=began + cost,
        )

    def adopt(self, folder: Path) -> Measurement | None:
        """No process that could have finished by itself."""
        return None

    def interrupt(self) -> None:
        """Nothing to interrupt."""

    def close(self) -> None:
        """Nothing to close."""


def in_host_memory(space: Space) -> Iterator[dict[str, Value]]:
    """Policies that fit, best first: all on the GPU, then weights offloaded, then the cache, too; large blocks
    first."""
    job: Job = space.job  # type: ignore[attr-defined]
    places = [(100, 0, 100, 0), (50, 50, 100, 0), (0, 100, 100, 0), (0, 100, 0, 100), (0, 50, 0, 100), (0, 0, 0, 100)]
    for wg, wc, cg, cc in places:
        for batch in (32, 8, 4, 1):
            wanted: dict[str, Value] = {"w_gpu": wg, "w_cpu": wc, "c_gpu": cg, "c_cpu": cc, "h_gpu": 100}
            wanted |= {"gpu_batch": batch, "gpu_batches": 1}
            if bool(costs(job, wanted)["fits"]):
                yield wanted


def launch(job: Job, configuration: Configuration) -> Launch:
    """The command line of its flex_opt.py; the model's name is left to the user."""
    k = configuration.knobs
    percent = [str(k[n]) for n in ("w_gpu", "w_cpu", "c_gpu", "c_cpu", "h_gpu")] + [str(100 - int(k["h_gpu"]))]
    arguments: dict[str, Value | list[str]] = {
        "--percent": percent,
        "--gpu-batch-size": k["gpu_batch"],
        "--num-gpu-batches": k["gpu_batches"],
        "--prompt-len": str(job.traffic.input_len),
        "--gen-len": str(job.traffic.output_len),
    }
    if k.get("compress_weight"):
        arguments["--compress-weight"] = True
    return Launch(
        job=job.name,
        name="",
        evidence="",
        program=["python", "-m", "flexllmgen.flex_opt", "--model", "MODEL"],
        arguments=arguments,
        environment={},
        devices=[1],
        missing=["MODEL, such as facebook/opt-30b"],
    )
