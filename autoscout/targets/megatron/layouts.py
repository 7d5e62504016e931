"""Generates a job's layouts (tp, pp, cp, ep, recomputation, micro batch) in the order in which an expert tries them."""

from collections.abc import Mapping
from dataclasses import dataclass
from math import log2
from typing import Any, Literal

import numpy as np

from autoscout.simulate.hardware.device import hardware
from autoscout.space.graph import Space
from kb.records import Value

Way = Literal["guide", "dp first"]

_LONG = 8_192  # sequence length from which context parallelism is worth its communication
_MOST_TP = 8  # maximum tensor parallel degree, as in published recipes even for 72 devices joined by NVLink
# layers per virtual stage in NVIDIA's recipes: fewer cause more communication, more cause a longer bubble
_PER_CHUNK = 4
_AGAIN = ("none", "selective", "full")


@dataclass(frozen=True)
class Layouts:
    """Layouts in the order in which they are tried. `columns`: knob → (n,) values. `shares`: pp → values of further
    knobs that distribute layers over stages."""

    columns: dict[str, np.ndarray]
    shares: dict[int, dict[str, Value]]

    def __len__(self) -> int:
        return len(self.columns["tp"])

    def wanted(self, i: int) -> dict[str, Value]:
        row: dict[str, Value] = {name: values[i].item() for name, values in self.columns.items()}
        return {**row, **self.shares[int(row["pp"])]}


