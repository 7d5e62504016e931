"""Keeps tensor parallel groups on fast links: degrees whose groups span nodes need the job's permission."""

import re

import msgspec

from autoscout.job.device_names import record_of
from autoscout.space.attributes import attributes_of
from autoscout.space.knob import Catalog
from kb.records import Job, Node

_TODAY = re.compile(r"--tensor-model-parallel-size[ =]+(\d+)")
_WHY = "a group would span nodes, so every layer would wait for the network between them"


def within_nodes(catalog: Catalog, job: Job) -> Catalog:
    """Returns the catalog with tp limited to degrees whose groups stay on fast links. Larger degrees need permission,
    except for the degree in the current launch. If every node has a single device, all degrees are allowed."""
    today = {int(found) for found in _TODAY.findall(job.launch.current)}
    nodes, degrees = job.cluster.nodes, attributes_of(job)["degrees"]
    inside = {d for d in degrees if any(_inside(d, node) for node in nodes)}
    if len(nodes) == 1 or inside <= {1}:
        return catalog
    asks = [d for d in degrees if d not in inside | today]
    knobs = [msgspec.structs.replace(k, asks=asks, asks_for=_WHY) if k.name == "tp" else k for k in catalog.knob]
    return msgspec.structs.replace(catalog, knob=knobs)


def _inside(degree: int, node: Node) -> bool:
    """Whether groups of neighbouring ranks stay on one node, or on nodes joined by NVLink."""
    known = record_of(node.device)
    island = known.per_node if known and known.per_tray else node.count
    return node.count % degree == 0 or (degree <= island and degree % node.count == 0)
