"""Compares vLLM's shadow (dry run) with real runs on this CPU. The shadow's step times are a linear fit to the steps of
other configurations, or the real ones (the tables of docs/lab/serving-shadow.md; takes some minutes).

    PYTHONPATH=. python tests/tools/serving_shadow_accuracy.py [PYTHON of vLLM]
"""

import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from autoscout.space.explain import parse
from autoscout.targets.jobs import JobSpace, load_job
from autoscout.targets.vllm import arguments, load_plan
from autoscout.targets.vllm.served_model import random_model
from autoscout.targets.vllm.serving_shadow import once
from kb.records import Configuration, Job, Traffic
from tui.text import table

_JOB = "fixtures/jobs/tiny-llama-serve-cpu.toml"
_MIB = 2**20
_MIXED: dict[str, Any] = {"input_len": [4, 24, 64, 70, 255], "output_len": [2, 6, 9, 25, 62], "requests": 96}
LOADS = {
    "24 users": Traffic(concurrency=24, input_len=96, output_len=24, shared_prefix=64, requests=96),
    "8 users, mixed": Traffic(concurrency=8, **_MIXED),
    "10 a second, mixed": Traffic(rate=10.0, **_MIXED),
}
BLOCKS = (32,)
# Step times are fitted to these configurations, for each block size, and tested on the others.
LEARNED = ("max_num_seqs=8 max_num_batched_tokens=512", "max_num_seqs=32 max_num_batched_tokens=128")
LEARNED_LOADS = ("24 users", "8 users, mixed")
HELD = (
    "max_num_seqs=32 max_num_batched_tokens=2048",
    "max_num_seqs=4 max_num_batched_tokens=2048",
    "max_num_seqs=16 max_num_batched_tokens=256",
    "max_num_seqs=16 max_num_batched_tokens=64",
    "max_num_seqs=32 max_num_batched_tokens=2048 kv_cache_mib=2",
)
METRICS = ("ttft_mean_ms", "ttft_p99_ms", "tpot_mean_ms", "e2el_p99_ms", "output_tokens_per_s")


def main() -> None:
    python = sys.argv[1] if len(sys.argv) > 1 else ".venv-vllm/bin/python"
    whole = load_job(_JOB)
    whole = msgspec.structs.replace(whole, launch=msgspec.structs.replace(whole.launch, python=python))
    jobs = {name: msgspec.structs.replace(whole, traffic=traffic) for name, traffic in LOADS.items()}
    learned = [(block, load, knobs) for block in BLOCKS for load in LEARNED_LOADS for knobs in LEARNED]
    held = [(block, load, knobs) for block in BLOCKS for load in LOADS for knobs in HELD]
    real = _asked(python, [_real(jobs[load], block, knobs) for block, load, knobs in [*learned, *held]])
    fits = {
        block: _fit([run["steps"] for (b, _, _), run in zip(learned, real, strict=False) if b == block])
        for block in BLOCKS
    }
    runs = real[len(learned) :]
    shadows = []
    for (block, load, knobs), run in zip(held, runs, strict=True):
        question = {**_real(jobs[load], block, knobs), "kind": "shadow"}
        question |= {"memory": question["arguments"]["kv_cache_memory_bytes"]}
        question["plan"] = once(question["plan"])
        shadows += [{**question, **fits[block]}, {**question, "steps": run["steps"]}]
    told = _asked(python, shadows)
    rows, errors = [], {"fitted": [], "replayed": []}
    for i, ((block, load, knobs), run) in enumerate(zip(held, runs, strict=True)):
        fitted, replayed = told[2 * i], told[2 * i + 1]
        job = jobs[load]
        of = {name: _metrics(said, job) for name, said in (("real", run), ("fitted", fitted), ("replayed", replayed))}
        # the pass whose step times are replayed
        last = {"fitted": of["real"], "replayed": _metrics({"passes": run["passes"][-1:]}, job)}
        for name, found in errors.items():
            if name == "fitted" or not replayed["other"]:  # otherwise steps do not correspond
                found.append([of[name][metric] / last[name][metric] - 1 for metric in METRICS])
        cells = [f"{of['real'][m]:.4g} / {of['fitted'][m]:.4g}" for m in ("ttft_mean_ms", "tpot_mean_ms")]
        counts = [f"{run['counts'][n]} / {fitted['counts'][n]}" for n in ("preemptions", "cached", "steps")]
        alike = "all" if not replayed["other"] else f"{replayed['other']} not"
        blocks = f"{run['blocks']} / {fitted['blocks']}"
        rows.append((load, f"block {block} {knobs}", *cells, *counts, blocks, alike))
    print(table(rows, ("load", "configuration", "TTFT", "TPOT", "preempted", "cached", "steps", "blocks", "replayed")))
    for name, found in errors.items():
        each = np.array(found)
        for metric, column in zip(METRICS, each.T, strict=True):
            size = np.abs(column)
            print(
                f"{name}, {len(each)} rows, {metric}: mean {size.mean():.1%}, median {np.median(size):.1%}, "
                f"worst {size.max():.1%}, bias {column.mean():+.1%}"
            )


def _real(job: Job, block: int, knobs: str) -> dict[str, Any]:
    space = JobSpace.of_job(job)
    given = parse(space, [f"block_size={block}", *knobs.split()])
    configuration = Configuration({**space.reference.knobs, **given})
    return {
        "kind": "real",
        "model": random_model(job),
        "arguments": arguments.engine_arguments(job, configuration),
        "plan": {**load_plan.plan(job), "passes": 3},
    }


def _fit(runs: list[list[list[float]]]) -> dict[str, list[float]]:
    """Least squares of relative errors over the steps of several runs; the host's times are fitted to medians."""
    steps = np.array([step for run in runs for step in run])
    seqs, tokens, pairs, decodes, context, forward, host = steps.T
    ones = np.ones(len(steps))
    of = np.stack([ones, tokens + decodes, pairs, seqs + decodes, context], axis=1)
    host_of = np.stack([ones, seqs + decodes], axis=1)
    return {
        "forward": np.linalg.lstsq(of / forward[:, None], ones, rcond=None)[0].tolist(),
        "own": np.linalg.lstsq(host_of, host, rcond=None)[0].tolist(),
    }


def _metrics(said: dict[str, Any], job: Job) -> dict[str, float]:
    return load_plan.metrics(msgspec.convert(said["passes"], list[load_plan.Pass]), job)


def _asked(python: str, questions: list[dict[str, Any]]) -> list[dict[str, Any]]:
    with tempfile.TemporaryDirectory() as folder:
        asked, answer = Path(folder) / "asked.json", Path(folder) / "answer.json"
        asked.write_text(json.dumps(questions))
        script = Path(__file__).with_name("shadow_recorder.py")
        subprocess.run([python, str(script), str(asked), str(answer)], check=True)
        return json.loads(answer.read_text())


if __name__ == "__main__":
    main()
