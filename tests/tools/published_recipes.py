"""Compares the predictions for published recipes with those for the best of our portfolio.

    PYTHONPATH=. python tests/tools/published_recipes.py          writes the tables of docs/lab/recipes.md

SIGHT: recipes on which our portfolio's cost estimates were chosen (autoscout/targets/megatron/layouts.py). HELD_OUT:
chosen by model, device and source before the comparison; two of them led to additional rules. FRESH: chosen after that;
nothing was changed since.

* NVIDIA: Megatron-Bridge's docs/performance-summary*.md (SIGHT: 25.11 container, commit 00b7660; HELD_OUT: 26.04 and
  26.06, commit 067f987) that a [model] can describe and that consist of a layout only; all in bf16, even where the
  original is in FP8; FSDP = 1 as a distributed optimizer. Page 25.11 omits the global batch of Qwen3-235B on H100; 2048
  is assumed.
* torchtitan: benchmarks/*.md, commit b5bcd76; FSDP as a distributed optimizer (Megatron-core has no other sharding in
  our catalog), local batches above 8 in several micro batches, H100 with 96 GiB.
* vLLM: vllm-project/recipes, commit 8959cf6; in bf16, with the lengths and the load of each recipe's benchmark.

Times are those of the analytic simulators; none of their constants were fitted to any of these.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from autoscout.job.presets import models
from autoscout.simulate.ensemble import Simulators, memory_of
from autoscout.space.graph import Space
from autoscout.targets.jobs import JobSpace
from kb.records import Cluster, Configuration, Job, LaunchSettings, Model, Node, Objective, Traffic, Value

PAGE = Path(__file__).parents[2] / "docs" / "recipes.md"


@dataclass(frozen=True)
class Published:
    model: str
    device: str
    gpus: int
    batch: int
    seq_len: int
    knobs: dict[str, Value] = field(default_factory=dict)
    source: str = "NVIDIA"
    memory_gib: float = 0.0

    @property
    def job(self) -> Job:
        per_node = 4 if self.device.startswith("gb") else 8
        node = Node(device=self.device, count=min(per_node, self.gpus), memory_gib=self.memory_gib)
        return Job(
            name=f"{self.model}-{self.gpus}-{self.device}",
            target="megatron",
            objective=Objective(minimize="step_time_s"),
            model=msgspec.convert(models()[self.model], Model),
            traffic=Traffic(seq_len=self.seq_len, global_batch=self.batch),
            cluster=Cluster(nodes=[node] * (self.gpus // node.count)),
            launch=LaunchSettings(transformer_engine=True),
        )


@dataclass(frozen=True)
class Served:
    """A published serving recipe. Lengths in tokens; `at_once`: number of concurrent requests."""

    model: str
    device: str
    gpus: int
    lengths: tuple[int, int]
    at_once: int
    knobs: dict[str, Value] = field(default_factory=dict)
    shape: dict[str, Any] = field(default_factory=dict)  # of a model without a preset
    source: str = "vLLM"

    @property
    def job(self) -> Job:
        return Job(
            name=f"{self.model}-{self.gpus}-{self.device}",
            target="vllm",
            task="serve",
            objective=Objective(maximize="output_tokens_per_s"),
            model=msgspec.convert(self.shape or models()[self.model], Model),
            traffic=Traffic(input_len=self.lengths[0], output_len=self.lengths[1], concurrency=self.at_once),
            cluster=Cluster(nodes=[Node(device=self.device, count=self.gpus)]),
        )


BOTH_ENDS = "embedding+loss"
SIGHT = [
    Published("llama-3-8b", "h100", 8, 128, 8192, {"tp": 1, "pp": 1, "cp": 1, "mbs": 1}),
    Published("llama-3.1-70b", "h100", 64, 128, 8192, {"tp": 4, "pp": 8, "cp": 1, "vpp": 5, "mbs": 1}),
    Published(
        "llama-3.1-405b", "h100", 1024, 512, 8192,
        {"tp": 8, "pp": 8, "cp": 2, "vpp": 8, "stage_split": BOTH_ENDS, "mbs": 1},
    ),
    Published("gpt-oss-120b", "h100", 64, 512, 4096, {"tp": 1, "pp": 4, "cp": 1, "vpp": 1, "ep": 8, "mbs": 4}),
    Published("qwen3-30b-a3b", "h100", 16, 512, 4096, {"tp": 1, "pp": 2, "cp": 1, "vpp": 24, "ep": 8, "mbs": 2}),
    Published(
        "qwen3-235b-a22b", "h100", 256, 2048, 4096,
        {"tp": 2, "pp": 8, "cp": 1, "vpp": 4, "stage_split": BOTH_ENDS, "ep": 32, "mbs": 1},
    ),
    Published(
        "llama-3.1-405b", "gb300", 256, 1536, 8192,
        {"tp": 2, "pp": 8, "cp": 2, "vpp": 4, "stage_split": BOTH_ENDS, "mbs": 1},
    ),
    Published(
        "llama-3.1-405b", "gb200", 256, 1536, 8192,
        {"tp": 4, "pp": 16, "cp": 1, "vpp": 4, "stage_split": BOTH_ENDS, "mbs": 1},
    ),
    Published(
        "llama-3.1-405b", "b200", 128, 64, 8192,
        {"tp": 4, "pp": 8, "cp": 2, "vpp": 8, "stage_split": BOTH_ENDS, "mbs": 1},
    ),
    Published("gpt-oss-120b", "gb200", 64, 1280, 8192, {"tp": 1, "pp": 1, "cp": 1, "ep": 64, "mbs": 1}),
    Published("qwen3-30b-a3b", "gb200", 8, 512, 4096, {"tp": 1, "pp": 1, "cp": 1, "ep": 8, "mbs": 4}),
    Published(
        "qwen3-235b-a22b", "gb200", 256, 8192, 4096,
        {"tp": 1, "pp": 8, "cp": 1, "vpp": 3, "stage_split": BOTH_ENDS, "ep": 32, "mbs": 1},
    ),
]  # fmt: skip
CODER: dict[str, Any] = {  # Qwen3-Coder-480B-A35B
    "layers": 62, "hidden": 6144, "heads": 96, "kv_heads": 8, "head_dim": 128, "ffn": 8192, "expert_ffn": 2560,
    "experts": 160, "topk": 8, "vocab": 151936, "gated": True, "norm": "rmsnorm", "bias": False, "position": "rope",
}  # fmt: skip
HELD_OUT: list[Published | Served] = [
    Published("llama-3.1-70b", "gb300", 64, 256, 8192, {"tp": 1, "pp": 4, "cp": 1, "vpp": 5, "mbs": 1}),
    Published("llama-3.1-70b", "gb200", 64, 256, 8192, {"tp": 2, "pp": 4, "cp": 1, "vpp": 5, "mbs": 1}),
    Published("llama-3.1-70b", "h100", 32, 32, 4096, {"tp": 4, "pp": 4, "cp": 1, "vpp": 5, "mbs": 1}),
    Published("gpt-oss-120b", "b300", 64, 1280, 4096, {"tp": 1, "pp": 1, "cp": 1, "ep": 8, "mbs": 4}),
    Published("qwen3-30b-a3b", "h100", 16, 1024, 4096, {"tp": 1, "pp": 1, "cp": 1, "ep": 16, "mbs": 1}),
    Published("qwen3-30b-a3b", "b300", 8, 512, 4096, {"tp": 1, "pp": 1, "cp": 1, "ep": 8, "mbs": 8}),
    Published(
        "qwen3-235b-a22b", "b200", 256, 8192, 4096,
        {"tp": 1, "pp": 8, "cp": 1, "vpp": 1, "stage_split": BOTH_ENDS, "ep": 8, "mbs": 1},
    ),
    Published(
        "qwen3-235b-a22b", "gb300", 256, 8192, 4096,
        {"tp": 1, "pp": 4, "cp": 1, "vpp": 12, "stage_split": BOTH_ENDS, "ep": 32, "mbs": 2},
    ),
    Published(
        "llama-3.1-8b", "h100", 64, 96, 8192,
        {"tp": 8, "pp": 1, "cp": 1, "mbs": 4, "ar": "selective"}, "torchtitan", 96,
    ),
    Published(
        "llama-3.1-70b", "h100", 256, 512, 8192,
        {"tp": 8, "pp": 1, "cp": 1, "mbs": 8, "ar": "full"}, "torchtitan", 96,
    ),
    Published(
        "llama-3.1-8b", "h100", 128, 256, 8192,
        {"tp": 1, "pp": 1, "cp": 1, "mbs": 2, "ar": "selective"}, "torchtitan", 96,
    ),
    Published(
        "llama-3.1-405b", "h100", 512, 256, 8192,
        {"tp": 8, "pp": 8, "cp": 1, "vpp": 2, "stage_split": BOTH_ENDS, "mbs": 1, "ar": "full"}, "torchtitan", 96,
    ),
    Served("llama-3.1-70b", "b200", 8, (1024, 1024), 512, {"tp": 1, "pp": 1, "max_num_seqs": 512}),
    Served("qwen3-32b", "h100", 2, (1024, 1024), 128, {"tp": 2, "pp": 1}),
    Served("qwen3-235b-a22b", "h200", 4, (8192, 1024), 16, {"tp": 4, "pp": 1, "max_num_batched_tokens": 32768}),
    Served("qwen3-coder-480b", "h200", 8, (8000, 1000), 64, {"tp": 8, "pp": 1, "ep": True}, CODER),
]  # fmt: skip
QWEN2: dict[str, Any] = {  # Qwen2.5-32B
    "layers": 64, "hidden": 5120, "heads": 40, "kv_heads": 8, "head_dim": 128, "ffn": 27648, "vocab": 152064,
    "gated": True, "norm": "rmsnorm", "bias": False, "position": "rope",
}  # fmt: skip
SEED: dict[str, Any] = {**QWEN2, "heads": 80, "vocab": 155136}  # Seed-OSS-36B
FRESH: list[Published | Served] = [
    Published("llama-3.1-70b", "gb200", 32, 32, 4096, {"tp": 1, "pp": 8, "cp": 1, "vpp": 10, "mbs": 1}),
    Published("llama-3.1-70b", "gb300", 32, 32, 4096, {"tp": 1, "pp": 2, "cp": 1, "vpp": 20, "mbs": 1}),
    Published(
        "qwen3-235b-a22b", "b300", 256, 8192, 4096,
        {"tp": 1, "pp": 8, "cp": 1, "vpp": 1, "stage_split": BOTH_ENDS, "ep": 8, "mbs": 2},
    ),
    Published("gpt-oss-120b", "h100", 64, 1280, 4096, {"tp": 1, "pp": 4, "cp": 1, "vpp": 1, "ep": 8, "mbs": 1}),
    Published(
        "llama-3.1-405b", "gb300", 256, 1536, 8192,
        {"tp": 4, "pp": 8, "cp": 1, "vpp": 4, "stage_split": BOTH_ENDS, "mbs": 1},
    ),
    Published(
        "llama-3.1-8b", "h100", 8, 4, 65536, {"tp": 1, "pp": 1, "cp": 2, "mbs": 1, "ar": "full"}, "torchtitan", 96
    ),
    Published(
        "llama-3.1-8b", "h100", 8, 1, 262144, {"tp": 1, "pp": 1, "cp": 8, "mbs": 1, "ar": "full"}, "torchtitan", 96
    ),
    Published(
        "llama-3.1-405b", "h100", 512, 32, 65536,
        {"tp": 8, "pp": 8, "cp": 2, "vpp": 1, "stage_split": BOTH_ENDS, "mbs": 1, "ar": "full"}, "torchtitan", 96,
    ),
    Served("qwen2.5-32b", "h100", 2, (1024, 1024), 128, {"tp": 2, "pp": 1}, QWEN2),
    Served("seed-oss-36b", "h100", 8, (800, 100), 64, {"tp": 8, "pp": 1}, SEED),
    Served("llama-3.1-8b", "h100", 1, (1024, 1024), 128, {"tp": 1, "pp": 1}),
    Served("llama-3.1-70b", "h200", 8, (1024, 1024), 512, {"tp": 8, "pp": 1}),
]  # fmt: skip
# Settings that the recipes omit, from NVIDIA's scripts.
USUAL: dict[str, Value] = {
    "ar": "none", "dispatcher": "alltoall", "etp": 1, "sp": True, "tp_comm_overlap": True, "distopt": True,
    "overlap_grad": True, "overlap_param": True, "overlap_p2p": True, "permute_fusion": True, "ce_fusion": True,
    "ddp_bucket": 128, "tp_comm": 16, "stage_split": "even",
}  # fmt: skip


SERVES: dict[str, Value] = {"chunked_prefill": True, "prefix_caching": False, "gpu_memory_utilization": 0.9}


def of_recipe(space: Space, recipe: Published | Served) -> Configuration | None:
    """The recipe as a configuration; None if it is not in the space."""
    if isinstance(recipe, Published):
        return space.nearest({**USUAL, **recipe.knobs}, firm=recipe.knobs)
    assert space.reference is not None
    wanted = {**space.reference.knobs, **SERVES, **recipe.knobs}
    firm = {n: v for n, v in recipe.knobs.items() if v in space.knob[n].values}
    return space.nearest(wanted, firm=firm, given=recipe.knobs)


def predicted(recipe: Published | Served) -> tuple[str, float, str, float, bool]:
    """(name of the published recipe, its predicted cost, name of our best one by prediction, its predicted cost,
    whether the published one is predicted to fit into memory). Costs are seconds per step, or per million output
    tokens."""
    space = JobSpace.of_job(recipe.job)
    theirs = of_recipe(space, recipe)
    assert theirs is not None, recipe
    simulators = Simulators(recipe.job, space, [])
    values = [simulators.predict(c)[0] for c in (theirs, *space.recipes)]
    if isinstance(recipe, Served):
        values = [1e6 / value for value in values]
    best = int(np.argmin(values[1:]))
    memory = memory_of(recipe.job, space, [])
    fits = memory is None or bool(memory.oom_probability(simulators.columns([theirs]))[0] < 0.5)
    return space.name(theirs), values[0], space.name(space.recipes[best]), values[1 + best], fits


def table(recipes: Sequence[Published | Served]) -> str:
    lines = [
        "| model | source | devices | published | predicted | ours | predicted | ours / published |",
        "|---" * 8 + "|",
    ]
    ratios = []
    for recipe in recipes:
        theirs, cost, ours, mine, fits = predicted(recipe)
        ratios.append(mine / cost)
        cells = [recipe.model, recipe.source, f"{recipe.gpus} × {recipe.device.upper()}"]
        cells += [_layout(theirs) + ("" if fits else " †"), f"{cost:.2f} s", _layout(ours), f"{mine:.2f} s"]
        lines.append("| " + " | ".join([*cells, f"{mine / cost:.2f}"]) + " |")
    within = f"{sum(r <= 1.1 for r in ratios)} of {len(ratios)} within 10 %, the worst {max(ratios):.2f} ×."
    return "\n".join([*lines, "", within])


def main() -> None:
    text = PAGE.read_text()
    for name, recipes in (("in sight", SIGHT), ("held out", HELD_OUT), ("fresh", FRESH)):
        block = re.compile(rf"(<!-- {name} -->\n).*?(<!-- end -->)", re.DOTALL)

        text = block.sub(rf"\g<1>{table(recipes)}\n\g<2>", text)
    PAGE.write_text(text)


def _layout(name: str) -> str:
    return " ".join(part for part in name.split("_") if re.fullmatch(r"(pp|tp|cp|dp|ep|vpp|mbs)\d+|ep|ar-\w+", part))


if __name__ == "__main__":
    main()
