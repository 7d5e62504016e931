"""vLLM as the oracle of its catalog: the configuration of an engine is made, no engine. On CPUs, where we have one."""

import functools
import json
import os
import tempfile
from pathlib import Path

import msgspec
import numpy as np
from agreement import Answers, Verdict, assignments, one_rule_broken

from autoscout.targets.jobs import JobSpace, load_job
from autoscout.targets.vllm.arguments import engine_arguments, model_config
from kb.records import Cluster, Job, LaunchSettings, Model, Node, Objective, SpaceLimits, Traffic, Value

PYTHON = Path(".venv-vllm/bin/python")
BEYOND: dict[str, list[Value]] = {
    "tp": [3, 5],
    "pp": [2],
    "block_size": [3, 16],
    "kv_cache_dtype": ["int8"],
    "long_prefill": [100000],
    "kv_cache_mib": [0],
    "spec": ["oracle"],
    "spec_tokens": [0],
    "max_num_seqs": [0, 4096],
    "max_num_batched_tokens": [0, 16, 32],
}
_LATER = "vLLM refuses it when the engine starts or the model is built, not yet here"
_INERT = "vLLM takes the knob and ignores it here, so we leave it out"
_OURS = "our own choice: all devices serve"
_SAME = "vLLM takes it, and it is the same run as a smaller value's"
LISTED = {
    "inactive": _INERT,
    "domain": "a value that is not offered: vLLM would take it, or refuse it when the engine starts (block sizes)",
    "VP1": _OURS,
    "implied": _OURS,
    "VP3": _LATER,
    "VP4": _LATER,
    "VP8": _LATER,
    "VS3": _SAME,
    "VS4": _SAME,
    "VS6": _SAME,
    "VS7": _SAME,
    "VK2": _LATER,
    "VK3": _SAME,
}


@functools.cache
def verdicts(count: int = 400, seed: int = 0) -> list[Verdict]:
    """Needs .venv-vllm (`make .venv-vllm/ready`)."""
    found = []
    jobs = _jobs()
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    with (
        tempfile.TemporaryDirectory() as folder,
        Answers(str(PYTHON), "vllm_answers.py", environment) as oracle,
    ):
        for i, job in enumerate(jobs):
            space = JobSpace.of_job(job)
            model = Path(folder) / job.name
            model.mkdir()
            (model / "config.json").write_text(json.dumps(model_config(job)))
            rng = np.random.default_rng([seed, i])
            asked = [*assignments(space, count // len(jobs), rng, BEYOND), *one_rule_broken(space, 2, 400, rng)]
            for configuration in asked:
                refused = oracle.ask({"model": str(model), "arguments": engine_arguments(job, configuration)})
                rules = tuple(v.rule for v in space.violations(configuration))
                found.append(Verdict(job.name, space.name(configuration), rules, refused))
    return found


def gpu_refusals(count: int) -> list[str]:
    """What vLLM says to the arguments of valid configurations of a GPU job, on this CPU: it knows their names and
    kinds, and would override what needs a GPU."""
    job = load_job("fixtures/jobs/llama-3-8b-serve.toml")
    job = msgspec.structs.replace(
        job, space=SpaceLimits(), traffic=msgspec.structs.replace(job.traffic, shared_prefix=32)
    )
    space, environment = JobSpace.of_job(job), {**os.environ, "OMP_NUM_THREADS": "1"}
    with tempfile.TemporaryDirectory() as folder, Answers(str(PYTHON), "vllm_answers.py", environment) as oracle:
        (Path(folder) / "config.json").write_text(json.dumps(model_config(job)))
        drawn = [space.sample(np.random.default_rng(i)) for i in range(count)]
        return [r for c in drawn if (r := oracle.ask({"model": folder, "arguments": engine_arguments(job, c)}))]


def _jobs() -> list[Job]:
    plain = Model(layers=2, hidden=128, heads=4, kv_heads=2, ffn=256, vocab=512, gated=True, bias=False)
    odd = Model(layers=3, hidden=192, heads=6, kv_heads=3, ffn=384, vocab=512, gated=True, bias=False, dtype="fp32")
    experts = Model(layers=2, hidden=128, heads=4, vocab=512, gated=True, bias=False, experts=4, expert_ffn=64)
    users = Traffic(concurrency=24, input_len=96, output_len=24, shared_prefix=64)
    arrivals = Traffic(rate=4.0, input_len=[8, 200, 900], output_len=[4, 40, 100])
    shapes = [(plain, users, 1), (plain, arrivals, 2), (odd, users, 3), (experts, arrivals, 2)]
    return [
        Job(
            name=f"random-{i}",
            task="serve",
            target="vllm",
            model=model,
            traffic=traffic,
            cluster=Cluster(nodes=[Node(device="cpu", count=count)]),
            objective=Objective(maximize="output_tokens_per_s"),
            launch=LaunchSettings(python=str(PYTHON)),
        )
        for i, (model, traffic, count) in enumerate(shapes)
    ]
