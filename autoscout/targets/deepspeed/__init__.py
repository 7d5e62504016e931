"""DeepSpeed: its knobs and rules, and what its autotuner measured."""

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

from autoscout.targets.target import Target
from kb.records import Configuration

if TYPE_CHECKING:
    from autoscout.space.graph import Space
    from autoscout.targets.found import Reader


class DeepSpeed(Target):
    name = "deepspeed"
    tasks = ("pretrain", "finetune")
    about = "training with DeepSpeed"
    needs_model = True
    packages = ("torch", "deepspeed")
    how = "pip install torch deepspeed; nothing here runs it yet, its results can be imported"

    def recipes(self, space: "Space") -> Iterator[Configuration]:
        from autoscout.targets.deepspeed.expert import advised
        from autoscout.targets.recipes import first, stated

        yield first(space, {**stated(space), "overlap_comm": True}, advised(space))

    def readers(self) -> "Mapping[str, Reader]":
        from autoscout.targets.deepspeed.importer import READER

        return {"deepspeed": READER}
