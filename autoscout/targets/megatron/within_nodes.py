"""Tensor parallel groups stay where links are fast: degrees whose groups span nodes have to be asked for."""

import re

import msgspec

from autoscout.space.attributes import attributes_of
from autoscout.space.knob import Catalog
from kb.records import Job, Node

_ISLANDS = {"gb200": 72, "gb300": 72}  # GPUs that NVLink joins, where those are more than a node's
_TODAY = re.compile(r"--tensor-model-parallel-size[ =]+(\d+)")
_WHY = "a group would span nodes, and every layer waits for the network between them"


def within_nodes(catalog: Catalog, job: Job) -> Catalog:
    """What today's launch has is asked for. Of nodes with one device each nothing else is left, so all may be had."""
    today = {int(found) for found in _TODAY.findall(job.launch.current)}
    nodes, degrees = job.cluster.nodes, attributes_of(job)["degrees"]
    inside = {d for d in degrees if any(_inside(d, node) for node in nodes)}
    if len(nodes) == 1 or inside <= {1}:
        return catalog
    asks = [d for d in degrees if d not in inside | today]
    knobs = [msgspec.structs.replace(k, asks=asks, asks_for=_WHY) if k.name == "tp" else k for k in catalog.knob]
    return msgspec.structs.replace(catalog, knob=knobs)


def _inside(degree: int, node: Node) -> bool:
    """Whether groups of neighbouring ranks lie on one node, or in one island of several."""
    island = _ISLANDS.get(node.device, node.count)
    return node.count % degree == 0 or (degree <= island and degree % node.count == 0)
