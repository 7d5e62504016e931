"""What is usual: tensor parallelism inside the first dimension, as few pipeline stages as fit, replicas for the rest;
a switched node of eight and switches between nodes, rings of chunks, the optimizer's state sharded."""

from collections.abc import Iterator

from autoscout.space.graph import Space
from autoscout.targets.recipes import first, stated
from kb.records import Configuration, Value


def advised(space: Space) -> Iterator[Configuration]:
    npus = max(int(v) for v in space.knob["npus"].values)
    wanted = {**stated(space), "npus": npus, "collectives": "hierarchical"}
    yield first(space, wanted, _layouts(npus))


def _layouts(npus: int) -> Iterator[dict[str, Value]]:
    for pp in (1, 2, 4, 8, 16, 32):
        for tp in (1, 2, 4, 8):
            for recompute in (False, True):
                if npus % (tp * pp) == 0:
                    dp = npus // (tp * pp)
                    yield {"tp": tp, "pp": pp, "sp": 1, "dp": dp, "zero": 1, "recompute": recompute, "mbs": 1}
