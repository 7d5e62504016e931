"""The same configurations in both modes, and under `vllm bench serve`: the tables of docs/serving.md.

    python tests/tools/serving_modes.py FOLDER [REPEATS]      needs .venv-vllm

Mode (a) is a fresh `vllm serve` loaded over HTTP, (b) an engine in a warm fork. Then one server is loaded in turns by
our client and by `vllm bench serve`, with the same number of requests, lengths and users.
"""

import json
import statistics
import subprocess
import sys
import time
from pathlib import Path

import msgspec

from autoscout.job import load_job
from autoscout.profile import load, processes, serving_server, vllm
from autoscout.profile.load import Pass
from autoscout.profile.serving_profiler import VllmProfiler
from autoscout.rivals.expert import expert_default
from autoscout.space.explain import completed, parse
from autoscout.space.graph import Space
from kb.records import Configuration, Job

JOB = "fixtures/jobs/tiny-llama-serve-cpu.toml"
CONFIGURATIONS = ["", "block_size=32", "max_num_seqs=4", "prefix_caching=false", "kv_cache_mib=1 block_size=32"]
SHOWN = ("output_tokens_per_s", "ttft_mean_ms", "tpot_mean_ms", "e2el_p99_ms")
WORKER = Path(load.__file__).parent / "worker_vllm"


def main() -> None:
    root = Path(sys.argv[1])
    repeats = int(sys.argv[2]) if len(sys.argv) > 2 else 5
    job = load_job(JOB)
    space = Space.of_job(job)
    default = expert_default(space)
    chosen = [completed(space, parse(space, text.split()), default) for text in CONFIGURATIONS]
    _modes(job, space, chosen, root)
    _repeats(job, chosen[0], root, repeats)
    _against_vllm_bench(job, chosen[0], root)


def _modes(job: Job, space: Space, chosen: list[Configuration], root: Path) -> None:
    print("| configuration | mode | took s | " + " | ".join(SHOWN) + " |")
    print("|---|---|---|" + "---|" * len(SHOWN))
    for launcher, mode in (("warm", "b"), ("serve", "a")):
        profiler = VllmProfiler(_launched(job, launcher))
        for i, configuration in enumerate(chosen):
            m = profiler.run(configuration, space.name(configuration), root / launcher / f"{i:04d}")
            values = " | ".join(f"{m.metrics[name]:.1f}" if name in m.metrics else m.status for name in SHOWN)
            print(f"| {CONFIGURATIONS[i] or 'default'} | ({mode}) | {m.cost_s:.1f} | {values} |", flush=True)
        profiler.close()


def _repeats(job: Job, configuration: Configuration, root: Path, count: int) -> None:
    profiler = VllmProfiler(_launched(job, "warm"))
    began = time.monotonic()
    found = [profiler.run(configuration, "x", root / "repeats" / f"{i:04d}") for i in range(count)]
    profiler.close()
    for name in ("output_tokens_per_s", "tpot_mean_ms", "cpu_s"):
        values = [m.metrics[name] for m in found]
        spread = statistics.stdev(values) / statistics.fmean(values)
        print(
            f"{count} repeats of the default in mode (b): {name} mean {statistics.fmean(values):.4g}, CV {spread:.1%}"
        )
    cost = sum(m.cost_s for m in found)
    print(f"{60 * count / cost:.1f} profiles a minute ({time.monotonic() - began:.0f} s with the import)", flush=True)


def _against_vllm_bench(job: Job, configuration: Configuration, root: Path) -> None:
    """Both load the server that ran last; the shared prefix is left out, since the two draw it differently."""
    job = msgspec.structs.replace(
        _launched(job, "serve"), traffic=msgspec.structs.replace(job.traffic, shared_prefix=0)
    )
    given = json.loads((root / "serve" / "0000" / "experiment.json").read_bytes())
    port = serving_server.free_port()
    arguments = vllm.engine_arguments(job, configuration)
    folder = root / "bench"
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "experiment.json").write_bytes(
        msgspec.json.encode({**given, "plan": load.plan(job) | {"measure_s": 0.0, "passes": 1}, "known": {}})
    )
    url = f"http://127.0.0.1:{port}"
    with open(folder / "launcher.log", "wb") as log:
        server = subprocess.Popen(
            processes.leashed(vllm.serve_command(job, given["model"], arguments, port)),
            stdout=log,
            stderr=log,
            start_new_session=True,
            env=serving_server.variables(given["environment"]),
        )
    try:
        while not serving_server.healthy(port) and server.poll() is None:
            time.sleep(0.5)
        print("\n| by | " + " | ".join(SHOWN) + " |\n|---|" + "---|" * len(SHOWN))
        for turn in range(3):
            _ours(job, folder, url)
            _theirs(job, folder, url, given["model"], turn)
    finally:
        processes.end(server, 10.0)


def _ours(job: Job, folder: Path, url: str) -> None:
    command = [job.launch.python, str(WORKER / "client.py"), str(folder / "experiment.json"), url]
    subprocess.run(command, check=True, timeout=600)
    passes = json.loads((folder / "rank-0.json").read_bytes())["passes"]
    found = load.metrics(msgspec.convert(passes, list[Pass]), job)
    print("| ours | " + " | ".join(f"{found[name]:.1f}" for name in SHOWN) + " |", flush=True)


def _theirs(job: Job, folder: Path, url: str, model: str, seed: int) -> None:
    traffic = job.traffic
    command = [
        *(job.launch.python, "-m", "vllm.entrypoints.cli.main", "bench", "serve", "--base-url", url),
        *("--model", vllm.SERVED_NAME, "--tokenizer", model, "--dataset-name", "random", "--seed", str(seed)),
        *("--random-input-len", str(traffic.input_len), "--random-output-len", str(traffic.output_len)),
        *("--num-prompts", str(traffic.requests), "--max-concurrency", str(traffic.concurrency), "--ignore-eos"),
        *("--num-warmups", str(traffic.concurrency), "--percentile-metrics", "ttft,tpot,itl,e2el"),
        *("--save-result", "--result-dir", str(folder), "--result-filename", "theirs.json"),
    ]
    subprocess.run(command, check=True, timeout=600, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    said = json.loads((folder / "theirs.json").read_bytes())
    found = [said["output_throughput"], said["mean_ttft_ms"], said["mean_tpot_ms"], said["p99_e2el_ms"]]
    print("| `vllm bench serve` | " + " | ".join(f"{value:.1f}" for value in found) + " |", flush=True)


def _launched(job: Job, launcher: str) -> Job:
    return msgspec.structs.replace(job, launch=msgspec.structs.replace(job.launch, launcher=launcher, timeout_s=400.0))


if __name__ == "__main__":
    main()
