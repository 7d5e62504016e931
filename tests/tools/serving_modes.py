"""Compares the modes of running serving experiments on the same configurations: the tables of
docs/lab/serving-measured.md.

    python tests/tools/serving_modes.py round FOLDER [LAUNCHER…]   all configurations once in each mode; repeat it
    python tests/tools/serving_modes.py table FOLDER               prints the tables of all rounds
    python tests/tools/serving_modes.py repeats FOLDER [N]         N fresh engines with the default configuration
    python tests/tools/serving_modes.py bench FOLDER               one server under our load and `vllm bench serve`'s

Needs .venv-vllm. Launchers: "serve" is mode (a), "warm" (b), "reuse" (c).
"""

import json
import math
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from autoscout.running import processes
from autoscout.space.explain import completed, parse
from autoscout.targets.jobs import JobSpace, load_job, profiler_of
from autoscout.targets.vllm import arguments as vllm
from autoscout.targets.vllm import load_plan
from autoscout.targets.vllm import server as serving_server
from autoscout.targets.vllm.load_plan import Pass
from autoscout.targets.vllm.served_model import random_model
from autoscout.tuning.evidence import ratio
from kb.records import Configuration, Job

JOB = "fixtures/jobs/tiny-llama-serve-cpu.toml"
CONFIGURATIONS = (
    "",
    "block_size=32",
    "max_num_seqs=4",
    "max_num_seqs=16 max_num_batched_tokens=256",
    "max_num_batched_tokens=64",
    "block_size=32 max_num_batched_tokens=512",
    "prefix_caching=false",
    "kv_cache_mib=1 block_size=32",
)
MODES = {"warm": "b", "serve": "a", "reuse": "c"}
SHOWN = ("output_tokens_per_s", "ttft_mean_ms", "tpot_mean_ms", "e2el_p99_ms")
WORKER = Path(load_plan.__file__).parent / "worker"


def main() -> None:
    verb, folder, *rest = sys.argv[1:]
    root = Path(folder)
    root.mkdir(parents=True, exist_ok=True)
    job = load_job(JOB)
    if verb == "round":
        _round(job, root, rest or ["warm", "serve"])
    elif verb == "table":
        _table(root)
    elif verb == "repeats":
        _repeats(job, root, int(rest[0]) if rest else 20)
    else:
        _against_vllm_bench(job, root)


def _chosen(job: Job) -> list[Configuration]:
    space = JobSpace.of_job(job)
    default = space.reference
    return [completed(space, parse(space, text.split()), default) for text in CONFIGURATIONS]


def _round(job: Job, root: Path, launchers: list[str]) -> None:
    number = time.time_ns()
    for launcher in launchers:
        profiler = profiler_of(_launched(job, launcher))
        for i, configuration in enumerate(_chosen(job)):
            began = time.monotonic()
            m = profiler.run(configuration, "x", root / f"{number}-{launcher}" / f"{i:04d}")
            took = time.monotonic() - began
            said = {"round": number, "launcher": launcher, "i": i, "status": m.status, "metrics": m.metrics}
            with open(root / "modes.jsonl", "a") as file:
                file.write(json.dumps(said | {"took_s": took, "cost_s": m.cost_s}) + "\n")
            value = m.metrics.get(SHOWN[0], math.nan)
            print(
                f"{launcher} {CONFIGURATIONS[i] or 'default'}: {m.status} {value:.0f} in {m.cost_s:.1f} s", flush=True
            )
        profiler.close()


def _table(root: Path) -> None:
    rows = [json.loads(line) for line in (root / "modes.jsonl").read_text().splitlines()]
    found: dict[tuple[str, int], list[dict[str, Any]]] = {}
    for row in rows:
        found.setdefault((row["launcher"], row["i"]), []).append(row)
    print("| configuration | mode | took s | " + " | ".join(SHOWN) + " | times the default |")
    print("|---|---|---|" + "---|" * (len(SHOWN) + 1))
    launchers = [name for name in MODES if (name, 0) in found]
    for i, text in enumerate(CONFIGURATIONS):
        for launcher in launchers:
            runs = found[launcher, i]
            values = " | ".join(f"{_mean(runs, name):.1f}" for name in SHOWN)
            took = statistics.fmean(r["cost_s"] for r in runs)
            ratio = _ratio(found[launcher, 0], runs)
            print(f"| {text or 'default'} | ({MODES[launcher]}) | {took:.1f} | {values} | {ratio} |")
    for launcher in launchers:
        costs = [r["cost_s"] for i in range(len(CONFIGURATIONS)) for r in found[launcher, i]]
        print(f"mode ({MODES[launcher]}): {60 / statistics.fmean(costs):.1f} profiles a minute")
    for other in launchers[1:]:
        for name in SHOWN:
            means = [[_mean(found[x, i], name) for i in range(len(CONFIGURATIONS))] for x in (launchers[0], other)]
            rank = np.asarray(np.corrcoef([np.argsort(np.argsort(m)) for m in means]))[0, 1]
            best = [CONFIGURATIONS[_best(name, m)] or "default" for m in means]
            factor = statistics.geometric_mean(b / a for a, b in zip(*means, strict=True))
            print(
                f"({MODES[launchers[0]]}) and ({MODES[other]}), {name}: rank correlation {rank:.2f}, on the average "
                f"{factor:.2f} times; best {best[0]} | {best[1]}"
            )