def layouts(space: Space, gpus: int, way: Way) -> Layouts:
    """Returns the layouts whose degrees divide `gpus` and the batch."""
    a = space.attributes
    degrees, experts = np.array(a["degrees"]), int(a["experts"])
    batches = np.array(space.knob["mbs"].values if "mbs" in space.knob and not a["packable"] else (1,))
    axes = (degrees, degrees, degrees, degrees if experts else [1], range(len(_AGAIN)), batches, [True, False])
    grid = [each.ravel() for each in np.meshgrid(*axes, indexing="ij")]
    tp, pp, cp, ep, _, mbs, _ = grid
    ok = (gpus % (tp * pp * cp) == 0) & (pp <= a["layers"]) & ((cp == 1) | (a["seq_len"] % (2 * cp) == 0))
    if experts:
        ok &= (experts % ep == 0) & (gpus % (ep * pp) == 0)
    ok &= a["global_batch"] % (mbs * np.maximum(gpus // (tp * pp * cp), 1)) == 0
    tp, pp, cp, ep, again, mbs, interleaved = (each[ok] for each in grid)
    micro_batches = a["global_batch"] // (mbs * (gpus // (tp * pp * cp)))
    stages, of = np.unique(pp, return_inverse=True)
    shares = {int(each): _stages(space, int(each)) for each in stages}
    chunks = np.array([_chunks(space, each, share) for each, share in shares.items()], dtype=int)[of]
    vpp = np.where(interleaved & (pp > 1) & (micro_batches % pp == 0), chunks, 1)
    # each layout is generated with and without interleaving; drop the copy if it cannot interleave
    ok = np.where(interleaved, (vpp > 1) | (pp == 1), pp > 1)
    columns = {"tp": tp, "pp": pp, "cp": cp, "ar": np.array(_AGAIN)[again], "mbs": mbs}
    if experts:
        columns["ep"] = ep
    if "vpp" in space.knob:
        columns["vpp"] = vpp
    bubble = np.where(vpp > 1, 1.0, 2.0) * (pp - 1) / micro_batches
    price = _price(tp, pp, cp, ep if experts else None, again, mbs, bubble, a, _joined(space), way)
    order = np.lexsort([np.round(each[ok], 9) for each in price[::-1]])
    return Layouts({name: values[ok][order] for name, values in columns.items()}, shares)


def _price(
    tp: np.ndarray,
    pp: np.ndarray,
    cp: np.ndarray,
    ep: np.ndarray | None,
    again: np.ndarray,
    mbs: np.ndarray,
    bubble: np.ndarray,
    a: Mapping[str, Any],
    inside: int,
    way: Way,
) -> list[np.ndarray]:
    """Returns the sort keys (most significant first, ascending) for the order in which an expert tries layouts. A cost
    of 1 corresponds to doubling tensor parallelism. Micro batch 4 is preferred, since attention and GEMMs are efficient
    at this size. With experts, recomputation also repeats the all-to-all. `again`: index in _AGAIN. `bubble`: weighted
    pipeline idle time / compute time. `inside`: devices joined by NVLink."""
    beyond = np.log2(np.maximum(tp / inside, 1))  # factors of two beyond the NVLink domain, which guides advise against
    # tp makes the matrices of small experts too narrow to be efficient
    thin, stage = (1.0, 1.25) if ep is None else (2.5, 0.6)
    if ep is not None:
        thin = thin * (1 + np.log2(np.maximum(tp / 2, 1)) / 2)
    split = thin * np.log2(tp) + np.log2(np.maximum(tp / _MOST_TP, 1)) + 8 * beyond + stage * np.log2(pp)
    split += (1.25 if a["seq_len"] >= _LONG else 4.0) * np.log2(cp)
    split += 1.5 * np.minimum(bubble, 2.0)
    spread = np.zeros(len(tp))
    if ep is not None:
        wanted = min(inside, a["experts"])
        spread = 0.5 * np.abs(np.log2(wanted / ep)) + 1.0 * np.log2(np.maximum(ep / inside, 1))
    batch = 0.2 * np.abs(np.log2(mbs / 4))
    if way == "dp first":
        return [split + beyond, again, spread, batch]
    return [split + np.array([0.0, 0.3, 2.5 if ep is None else 4.0])[again] + spread + batch]


def _stages(space: Space, pp: int) -> dict[str, Value]:
    """Returns the knob values that distribute layers if `pp` does not divide their number: count the embedding and the
    loss as layers, or give the first and last stages fewer layers."""
    layers = space.attributes["layers"]
    if layers % pp == 0 or "stage_split" not in space.knob:
        return {}
    for split, counted in (("embedding+loss", 2), ("loss", 1)):
        if (layers + counted) % pp == 0:
            return {"stage_split": split}
    for less in range(1, 5):  # by how many layers the first and last stages together are shorter than two inner stages
        first, last = less // 2, less - less // 2
        if pp > 2 and (layers + less) % pp == 0 and (inner := (layers + less) // pp) > last:
            return {"stage_split": "even", "first_layers": inner - first if first else 0, "last_layers": inner - last}
    return {}


def _chunks(space: Space, pp: int, shares: Mapping[str, Value]) -> int:
    """Returns the number of virtual stages, a divisor of a stage's number of layers, for which the layers per chunk are
    nearest to `_PER_CHUNK`."""
    if "vpp" not in space.knob:
        return 1
    counted = {"embedding+loss": 2, "loss": 1}.get(str(shares.get("stage_split", "")), 0)
    per_stage, rest = divmod(space.attributes["layers"] + counted, pp)
    possible = [v for v in space.knob["vpp"].values if not rest and per_stage % int(v) == 0]
    if counted:
        possible = [v for v in possible if per_stage > int(v)]
    if not possible:
        return 1
    return int(min(possible, key=lambda v: (abs(log2(per_stage / int(v) / _PER_CHUNK)), int(v))))


def _joined(space: Space) -> int:
    """Returns the number of devices joined by NVLink: those of a node or, according to the device record, of a rack."""
    job = getattr(space, "job", None)
    if job is None or not job.cluster.nodes:
        return max(space.attributes["degrees"])
    sizes = []
    for node in job.cluster.nodes:
        known = hardware(node.device)
        rack = known is not None and known.per_node > 16  # NVLink joins all nodes of the rack
        sizes.append(known.per_node if known is not None and (rack or node.count > known.per_node) else node.count)
    return min(sizes)
