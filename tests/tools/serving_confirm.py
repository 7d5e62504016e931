"""The winner of a session against the default, by vLLM's own benchmark: the exported commands are started as they are,
and each is loaded by `vllm bench serve`, in turns.

    python tests/tools/serving_confirm.py KB SESSION [ROUNDS]      needs .venv-vllm
"""

import json
import math
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

from autoscout import export
from autoscout.confirm import _T95
from autoscout.profile import serving_check, serving_profiler
from autoscout.session import session_started
from kb.records import Job

_SHOWN = ("output_throughput", "mean_ttft_ms", "mean_tpot_ms", "p99_e2el_ms")


def main() -> None:
    kb, session = Path(sys.argv[1]), sys.argv[2]
    rounds = int(sys.argv[3]) if len(sys.argv) > 3 else 3
    started = session_started(kb, session)
    job = started.job
    winner = export.of_session(kb, session, [])
    default = export.launch(job, started.default, "default", "the expert default")
    found: dict[str, list[dict[str, float]]] = {"winner": [], "default": []}
    print("| exported command of | " + " | ".join(_SHOWN) + " |\n|---|" + "---|" * len(_SHOWN))
    for number in range(rounds):
        turns = [("winner", winner), ("default", default)]
        for name, launch in turns if number % 2 == 0 else turns[::-1]:
            said = _benched(job, launch)
            found[name].append(said)
            print(f"| {name} | " + " | ".join(f"{said[metric]:.1f}" for metric in _SHOWN) + " |", flush=True)
    logs = [math.log(w[_SHOWN[0]] / d[_SHOWN[0]]) for w, d in zip(found["winner"], found["default"], strict=True)]
    mean = statistics.fmean(logs)
    half = _T95[len(logs) - 1] * statistics.stdev(logs) / math.sqrt(len(logs)) if len(logs) > 1 else math.inf
    print(
        f"{winner.name}: {math.exp(mean):.2f} times the output tokens a second of the default "
        f"(95 % interval {math.exp(mean - half):.2f} to {math.exp(mean + half):.2f}, {rounds} rounds)"
    )


def _benched(job: Job, launch: export.Launch) -> dict[str, float]:
    """The median of three runs of `vllm bench serve` on a server that the exported command has started."""
    model = job.launch.model_path or serving_profiler.random_model(job)
    with serving_check.serving(job, launch, "command") as (port, _), tempfile.TemporaryDirectory() as folder:
        runs = [_bench(job, model, port, Path(folder), seed) for seed in range(3)]
    return {metric: statistics.median(run[metric] for run in runs) for metric in _SHOWN}


def _bench(job: Job, model: str, port: int, folder: Path, seed: int) -> dict[str, float]:
    """The load of the job: what all requests begin with, and the rest, which is each one's own."""
    traffic = job.traffic
    assert isinstance(traffic.input_len, int)
    command = [
        *(job.launch.python, "-m", "vllm.entrypoints.cli.main", "bench", "serve", "--port", str(port)),
        *("--model", model, "--dataset-name", "random", "--seed", str(seed), "--ignore-eos"),
        *("--random-prefix-len", str(traffic.shared_prefix)),
        *("--random-input-len", str(traffic.input_len - traffic.shared_prefix)),
        *("--random-output-len", str(traffic.output_len), "--num-prompts", str(4 * traffic.requests)),
        *("--max-concurrency", str(traffic.concurrency), "--num-warmups", str(traffic.requests)),
        *("--percentile-metrics", "ttft,tpot,itl,e2el", "--save-result", "--result-dir", str(folder)),
        *("--result-filename", "theirs.json"),
    ]
    subprocess.run(command, check=True, timeout=300, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    return json.loads((folder / "theirs.json").read_bytes())


if __name__ == "__main__":
    main()
