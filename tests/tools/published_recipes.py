"""Published recipes beside ours: what NVIDIA's benchmark recipes and the best of our portfolio are predicted to take.

    python tests/tools/published_recipes.py          a table in Markdown, as docs/knobs.md has it

The recipes are those of Megatron-Bridge's docs/performance-summary.md (25.11 container, commit 00b7660) that a
[model] can describe and whose layout is the whole recipe; in bf16 all of them, also where theirs is in FP8; sharded
data parallel (their FSDP = 1) as a distributed optimizer. The page leaves out the global batch of Qwen3-235B on H100:
2048 is ours. Times are those of the analytic simulator, none of whose constants were fitted to that page; the prices
of our recipes were (autoscout/targets/megatron/expert.py).
"""

import re
from dataclasses import dataclass, field

import msgspec
import numpy as np

from autoscout.job.presets import models
from autoscout.simulate.ensemble import Simulators
from autoscout.space.graph import Space
from autoscout.targets.jobs import JobSpace
from autoscout.targets.megatron.expert import portfolio
from kb.records import Cluster, Configuration, Job, Launch, Model, Node, Objective, Traffic, Value


@dataclass(frozen=True)
class Published:
    model: str
    device: str
    gpus: int
    batch: int
    seq_len: int
    knobs: dict[str, Value] = field(default_factory=dict)

    @property
    def job(self) -> Job:
        per_node = 4 if self.device.startswith("gb") else 8
        return Job(
            name=f"{self.model}-{self.gpus}-{self.device}",
            target="megatron",
            objective=Objective(minimize="step_time_s"),
            model=msgspec.convert(models()[self.model], Model),
            traffic=Traffic(seq_len=self.seq_len, global_batch=self.batch),
            cluster=Cluster(nodes=[Node(device=self.device, count=per_node)] * (self.gpus // per_node)),
            launch=Launch(transformer_engine=True),
        )


BOTH_ENDS = "embedding+loss"
RECIPES = [
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
# What the recipes leave to the framework, as NVIDIA's scripts set it.
USUAL: dict[str, Value] = {
    "ar": "none", "dispatcher": "alltoall", "etp": 1, "sp": True, "tp_comm_overlap": True, "distopt": True,
    "overlap_grad": True, "overlap_param": True, "overlap_p2p": True, "permute_fusion": True, "ce_fusion": True,
    "ddp_bucket": 128, "tp_comm": 16, "stage_split": "even",
}  # fmt: skip


def of_recipe(space: Space, recipe: Published) -> Configuration | None:
    """None where the space cannot have it."""
    return space.nearest({**USUAL, **recipe.knobs}, firm=recipe.knobs)


def predicted(recipe: Published) -> tuple[str, float, str, float]:
    """(the published one's name, its seconds, the name of ours that is predicted best, its seconds)"""
    space = JobSpace.of_job(recipe.job)
    theirs = of_recipe(space, recipe)
    assert theirs is not None, recipe
    ours = portfolio(space)
    simulators = Simulators(recipe.job, space, [])
    values = [simulators.predict(c)[0] for c in (theirs, *ours)]
    best = int(np.argmin(values[1:]))
    return space.name(theirs), values[0], space.name(ours[best]), values[1 + best]


def main() -> None:
    print("| model | devices | published | predicted | ours | predicted | ours / published |")
    print("|---|---|---|---|---|---|---|")
    for recipe in RECIPES:
        theirs, seconds, ours, mine = predicted(recipe)
        where = f"{recipe.gpus} × {recipe.device.upper()}"
        layout = [_layout(theirs), _layout(ours)]
        print(
            f"| {recipe.model} | {where} | {layout[0]} | {seconds:.2f} s | {layout[1]} | {mine:.2f} s "
            f"| {mine / seconds:.2f} |"
        )


def _layout(name: str) -> str:
    return " ".join(part for part in name.split("_") if re.fullmatch(r"(pp|tp|cp|dp|ep|vpp|mbs)\d+|ar-\w+", part))


if __name__ == "__main__":
    main()
