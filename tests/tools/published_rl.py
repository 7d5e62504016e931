"""Compares predicted iterations with NVIDIA's performance summaries of NeMo-RL, release by release.

    python -m tests.tools.published_rl [--half a|b] [--parts]

RUNS are the bf16 rows of GRPO in its docs/about/performance-summary.md of 0.4 (commit cff17f8), 0.5 (108bffd) and 0.6
(69c7ca1), and those of the blog of 0.3 (their phases: issue 959). What a page does not state (recomputation, packing to
the longest sequence, both log-probability passes, the engines' share of the memory, which devices only generate) is in
its release's recipes, examples/configs/recipes/llm/performance. Prompts have 120 tokens: the pages' tokens per second
are those of answers with 100 to 130 more. Halves are by model and device."""

import argparse
import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import combinations

import msgspec
import numpy as np

from autoscout.job.presets import models
from autoscout.simulate.encode import of_job
from autoscout.simulate.iteration.iteration import Iteration
from kb.records import Cluster, Job, Model, Node, Objective, Traffic

PROMPT = 120
_WHOLE = ("traffic", "async_scheduling")  # columns that hold one value for all rows
VLLM = {"0.3": "0.9.0", "0.4": "0.10.0", "0.5": "0.11.2", "0.6": "0.17.1"}  # of each release's pyproject.toml


@dataclass(frozen=True)
class Run:
    """`answer`: mean tokens, at most `longest`; `answers`, `batch`: samples of an iteration and of an update;
    `roll_tp`, `layout`: tensor parallelism of an engine, and (tp, cp, ep, pp) of the trainer; `apart`: devices that
    only generate; `again`: whether the trainer recomputes its activations; `zero`: 3 for DTensor's FSDP."""

    release: str
    model: str
    device: str
    gpus: int
    longest: int
    answer: int
    answers: int
    batch: int
    roll_tp: int
    layout: tuple[int, int, int, int]
    seconds: float
    again: bool = False
    lag: int = 0
    apart: int = 0
    zero: int = 0

    @property
    def half(self) -> str:
        of = f"{self.model} {self.device}".encode()
        return "ab"[hashlib.md5(of, usedforsecurity=False).digest()[0] % 2]


