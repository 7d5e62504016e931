"""Compares the winner of a session with the default by vLLM's benchmark: the exported commands are run unchanged,
alternately, under the load of `vllm bench serve`.

    python tests/tools/serving_confirm.py KB SESSION FILE    appends a round to FILE. Needs .venv-vllm
"""

import json
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

from autoscout.deploy import export
from autoscout.targets.vllm import check as serving_check
from autoscout.targets.vllm.served_model import model_folder
from autoscout.tuning.evidence import ratio
from kb import store
from kb.records import Job

_SHOWN = ("output_throughput", "mean_ttft_ms", "mean_tpot_ms", "p99_e2el_ms")


def main() -> None:
    kb, session, file = Path(sys.argv[1]), sys.argv[2], Path(sys.argv[3])
    started = store.session_started(kb, session)
    _, winner = export.of_session(kb, session, [])
    default = export.launch(started.job, started.default, "default", "the expert default")
    done = json.loads(file.read_text()) if file.exists() else []
    turns = [("winner", winner), ("default", default)]
    done.append({name: _benched(started.job, launch) for name, launch in (turns if len(done) % 2 else turns[::-1])})
    file.write_text(json.dumps(done))
    print("| exported command of | " + " | ".join(_SHOWN) + " |\n|---|" + "---|" * len(_SHOWN))
    for said in done:
        for name, found in said.items():
            print(f"| {name} | " + " | ".join(f"{found[metric]:.1f}" for metric in _SHOWN) + " |")
    times, low, high = ratio(*([said[name][_SHOWN[0]] for said in done] for name in ("winner", "default")))
    interval = "one round has no interval" if low is None else f"95 % interval {low:.2f} to {high:.2f}"
    print(
        f"{winner.name}: {times:.2f} times the output tokens a second of the default ({interval}, {len(done)} rounds)"
    )


def _benched(job: Job, launch: export.Launch) -> dict[str, float]:
    """Mean metrics of two runs of `vllm bench serve` on a server started by the exported command."""
    model = model_folder(job)
    with serving_check.serving(job, launch, "command") as (port, *_), tempfile.TemporaryDirectory() as folder:
        runs = [_bench(job, model, port, Path(folder), seed) for seed in range(2)]
    return {metric: statistics.fmean(run[metric] for run in runs) for metric in _SHOWN}


def _bench(job: Job, model: str, port: int, folder: Path, seed: int) -> dict[str, float]:
    """Runs the benchmark with the job's load: a prefix shared by all requests, and a different rest of each."""
    traffic = job.traffic
    assert isinstance(traffic.input_len, int)
    command = [
        *(job.launch.python, "-m", "vllm.entrypoints.cli.main", "bench", "serve", "--port", str(port)),
        *("--model", model, "--dataset-name", "random", "--seed", str(seed), "--ignore-eos"),
        *("--random-prefix-len", str(traffic.shared_prefix)),
        *("--random-input-len", str(traffic.input_len - traffic.shared_prefix)),
        *("--random-output-len", str(traffic.output_len), "--num-prompts", str(20 * traffic.requests)),
        *("--max-concurrency", str(traffic.concurrency), "--num-warmups", str(traffic.requests)),
        *("--percentile-metrics", "ttft,tpot,itl,e2el", "--save-result", "--result-dir", str(folder)),
        *("--result-filename", "theirs.json"),
    ]
    subprocess.run(command, check=True, timeout=300, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    return json.loads((folder / "theirs.json").read_bytes())


if __name__ == "__main__":
    main()
