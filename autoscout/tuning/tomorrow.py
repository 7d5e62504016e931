"""Predictions for a cluster that does not exist yet, by the training or serving simulator of a measured job: corrected
by the knowledge base, with an error for a cluster, and perhaps a model, that was never measured."""

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
import numpy as np

from autoscout.simulate import encode
from autoscout.simulate.ensemble import medians
from autoscout.simulate.learned.other_jobs import stacked
from autoscout.simulate.learned.stack import Ensemble
from autoscout.simulate.member import Columns, Member, Prediction
from autoscout.simulate.stack.offers import Cluster
from autoscout.targets.jobs import JobSpace, simulators_of
from kb.records import Cluster as Machines
from kb.records import Configuration, Job, Links, Measurement, Node, Objective, Share, Traffic

_TRAINING, _SERVING = "step_time_s", "e2el_p50_ms"  # the metric that a design's seconds predict
_MOST = 4  # measured jobs: more add nothing or mislead


def elsewhere(corrected: Member, fresh: Member, columns: Columns) -> Prediction:
    """Predicts for clusters outside the rows that corrected the simulator. The error is at least that of the
    uncorrected simulator, however many rows one cluster has (tests/tools/tomorrow_coverage.py)."""
    said = corrected.predict(columns)
    return msgspec.structs.replace(said, error=np.maximum(said.error, fresh.predict(columns).error))


class Tomorrow:
    """`name` of the simulator; `jobs`, `rows`: numbers of jobs and rows it was corrected with."""

    def __init__(self, today: Job, measured: Sequence[tuple[Job, Sequence[Measurement]]]) -> None:
        """`measured`: rows of today's job and of others, nearest first."""
        self._metric = _SERVING if today.task == "serve" else _TRAINING
        as_measured = next((job for job, _ in measured if job.id == today.id), today)  # has its software versions
        self._today = msgspec.structs.replace(as_measured, objective=Objective(minimize=self._metric))
        alike = [(job, *medians(rows, self._metric)) for job, rows in measured if job.target == today.target]
        known = [(job, configurations, values) for job, configurations, values in alike if values][:_MOST]
        members = simulators_of(self._today)[:1]
        self._space = JobSpace.of_job(self._today)
        self._corrected = self._fitted(members[0], known) if members and known else None
        self.jobs, self.rows = len(known), sum(len(values) for _, _, values in known)
        self.name = members[0].name if members else ""

    def _fitted(self, member: Member, known: Sequence[tuple[Job, list[Configuration], list[float]]]) -> Ensemble | None:
        """The corrected simulator. Its error is estimated on held-out rows; from three jobs on, on held-out jobs."""
        columns = stacked([{**encode.of_job(job), **self._knobs(rows, job)} for job, rows, _ in known])
        if member.applies(columns):
            return None
        of = np.repeat([job.id for job, _, _ in known], [len(rows) for _, rows, _ in known])
        ensemble = Ensemble([member])
        ensemble.fit(columns, np.concatenate([values for _, _, values in known]), of)
        return ensemble if ensemble.weights else None

    def _knobs(self, configurations: Sequence[Configuration], of: Job | None = None) -> dict[str, np.ndarray]:
        """Knobs under the training simulator's names."""
        columns = encode.of_configurations(self._space, configurations, of)
        if self._metric == _TRAINING:
            fsdp = [c.knobs.get("fsdp", "none") not in ("none", "off", False) for c in configurations]
            columns["zero"] = np.where(fsdp, 3.0, columns.get("zero", np.zeros(1)))
            columns.setdefault("ar", np.full(len(configurations), "none"))
        return columns

    def prices(self, workload: Job | Share, cluster: Cluster) -> bool:
        layout = {"tp": 1, "pp": 1, "sp": 1, "dp": int(cluster["npus"]), "zero": 0, "mbs": 1, "recompute": False}
        columns = self._columns(workload, cluster, {name: np.array([value]) for name, value in layout.items()})
        return self._corrected is not None and not simulators_of(self._today)[0].applies(columns)

    def says(self, workload: Job | Share, cluster: Cluster, layouts: Mapping[str, np.ndarray]) -> Prediction:
        """(n,) seconds of a step or request, inf where it cannot predict. Links inside an island are the device's,
        between islands the design's."""
        columns, fresh = self._columns(workload, cluster, layouts), simulators_of(self._today)[0]
        found = elsewhere(self._corrected or fresh, fresh, columns)
        seconds = found.value / (1e3 if self._metric == _SERVING else 1.0)
        return Prediction(value=np.where(seconds > 0, seconds, np.inf), error=found.error)

    def _columns(self, workload: Job | Share, cluster: Cluster, layouts: Mapping[str, np.ndarray]) -> dict[str, Any]:
        island, npus = int(cluster["npus_1"]), int(cluster["npus"])
        between = float(cluster["bandwidth_2"]) * island  # GB/s shared by a node's devices
        machines = Machines(
            nodes=[Node(device=str(cluster["device"]), count=island)] * (npus // island),
            network=Links(between_nodes_gbps=8 * between),
        )
        job = msgspec.structs.replace(
            self._today, model=workload.model, traffic=_traffic(workload), task=workload.task, cluster=machines
        )
        laid: dict[str, Any] = {name: layouts[name] for name in ("tp", "pp", "dp")} | {"cp": layouts["sp"]}
        if self._metric == _TRAINING:
            laid |= {"mbs": layouts["mbs"], "ar": np.where(layouts["recompute"], "full", "none")}
            laid |= {"zero": layouts["zero"], "distopt": layouts["zero"] >= 1, "per_node": island}
        absent = {name: column[0] for name, column in self._knobs([Configuration({})]).items()}
        return {**absent, **encode.of_job(job), **laid}


def _traffic(workload: Job | Share) -> Traffic:
    if isinstance(workload, Job):
        return msgspec.structs.replace(workload.traffic, mix=[])
    if workload.task == "serve":
        return Traffic(input_len=workload.seq_len, output_len=workload.output_len, concurrency=workload.concurrency)
    return Traffic(seq_len=workload.seq_len, global_batch=workload.global_batch)
