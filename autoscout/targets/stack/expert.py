"""The usual design: tensor parallelism inside the first dimension, as few pipeline stages as fit, replicas for the
rest; a switched node of eight and switches between nodes, chunked rings, sharded optimizer states."""

from collections.abc import Iterator

from autoscout.space.graph import Space
from autoscout.targets.jobs import JobSpace
from autoscout.targets.recipes import first, stated
from kb.records import Configuration, Value


def advised(space: Space) -> Iterator[Configuration]:
    npus = max(int(v) for v in space.knob["npus"].values)
    node = {"dims": 2, "npus_1": 8, "npus_2": npus // 8} if npus > 8 and npus % 8 == 0 else {}
    devices = [str(v) for v in space.knob["device"].values]
    own = space.job.cluster.nodes[0].device if isinstance(space, JobSpace) else devices[0]
    device = own if own in devices else devices[0]
    wanted = {**stated(space), **node, "npus": npus, "device": device, "collectives": "hierarchical"}
    told = ({**layout, "device": device, "npus": npus} for layout in _layouts(npus))
    yield first(space, wanted, told)


def _layouts(npus: int) -> Iterator[dict[str, Value]]:
    for pp in (1, 2, 4, 8, 16, 32):
        for tp in (1, 2, 4, 8):
            for recompute in (False, True):
                if npus % (tp * pp) == 0:
                    dp = npus // (tp * pp)
                    yield {"tp": tp, "pp": pp, "sp": 1, "dp": dp, "zero": 1, "recompute": recompute, "mbs": 1}
