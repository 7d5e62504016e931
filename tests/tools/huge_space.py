"""CPU time (one core) and memory of the search in spaces whose valid configurations cannot be listed.

    PYTHONPATH=. python tests/tools/huge_space.py [--steps 60] [--seeds 3]      a table in Markdown, for docs/spaces.md

Each job runs in its own process. Measurements are the simulator's predictions with 2 % noise; configurations that it
predicts to be out of memory fail with this status."""

import argparse
import json
import os
import resource
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT))

JOBS = {  # model, nodes of 8 H100, sequence, batch
    "Qwen3-30B-A3B on 64 H100": ("qwen3-30b-a3b", 8, 4096, 512),
    "Qwen3-235B-A22B on 512 H100": ("qwen3-235b-a22b", 64, 4096, 4096),
    "DeepSeek-V3-like on 256 H100": ("deepseek-v3-like", 32, 4096, 2048),
}


def timed(work: Callable[[], Any]) -> float:
    """CPU seconds of a call."""
    begin = time.process_time()
    work()
    return time.process_time() - begin


def measure(name: str, steps: int, seeds: int) -> dict[str, float]:
    import msgspec
    import numpy as np

    from autoscout.job.presets import models
    from autoscout.search.strategy import strategy
    from autoscout.simulate.ensemble import Simulators, memory_of
    from autoscout.space.explain import explain
    from autoscout.targets.jobs import JobSpace
    from autoscout.tuning.predict import predict
    from kb.records import Cluster, Configuration, Job, LaunchSettings, Measurement, Model, Node, Objective, Traffic

    model, nodes, seq_len, batch = JOBS[name]
    job = Job(
        name="huge",
        target="megatron",
        objective=Objective(minimize="step_time_s", constraints=["peak_memory_gib <= 76"]),
        model=msgspec.convert(models()[model], Model),
        traffic=Traffic(seq_len=seq_len, global_batch=batch),
        cluster=Cluster(nodes=[Node(device="h100", count=8)] * nodes),
        launch=LaunchSettings(transformer_engine=True),
    )
    space = JobSpace.of_job(job)
    found: dict[str, float] = {"valid": float(space.count)}
    found["recipes"] = timed(lambda: space.recipes)
    given = space.sample(np.random.default_rng(1)).knobs
    simulators = Simulators(job, space, [])
    found["first prediction"] = timed(lambda: predict(space, given, None))
    found["prediction"] = timed(lambda: [predict(space, given, None) for _ in range(5)]) / 5
    found["prediction, space made anew"] = timed(lambda: predict(JobSpace.of_job(job), given, None))
    found["explanation"] = timed(lambda: explain(space, {"tp": 3}, space.reference))
    rng = np.random.default_rng(0)
    wanted = [space.sample(rng).knobs for _ in range(20)]
    found["nearest"] = timed(lambda: [space.nearest({**w, "tp": 3}) for w in wanted]) / 20
    memory = memory_of(job, space, [])
    assert memory is not None

    def gib_of(configuration: Configuration) -> float:
        return float(memory.predict(simulators.columns([configuration])).value[0])

    first, all_steps, failed, early = [], [], 0, 0
    for seed in range(seeds):
        noise = np.random.default_rng(seed)
        made: list[Any] = []

        def begin(seed: int = seed, made: list[Any] = made) -> None:
            made.append(strategy("autoscout", space, seed=seed, simulators=simulators.predictors(space)))
            made.append(made[0].ask())

        first.append(timed(begin))
        chosen, asked = made
        for step in range(steps):
            (configuration,) = asked
            value = simulators.predict(configuration)[0]
            status = "ok" if np.isfinite(value) else "oom"
            failed += status == "oom"
            early += status == "oom" and step < 20
            seconds = value * float(np.exp(0.02 * noise.standard_normal()))
            metrics = {"step_time_s": seconds, "peak_memory_gib": gib_of(configuration)} if status == "ok" else {}
            told = Measurement(
                configuration=configuration, name="", context="", status=status, metrics=metrics,
                evidence="CUDA out of memory" if status == "oom" else "",
            )  # fmt: skip

            def go_on(told: Measurement = told, chosen: Any = chosen, made: list[Any] = made) -> None:
                chosen.tell([told])
                made[1] = chosen.ask()

            all_steps.append(timed(go_on))
            asked = made[1]
            if not asked:
                break
    found["first proposal"] = max(first)
    found["step, median"], found["step, mean"] = statistics.median(all_steps), statistics.mean(all_steps)
    found["step, p95"], found["step, most"] = float(np.quantile(all_steps, 0.95)), max(all_steps)
    found["oom"], found["oom in the first 20"] = failed / len(all_steps), early / (20 * seeds)
    found["MiB"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--job", choices=JOBS, help="this one only, as JSON")
    options = parser.parse_args()
    if options.job:
        print(json.dumps(measure(options.job, options.steps, options.seeds)))
        return
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
    rows = {}
    for name in JOBS:
        command = [
            sys.executable,
            __file__,
            "--job",
            name,
            "--steps",
            str(options.steps),
            "--seeds",
            str(options.seeds),
        ]
        done = subprocess.run(command, capture_output=True, text=True, env=environment, cwd=ROOT)
        if done.returncode:
            raise SystemExit(done.stderr)
        rows[name] = json.loads(done.stdout.splitlines()[-1])
    columns = list(next(iter(rows.values())))
    print("| job |", " | ".join(columns), "|")
    print("|---" * (len(columns) + 1) + "|")
    for name, row in rows.items():
        print(f"| {name} |", " | ".join(_shown(column, row[column]) for column in columns), "|")


def _shown(column: str, value: float) -> str:
    if column == "valid":
        return f"{value:.2g}"
    if column == "MiB":
        return f"{value:.0f}"
    if column.startswith("oom"):
        return f"{value:.0%}"
    return f"{value * 1000:.0f} ms"


if __name__ == "__main__":
    main()