def runs() -> Iterator[Run]:
    small, large, deep = ("llama-3.1-8b", "qwen3-235b-a22b", "deepseek-v3")
    for release, rows in {
        "0.3": [
            (small, "h100", 8, 4096, 795, 2048, 512, 1, (1, 1, 1, 1), 112),
            (small, "h100", 8, 4096, 777, 2048, 512, 1, (1, 1, 1, 1), 122, False, 0, 0, 3),
            ("llama-3.1-70b", "h100", 64, 4096, 398, 2048, 512, 8, (4, 1, 1, 4), 147),
            ("llama-3.1-70b", "h100", 64, 4096, 395, 2048, 512, 8, (8, 1, 1, 1), 230, True, 0, 0, 3),
        ],
        "0.4": [
            (small, "h100", 16, 4096, 1060, 2048, 512, 1, (1, 1, 1, 2), 97.7, True),
            (small, "h100", 16, 4096, 1129, 2048, 512, 1, (1, 1, 1, 2), 74.6, True, 1, 8),
            (deep, "h100", 256, 1536, 745, 512, 512, 32, (1, 1, 16, 16), 154, True),
            (deep, "h100", 512, 1536, 744, 512, 512, 32, (1, 1, 16, 16), 77.9, True, 1, 256),
            (large, "h100", 128, 8192, 5671, 512, 512, 16, (2, 2, 16, 8), 506, True),
            (large, "h100", 256, 8192, 5691, 512, 512, 8, (4, 1, 16, 8), 241, True, 1, 128),
            ("qwen3-30b-a3b", "h100", 32, 4096, 3154, 2048, 512, 4, (2, 1, 8, 1), 225),
            ("qwen3-30b-a3b", "h100", 32, 4096, 3158, 2048, 512, 4, (2, 1, 8, 1), 244, False, 1, 16),
            ("qwen3-32b", "h100", 32, 4096, 3206, 2048, 512, 4, (4, 1, 1, 4), 393),
            ("qwen3-32b", "h100", 64, 4096, 3207, 2048, 512, 4, (4, 1, 1, 4), 215, False, 1, 32),
        ],
        "0.5": [
            (small, "h100", 16, 4096, 1019, 2048, 512, 1, (1, 1, 1, 2), 92.8, True),
            (small, "h100", 16, 4096, 1123, 2048, 512, 1, (1, 1, 1, 1), 64.8, True, 1, 8),
            (deep, "h100", 256, 1536, 744, 512, 512, 32, (1, 1, 16, 16), 134, True),
            (deep, "h100", 512, 1536, 738, 512, 512, 32, (1, 1, 16, 16), 64.9, True, 1, 256),
            (large, "h100", 128, 8192, 5700, 512, 512, 16, (2, 2, 16, 8), 431, True),
            (large, "h100", 256, 8192, 5707, 512, 512, 8, (4, 1, 16, 8), 203, True, 1, 128),
            ("qwen3-30b-a3b", "h100", 32, 4096, 3196, 2048, 512, 2, (1, 1, 8, 1), 198),
            ("qwen3-30b-a3b", "h100", 32, 4096, 3201, 2048, 512, 2, (1, 1, 8, 2), 154, False, 1, 16),
            ("qwen3-32b", "h100", 32, 4096, 3251, 2048, 512, 4, (4, 1, 1, 4), 376),
            ("qwen3-32b", "h100", 64, 4096, 3252, 2048, 512, 4, (4, 1, 1, 4), 200, False, 1, 32),
            (small, "gb200", 8, 4096, 1066, 2048, 512, 1, (1, 1, 1, 1), 91.0, True),
            (small, "gb200", 8, 4096, 1107, 2048, 512, 1, (1, 1, 1, 1), 71.1, True, 1, 4),
            (deep, "gb200", 128, 1536, 996, 512, 512, 32, (1, 1, 16, 8), 128, True),
            (deep, "gb200", 256, 1536, 994, 512, 512, 16, (1, 1, 16, 8), 64.5, True, 1, 128),
            (large, "gb200", 64, 8192, 5711, 512, 512, 8, (2, 2, 16, 4), 332, True),
            (large, "gb200", 128, 8192, 5711, 512, 512, 8, (4, 1, 16, 4), 268, True, 1, 64),
            ("qwen3-30b-a3b", "gb200", 16, 4096, 3198, 2048, 512, 1, (1, 1, 16, 1), 232),
            ("qwen3-30b-a3b", "gb200", 32, 4096, 3204, 2048, 512, 1, (1, 1, 16, 1), 136, False, 1, 16),
            ("qwen3-32b", "gb200", 16, 4096, 3253, 2048, 512, 1, (2, 1, 1, 1), 381),
            ("qwen3-32b", "gb200", 32, 4096, 3258, 2048, 512, 1, (2, 1, 1, 1), 210, False, 1, 16),
        ],
        "0.6": [
            (deep, "h100", 256, 1536, 701, 512, 512, 32, (1, 1, 16, 16), 134, True),
            (deep, "h100", 512, 1536, 697, 512, 512, 32, (1, 1, 16, 16), 111, True),
            (deep, "h100", 512, 1536, 710, 512, 512, 32, (1, 1, 16, 16), 64.1, True, 1, 256),
            (large, "h100", 128, 8192, 5698, 512, 512, 16, (2, 2, 16, 8), 395, True),
            (large, "h100", 256, 8192, 5713, 512, 512, 16, (2, 2, 16, 8), 312, True),
            (large, "h100", 256, 8192, 5721, 512, 512, 8, (4, 1, 16, 8), 231, True, 1, 128),
            ("qwen3-30b-a3b", "h100", 32, 4096, 3203, 2048, 512, 2, (1, 1, 8, 1), 192),
            ("qwen3-30b-a3b", "h100", 32, 4096, 3201, 2048, 512, 2, (1, 1, 8, 2), 152, False, 1, 16),
            ("qwen3-30b-a3b", "h100", 192, 4096, 3206, 2048, 512, 2, (1, 1, 8, 1), 34.5, False, 8, 64),
            (deep, "gb200", 128, 1536, 711, 512, 512, 32, (1, 1, 16, 8), 108, True),
            (deep, "gb200", 256, 1536, 700, 512, 512, 32, (1, 1, 16, 8), 98.7, True),
            (deep, "gb200", 256, 1536, 708, 512, 512, 16, (1, 1, 16, 8), 61.7, True, 1, 128),
            (large, "gb200", 64, 8192, 5709, 512, 512, 8, (2, 2, 16, 4), 286, True),
            (large, "gb200", 128, 8192, 5693, 512, 512, 8, (2, 2, 16, 4), 345, True),
            (large, "gb200", 128, 8192, 5705, 512, 512, 8, (4, 1, 16, 4), 278, True, 1, 64),
            ("qwen3-30b-a3b", "gb200", 16, 4096, 3199, 2048, 512, 1, (1, 1, 16, 1), 221),
            ("qwen3-30b-a3b", "gb200", 16, 4096, 3197, 2048, 512, 1, (1, 1, 16, 1), 301, False, 1, 8),
        ],
    }.items():
        yield from (Run(release, *row) for row in rows)