def _best(name: str, means: list[float]) -> int:
    chosen = max if name.endswith("_per_s") else min
    return means.index(chosen(means))


def _mean(runs: list[dict[str, Any]], name: str) -> float:
    return statistics.fmean(r["metrics"].get(name, math.nan) for r in runs)


def _ratio(base: list[dict[str, Any]], runs: list[dict[str, Any]]) -> str:
    """Geometric mean of the throughputs' ratio by round, with its 95 % interval."""
    if base is runs:
        return "1"
    of_round = {r["round"]: r["metrics"][SHOWN[0]] for r in base}
    times, low, high = ratio([r["metrics"][SHOWN[0]] for r in runs], [of_round[r["round"]] for r in runs])
    return f"{times:.2f}" if low is None else f"{times:.2f} ({low:.2f} to {high:.2f})"


def _repeats(job: Job, root: Path, count: int) -> None:
    profiler = profiler_of(_launched(job, "warm"))
    began = time.monotonic()
    default = _chosen(job)[0]
    found = [profiler.run(default, "x", root / f"repeats-{time.time_ns()}" / f"{i:04d}") for i in range(count)]
    profiler.close()
    for name in ("output_tokens_per_s", "ttft_mean_ms", "tpot_mean_ms", "e2el_p99_ms"):
        values = [m.metrics[name] for m in found]
        spread = statistics.stdev(values) / statistics.fmean(values)
        print(
            f"{count} fresh engines, {name}: mean {statistics.fmean(values):.4g}, coefficient of variation {spread:.1%}"
        )
    cost = sum(m.cost_s for m in found)
    print(f"{60 * count / cost:.1f} profiles a minute ({time.monotonic() - began:.0f} s with the import)", flush=True)


def _against_vllm_bench(job: Job, root: Path) -> None:
    """Compares our load with `vllm bench serve`'s, without a shared prefix, which they draw differently."""
    configuration = _chosen(job)[0]
    traffic = msgspec.structs.replace(job.traffic, shared_prefix=0)
    job = msgspec.structs.replace(_launched(job, "serve"), traffic=traffic)
    port = processes.free_port()
    arguments, model = vllm.engine_arguments(job, configuration), random_model(job)
    folder = root / "bench"
    folder.mkdir(parents=True, exist_ok=True)
    plan = load_plan.plan(job) | {"passes": 1}
    given = {"plan": plan, "served_name": vllm.SERVED_NAME, "known": {}}
    (folder / "experiment.json").write_text(json.dumps(given))
    url = f"http://127.0.0.1:{port}"
    environ = {"HF_HUB_OFFLINE": "1", **vllm.environment_variables(job)}
    with open(folder / "launcher.log", "wb") as log:
        server = subprocess.Popen(
            processes.leashed(vllm.serve_command(job, model, arguments, port)),
            stdout=log,
            stderr=log,
            start_new_session=True,
            env=serving_server.variables(environ),
        )
    try:
        while not serving_server.healthy(port) and server.poll() is None:
            time.sleep(0.5)
        print("| by | " + " | ".join(SHOWN) + " |\n|---|" + "---|" * len(SHOWN))
        for turn in range(3):
            _ours(job, folder, url)
            _theirs(job, folder, url, model, turn)
    finally:
        processes.end(server, 10.0)


def _ours(job: Job, folder: Path, url: str) -> None:
    command = [job.launch.python, str(WORKER / "client.py"), str(folder / "experiment.json"), url, "0"]
    subprocess.run(command, check=True, timeout=600)
    passes = json.loads((folder / "rank-0.json").read_bytes())["passes"]
    found = load_plan.metrics(msgspec.convert(passes, list[Pass]), job)
    print("| ours | " + " | ".join(f"{found[name]:.1f}" for name in SHOWN) + " |", flush=True)


def _theirs(job: Job, folder: Path, url: str, model: str, seed: int) -> None:
    traffic = job.traffic
    command = [
        *(job.launch.python, "-m", "vllm.entrypoints.cli.main", "bench", "serve", "--base-url", url),
        *("--model", vllm.SERVED_NAME, "--tokenizer", model, "--dataset-name", "random", "--seed", str(seed)),
        *("--random-input-len", str(traffic.input_len), "--random-output-len", str(traffic.output_len)),
        *("--num-prompts", str(traffic.requests), "--max-concurrency", str(traffic.concurrency), "--ignore-eos"),
        *("--num-warmups", str(traffic.requests), "--percentile-metrics", "ttft,tpot,itl,e2el"),
        *("--save-result", "--result-dir", str(folder), "--result-filename", "theirs.json"),
    ]
    subprocess.run(command, check=True, timeout=600, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    said = json.loads((folder / "theirs.json").read_bytes())
    found = [said["output_throughput"], said["mean_ttft_ms"], said["mean_tpot_ms"], said["p99_e2el_ms"]]
    print("| `vllm bench serve` | " + " | ".join(f"{value:.1f}" for value in found) + " |", flush=True)


def _launched(job: Job, launcher: str) -> Job:
    return msgspec.structs.replace(job, launch=msgspec.structs.replace(job.launch, launcher=launcher, timeout_s=200.0))


if __name__ == "__main__":
    main()
