"""Shadow of an RL iteration: vLLM's own schedulers, KV caches and prefix caches generate all answers of an iteration
on a simulated clock (targets/vllm/serving_shadow.py); log-probabilities, update and new weights take the predicted time
(simulate/iteration). Phases alternate, so the iteration is their sum."""

from typing import Any

import msgspec
import numpy as np

from autoscout.simulate.encode import of_configurations, of_job
from autoscout.simulate.iteration.iteration import STEPPED, Iteration
from autoscout.simulate.iteration.rollouts import lengths, split
from autoscout.simulate.shadow.served import ServedTrace, ServingShadow
from autoscout.targets.jobs import JobSpace, simulators_of
from autoscout.targets.target import target_of
from autoscout.targets.tracing import ShadowAsked
from autoscout.targets.vllm import load_plan, serving_shadow
from kb.records import AutoscoutError, Configuration, Job, Objective, Traffic

_PARTS = ("logprobs", "update", "weights")
STOOD_IN = (
    "the trainer: the time of log-probabilities, update and new weights is predicted",
    "answers, whose lengths are those that the job states",
)


def shadow(asked: ShadowAsked) -> ServingShadow:
    """Returns the serving shadow of the rollout, with the phases of the iteration. Errors: AutoscoutError (exit 2) if
    nothing can predict the iteration, or its rollouts are not vLLM's, or overlap with updates."""
    space = JobSpace.of_job(asked.job)
    columns = {**of_job(asked.job), **of_configurations(space, [asked.configuration])}
    _refuse(asked.job, columns)
    serving, configuration = _server(asked.job, columns)
    question = serving_shadow.question_of(serving, configuration)
    question["plan"] |= _answers(asked.job, columns, int(configuration.knobs["dp"]))
    server = msgspec.structs.replace(asked, job=serving, configuration=configuration)
    found, versions, known = serving_shadow.traced(server, question)
    base = serving_shadow.summarised(server, found, versions, known)
    base = msgspec.structs.replace(
        base,
        job=asked.job.name,
        configuration=asked.configuration.knobs,
        stood_in=[*base.stood_in, *STOOD_IN],
    )
    return base if found.verdict != "starts" else _composed(asked.job, columns, base, found)


def _refuse(job: Job, columns: dict[str, Any]) -> None:
    (member,) = simulators_of(job) or [None]
    why = target_of(job).untold(job) if member is None else member.applies(columns)
    if member is None or why:
        raise AutoscoutError(f"a shadow of an RL iteration needs its prediction, but {why}; use `autoscout profile`", 2)
    if _one(columns, "roll_engine") != "vllm":
        raise AutoscoutError(
            "the trainer's own `generate` samples answers, which needs real tensors, so only iterations whose answers "
            "vLLM generates have a shadow (without a GPU); use `autoscout predict` or `autoscout profile`",
            2,
        )
    if float(_one(columns, "lag", 0.0)) > 0:
        raise AutoscoutError(
            "unfinished answers continue in the next iteration, which a shadow of one iteration does not show; use "
            "`autoscout predict`",
            2,
        )


def _one(columns: dict[str, Any], name: str, otherwise: Any = "") -> Any:
    return np.atleast_1d(columns.get(name, otherwise))[0]


def _server(job: Job, columns: dict[str, Any]) -> tuple[Job, Configuration]:
    """Returns the serving job whose load is an iteration's answers, and the engines' configuration."""
    answers, longest = int(_one(columns, "answers")), int(_one(columns, "longest"))
    prompt, _ = lengths(job.traffic, longest, 1)
    serving = msgspec.structs.replace(
        job,
        target="vllm",
        task="serve",
        traffic=Traffic(concurrency=answers, requests=answers, input_len=prompt, output_len=[1, longest]),
        objective=Objective(maximize="output_tokens_per_s"),
        space=msgspec.structs.replace(job.space, fix={}, limit={}, allow=[], knob=[], rule=[], catalog=[]),
        launch=msgspec.structs.replace(job.launch, script="", current="", command="", metrics={}, warmup=0),
    )
    tp = int(_one(columns, "roll_tp", 1))
    knobs = {
        "tp": tp,
        "dp": max(int(_one(columns, "gpus", job.devices)) // tp, 1),
        "gpu_memory_utilization": float(_one(columns, "roll_share", 0.9)),
        "max_num_seqs": int(_one(columns, "roll_seqs", 256)),
        "max_num_batched_tokens": int(_one(columns, "roll_tokens", 8192)),
        "eager": bool(_one(columns, "roll_eager", 0)),
    }
    reference = JobSpace.of_job(serving).reference
    return serving, Configuration({**reference.knobs, **knobs})


def _answers(job: Job, columns: dict[str, Any], engines: int) -> dict[str, Any]:
    """Returns the plan's requests: each answer's length, and a prompt that the answers of a group share, which one
    engine generates (engines get requests in turn)."""
    answers, group = int(_one(columns, "answers")), max(int(_one(columns, "group", 1)), 1)
    prompt, each = lengths(job.traffic, int(_one(columns, "longest")), answers)
    order = np.random.default_rng(0).permutation(answers)
    return {
        "input_len": [prompt] * answers,
        "output_len": each[order].tolist(),
        "blocks": [[i // engines // group * engines + i % engines] for i in range(answers)],
        "block_tokens": prompt,
    }


def _composed(job: Job, columns: dict[str, Any], base: ServingShadow, found: ServedTrace) -> ServingShadow:
    requests = msgspec.convert(found.passes[-1]["requests"], list[load_plan.TimedRequest])
    ends = {number: sorted(r.chunks[-1] for r in requests if r.engine == number) for number in range(base.engines)}
    last = max(filter(None, ends.values()), key=lambda each: each[-1])
    steady, tail = split(np.array(last), min(len(last), int(_one(columns, "roll_seqs", 256))))
    (member,) = simulators_of(job)
    predicted = member.predict(columns)
    phases = {"rollout": STEPPED * steady, "tail": STEPPED * tail}
    phases |= {name: float(np.broadcast_to(predicted.parts[name], 1)[0]) for name in _PARTS}
    whole = sum(phases.values())
    usual = sum(float(np.broadcast_to(seconds, 1)[0]) for seconds in predicted.parts.values())
    rate = float(predicted.value[0])
    value = rate * whole / usual if isinstance(member, Iteration) else rate * usual / whole
    metrics = {"step_time_s": whole, **{f"{name}_s": seconds for name, seconds in phases.items()}}
    sentence = (
        f"starts; an iteration takes {whole:.4g} s, {phases['rollout'] + phases['tail']:.4g} of them for the rollout; "
        f"{found.preemptions} preemptions"
    )
    return msgspec.structs.replace(
        base, sentence=sentence, metrics={**base.metrics, **metrics, job.objective.metric: value}, phases=phases
    )