def predicted(run: Run) -> tuple[float, float, dict[str, float]]:
    """(seconds, log error, seconds by phase)"""
    per_node = 4 if run.device.startswith("gb") else 8
    node = Node(device=run.device, count=min(per_node, run.gpus))
    job = Job(
        name=run.model,
        target="command",
        task="rl",
        objective=Objective(maximize="samples_per_s"),
        model=msgspec.convert(models()[run.model], Model),
        traffic=Traffic(seq_len=run.longest, input_len=PROMPT, output_len=run.answer),
        cluster=Cluster(nodes=[node] * (run.gpus // node.count)),
    )
    tp, cp, ep, pp = run.layout
    columns = {
        **of_job(job),
        "answers": run.answers, "group": 32, "longest": run.longest - PROMPT, "updates": run.answers / run.batch,
        "old": 1.0, "reference": 1.0, "fill": float(run.longest), "gpus": float(run.gpus - run.apart),
        **({"async_scheduling": False} if run.roll_tp > 1 else {}),
        "roll_engine": "vLLM", "roll_version": VLLM[run.release], "roll_tp": float(run.roll_tp),
        "roll_gpus": float(run.apart), "roll_share": 0.8 if run.apart else 0.6, "lag": float(run.lag),
        "tp": tp, "cp": cp, "ep": ep, "pp": pp, "sp": float(tp > 1), "mbs": 1.0, "ar": "full" if run.again else "none",
        **({"zero": 3.0} if run.zero else {"distopt": 1.0, "overlap_grad": 1.0, "overlap_param": 1.0}),
    }  # fmt: skip
    found = Iteration(run.device).predict(
        {name: value if name in _WHOLE else np.array([value]) for name, value in columns.items()}
    )
    return float(found.value[0]), float(found.error[0]), {name: float(value[0]) for name, value in found.parts.items()}


def ordered(runs: list[tuple[Run, float]]) -> tuple[int, int]:
    """(pairs of runs of one release, model and device that are predicted in the measured order, all such pairs)"""
    pairs = [
        (a[0].seconds - b[0].seconds) * (a[1] - b[1]) > 0
        for a, b in combinations(runs, 2)
        if (a[0].release, a[0].model, a[0].device) == (b[0].release, b[0].model, b[0].device)
    ]
    return sum(pairs), len(pairs)


def main() -> None:
    parser = argparse.ArgumentParser(description="Errors of predicted iterations against NeMo-RL's published ones.")
    parser.add_argument("--half", choices=("a", "b"))
    parser.add_argument("--parts", action="store_true", help="seconds by phase")
    options = parser.parse_args()
    found: dict[str, list[tuple[Run, float]]] = {}
    for run in runs():
        if options.half and run.half != options.half:
            continue
        seconds, _, parts = predicted(run)
        found.setdefault(f"{run.half}: {run.model} on {run.device}", []).append((run, seconds))
        how = f"{run.lag} older, {run.apart} apart" if run.lag else "DTensor" if run.zero else ""
        shown = " ".join(f"{name} {value:.1f}" for name, value in parts.items()) if options.parts else ""
        of = f"{run.half} | {run.release} | {run.model} | {run.gpus} {run.device} | {how}"
        print(f"{of} | {run.seconds:g} | {seconds:.1f} | {seconds / run.seconds - 1:+.0%} | {shown}")
    for name, some in sorted(found.items()):
        off = np.array([seconds / run.seconds - 1 for run, seconds in some])
        right, pairs = ordered(some)
        within = f"{np.mean(np.abs(off) <= 0.2):.0%} within 20 %"
        print(f"{name}: {len(off)} runs, error {np.abs(off).mean():.1%}, {within}, {right} of {pairs} pairs in order")


if __name__ == "__main__":
    main()
