"""The launcher "reuse": one engine for configurations that differ only in settings that vLLM can change at run time.

The engine is built with the largest values in the space, and each experiment sets its own. To verify the results, the
first reuse and every eighth one afterwards are also measured on a new engine. If the two results disagree, the knob
whose value is furthest below the engine's is no longer changed at run time. Each value of this knob then gets its own
engine."""

import math
from typing import Any

from autoscout.running import equivalence
from autoscout.targets.jobs import JobSpace
from autoscout.targets.vllm import arguments as vllm
from kb.records import Configuration, Job, Measurement, content_hash

LIVE = {"max_num_seqs": "max_num_seqs", "max_num_batched_tokens": "max_num_batched_tokens", "long_prefill": ""}
_EVERY = 8  # one of this many reuses is verified on a new engine
_TOLERANCE = 0.15  # allowed relative difference of the objective's metric; repetitions on new engines differ by 4 %


class Reuse:
    def __init__(self, job: Job) -> None:
        self._job = job
        space = JobSpace.of_job(job)
        self._largest = {
            name: max(int(v) for v in space.knob[name].values if not isinstance(v, str))
            for name, argument in LIVE.items()
            if argument and name in space.knob
        }
        self.refused: dict[str, str] = {}  # knob → why it is no longer changed at run time
        self._reused = 0

    def ceiling(self, configuration: Configuration) -> dict[str, Any]:
        """Returns the limits with which an engine is built, so that it can be set to the configuration at run time. {}
        if no knob can be set, or if memory is measured (an engine with larger limits uses more memory)."""
        objective = self._job.objective
        asked = " ".join([objective.metric, *objective.constraints, *objective.also])
        if "peak_memory_gib" in asked:
            return {}
        largest = {n: v for n, v in self._largest.items() if n in configuration.knobs and n not in self.refused}
        if "max_num_batched_tokens" in largest:
            least = largest.get("max_num_seqs", configuration.knobs.get("max_num_seqs", 1))
            largest["max_num_batched_tokens"] = max(largest["max_num_batched_tokens"], int(least))
        elif "max_num_seqs" in largest:  # each request has at least one token in a step
            largest["max_num_seqs"] = min(
                largest["max_num_seqs"], int(configuration.knobs.get("max_num_batched_tokens", math.inf))
            )
        return {LIVE[name]: value for name, value in largest.items()}

    def due(self) -> bool:
        """Whether this reuse must be verified."""
        self._reused += 1
        return self._reused % _EVERY == 1

    def disagreement(self, reused: Measurement, fresh: Measurement) -> str:
        """Returns a description of how the two results differ; "" if they agree. If they differ, the responsible knob
        is no longer changed at run time."""
        problem = self._differ(reused, fresh)
        if not problem:
            return ""
        knobs = reused.configuration.knobs
        changed = {n: int(knobs[n]) / top for n, top in self._largest.items() if n in knobs and n not in self.refused}
        if changed:
            blamed = min(changed, key=changed.__getitem__)
            self.refused[blamed] = problem
            problem += f"; each further value of {blamed} gets a new engine"
        return problem

    def _differ(self, reused: Measurement, fresh: Measurement) -> str:
        if reused.status != fresh.status:
            return f"status {reused.status} ({reused.evidence}) on a reused engine, but {fresh.status} on a fresh one"
        if reused.status != "ok":
            return ""
        metric = self._job.objective.metric
        one, other = reused.metrics.get(metric), fresh.metrics.get(metric)
        if one is None or other is None:
            return "" if one == other else f"{metric}: {one} on a reused engine, {other} on a fresh one"
        if abs(one / other - 1) > _TOLERANCE:
            return f"{metric} was {one:.4g} on a reused engine and {other:.4g} on a fresh one"
        answers = equivalence.Answers().compare(fresh, reused)
        return f"on a reused engine {answers}" if answers else ""


def key(job: Job, configuration: Configuration, ceiling: dict[str, Any]) -> str:
    """Returns a key that is equal for configurations that can share an engine."""
    arguments = vllm.engine_arguments(job, configuration) | ceiling
    return content_hash({k: v for k, v in arguments.items() if k != "long_prefill_token_threshold" or not ceiling})


def in_turn(job: Job, batch: list[Configuration]) -> list[Configuration]:
    """Returns the batch reordered so that configurations that share an engine are adjacent. Groups are in the order of
    their first configurations."""
    if job.launch.launcher != "reuse":
        return batch
    kinds = [tuple((n, v) for n, v in c.knobs.items() if n not in LIVE) for c in batch]
    return [batch[i] for i in sorted(range(len(batch)), key=lambda i: (kinds.index(kinds[i]), i))]
