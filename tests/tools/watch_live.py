"""Times how soon `when --watch` reports a changed load of a real vLLM: docs/lab/testing.md.

PYTHONPATH=. python tests/tools/watch_live.py PYTHON_OF_VLLM CONV.csv.gz CODE.csv.gz

vLLM serves a tiny Llama on CPUs, because only its metrics matter. Requests follow a trace of conversations, then one of
code; lengths are divided by 16, and multiplied by 16 on the metrics page that the watch reads. The winner is that of
watch_rates.py, for which the page is stored."""

import argparse
import json
import re
import subprocess
import tempfile
import time
import urllib.error
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np

from autoscout.deploy.watch_load import EVERY_S, ServerWatch
from autoscout.importing.served_load import reading
from autoscout.job.trace import read_trace
from tests.tools.watch_rates import Stream, tuned

SCALE, PORT = 16, 8951
CONFIG = {
    "model_type": "llama", "architectures": ["LlamaForCausalLM"], "torch_dtype": "float32", "hidden_size": 64,
    "intermediate_size": 128, "num_hidden_layers": 2, "num_attention_heads": 2, "num_key_value_heads": 2,
    "vocab_size": 512, "max_position_embeddings": 1024, "bos_token_id": 0, "eos_token_id": 1,
}  # fmt: skip


def ask(path: str, body: dict[str, object] | None = None) -> str:
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(f"http://127.0.0.1:{PORT}{path}", data, {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=120) as answer:
        return answer.read().decode()


def scaled(page: str) -> str:
    """The metrics page with the trace's original lengths."""
    lengths = r"(vllm:request_(?:prompt|generation)_tokens"
    page = re.sub(lengths + r'_bucket\{.*le=")([\d.e+]+)(?=")', lambda m: f"{m[1]}{SCALE * float(m[2])}", page)
    return re.sub(lengths + r"_sum\{.*\} )(\S+)", lambda m: f"{m[1]}{SCALE * float(m[2])}", page)


def replay(path: str, seconds: float, threads: ThreadPoolExecutor) -> None:
    """Sends the trace's requests at their times."""
    arrivals, inputs, outputs = read_trace(Path(path))
    assert arrivals is not None
    began = time.monotonic()
    for at, prompt, answer in zip(arrivals, inputs, outputs, strict=True):
        if at > seconds:
            return
        time.sleep(max(0.0, began + float(at) - time.monotonic()))
        count = max(1, round(answer / SCALE))
        tokens = np.random.randint(10, 512, max(1, round(prompt / SCALE))).tolist()
        body = {"model": "m", "prompt": tokens, "max_tokens": count, "ignore_eos": True}
        threads.submit(ask, "/v1/completions", body)


def watched(asked: argparse.Namespace, folder: Path) -> None:
    kb = folder / "kb.duckdb"
    watch = ServerWatch(tuned(asked.job, Stream(asked.traces[0]), kb), kb, 60.0)
    with ThreadPoolExecutor(256) as threads, ThreadPoolExecutor(1) as player:
        for path, minutes in zip(asked.traces, asked.minutes, strict=True):
            began = time.monotonic()
            playing = player.submit(replay, path, 60 * minutes, threads)
            while not playing.done():
                time.sleep(EVERY_S)
                if found := watch.see(reading(scaled(ask("/metrics")), "page"), time.monotonic()):
                    print(f"{Path(path).name}: {(time.monotonic() - began) / 60:.1f} min: {found.sentence}", flush=True)
            share = watch.moved.share if watch.moved else 0.0
            print(f"{Path(path).name}: over after {minutes:g} min, {share:.1%} of the threshold", flush=True)
        if asked.page:
            asked.page.write_text(ask("/metrics"))
        threads.shutdown(cancel_futures=True)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("python")
    parser.add_argument("traces", nargs=2)
    parser.add_argument("--minutes", type=float, nargs=2, default=[4.0, 10.0])
    parser.add_argument("--page", type=Path)
    parser.add_argument("--job", default="fixtures/jobs/llama-3.1-8b-serve-azure.toml")
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        made = [asked.python, "autoscout/targets/vllm/worker/model.py", str(folder / "model"), json.dumps(CONFIG)]
        subprocess.run(made, check=True, stdout=subprocess.DEVNULL)
        words = ["-m", "vllm.entrypoints.cli.main", "serve", str(folder / "model"), "--port", str(PORT)]
        words += ["--served-model-name", "m", "--enforce-eager", "--max-num-seqs", "64", "--dtype", "float32"]
        words += ["--gpu-memory-utilization", "0.2"]
        with (folder / "log").open("wb") as log:
            server = subprocess.Popen([asked.python, *words], stdout=log, stderr=log)
        try:
            while True:
                try:
                    ask("/health")
                    break
                except urllib.error.URLError:
                    if server.poll() is not None:
                        raise SystemExit((folder / "log").read_text()[-2000:]) from None
                    time.sleep(2)
            watched(asked, folder)
        finally:
            server.terminate()
            server.wait()


if __name__ == "__main__":
    main()
