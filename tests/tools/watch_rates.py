"""Simulates how soon `when --watch` reports a changed load, and its false alarms: docs/lab/testing.md.

PYTHONPATH=. python tests/tools/watch_rates.py METRICS CONV.csv.gz CODE.csv.gz

METRICS: the /metrics page of a running vLLM. Every five seconds, it is rewritten with the counters of the trace's
requests and read as by the command; minutes of the trace are drawn in random order, for 24 hours."""

import argparse
import math
import re
import tempfile
from collections.abc import Iterator
from pathlib import Path

import msgspec
import numpy as np

from autoscout.deploy.watch_load import EVERY_S, ServerWatch
from autoscout.deploy.when import Winner
from autoscout.importing.served_load import reading
from autoscout.job.lengths import quantiles
from autoscout.job.trace import read_trace
from autoscout.targets.jobs import JobSpace, load_job
from autoscout.tuning.best_predicted import ranking
from kb.records import Configuration

Requests = tuple[np.ndarray, np.ndarray]  # tokens of prompts and of answers
_LENGTHS = ("request_prompt_tokens", "request_generation_tokens")


class Page:
    """A recorded /metrics page with our own histograms of lengths."""

    def __init__(self, text: str) -> None:
        own = re.compile(rf"vllm:({'|'.join(_LENGTHS)})_(bucket|sum|count)")
        self._lines = [line for line in text.splitlines() if not own.match(line)]
        found = re.findall(r'vllm:request_prompt_tokens_bucket\{.*le="([^"]+)"', text)
        self._ends = [math.inf if end == "+Inf" else float(end) for end in found]
        self._counts = {name: np.zeros(len(found)) for name in _LENGTHS}
        self._sums = dict.fromkeys(_LENGTHS, 0.0)

    def serve(self, requests: Requests) -> str:
        lines = list(self._lines)
        for name, lengths in zip(_LENGTHS, requests, strict=True):
            self._counts[name] += [(lengths <= end).sum() for end in self._ends]
            self._sums[name] += float(lengths.sum())
            start, where = lines.index(next(x for x in lines if x.startswith(f"# TYPE vllm:{name} "))), '{engine="0"'
            for end, count in reversed([*zip(self._ends, self._counts[name], strict=True)]):
                le = "+Inf" if math.isinf(end) else str(end)
                lines.insert(start + 1, f'vllm:{name}_bucket{where},le="{le}"}} {count}')
            lines.insert(start + 1, f"vllm:{name}_sum{where}}} {self._sums[name]}")
        return "\n".join(lines) + "\n"


class Stream:
    """A random sequence of a trace's minutes."""

    def __init__(self, path: str) -> None:
        arrivals, self.inputs, self.outputs = read_trace(Path(path))
        assert arrivals is not None
        self.rate, self._second = len(arrivals) / float(arrivals[-1]), arrivals % 60
        minute = (arrivals // 60).astype(int)
        self._minutes = [np.flatnonzero(minute == m) for m in range(int(arrivals[-1] // 60))]

    def readings(self, rng: np.random.Generator, hours: float, often: float, longer: float) -> Iterator[Requests]:
        """Yields the requests between readings, with `often` times the requests and answers `longer` times as long."""
        for _ in range(round(60 * hours)):
            rows = self._minutes[int(rng.integers(len(self._minutes)))]
            for part in range(round(60 / EVERY_S)):
                now = rows[(self._second[rows] // EVERY_S).astype(int) == part]
                now = np.repeat(now, int(often) + (rng.random(len(now)) < often % 1))
                yield self.inputs[now], np.maximum(1, np.rint(longer * self.outputs[now]))


def tuned(job_file: str, stream: Stream, kb: Path) -> Winner:
    """The predicted best configuration under the stream's load."""
    job = load_job(Path(job_file))
    lengths = {"input_len": quantiles(stream.inputs.tolist()), "output_len": quantiles(stream.outputs.tolist())}
    traffic = msgspec.structs.replace(job.traffic, rate=stream.rate, concurrency=0, **lengths)
    objective = msgspec.structs.replace(job.objective, minimize="tpot_mean_ms", maximize="", constraints=[])
    job = msgspec.structs.replace(job, traffic=traffic, objective=objective)
    best = ranking(JobSpace.of_job(job), job, kb, 1).best[0]
    return Winner(job=job, name=best.name, configuration=Configuration(best.configuration), measured=[], spent_s=3600.0)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("page", type=Path)
    parser.add_argument("traces", nargs=2)
    parser.add_argument("--job", default="fixtures/jobs/llama-3.1-8b-serve-azure.toml")
    parser.add_argument("--hours", type=float, default=24.0)
    asked = parser.parse_args()
    usual, other = (Stream(path) for path in asked.traces)
    changes = {
        "none": None,
        "the other trace": (other, 1.0, 1.0),
        "twice the requests": (usual, 2.0, 1.0),
        "half the requests": (usual, 0.5, 1.0),
        "1.5 times the requests": (usual, 1.5, 1.0),
        "answers twice as long": (usual, 1.0, 2.0),
        "answers half as long": (usual, 1.0, 0.5),
    }
    print("| change | told before it | minutes to what is told | winner's cost / that of the best |\n|---|---|---|---|")
    with tempfile.TemporaryDirectory() as folder:
        kb = Path(folder) / "kb.duckdb"
        winner = tuned(asked.job, usual, kb)
        for number, (words, change) in enumerate(changes.items()):
            rng, watch, page = (
                np.random.default_rng((51, number)),
                ServerWatch(winner, kb, 60.0),
                Page(asked.page.read_text()),
            )
            false, told, now = 0, None, 0.0
            for requests in usual.readings(rng, asked.hours if change is None else 2.0, 1.0, 1.0):
                now += EVERY_S
                false += watch.see(reading(page.serve(requests), "page"), now) is not None
            if change is None:
                print(f"| {words}, {asked.hours:g} hours | {false - 1} | | |", flush=True)
                continue
            began, (stream, often, longer) = now, change
            for requests in stream.readings(rng, 1.0, often, longer):
                now += EVERY_S
                if told := watch.see(reading(page.serve(requests), "page"), now):
                    break
            delay = f"{(now - began) / 60:.1f}" if told else "not in 60"
            gain = watch.answer.gain if watch.answer else None
            print(f"| {words} | {false - 1} | {delay} | {f'{gain:.2f}' if gain else 'no better'} |", flush=True)


if __name__ == "__main__":
    main()
