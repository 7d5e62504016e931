"""Pipeline stages with unequal numbers of layers on unequal devices, like Metis (Um et al., ATC 2024): a stage on a
slower kind of device has fewer layers, so that no stage waits for it.

For every kind of device except the fastest, a knob sets the layers per stage; the stages on the fastest kind share the
remaining layers. Megatron-core gets a layout string. All replicas have the same number of micro batches of the same
size."""

from collections.abc import Sequence

import msgspec

from autoscout.running.cluster.devices import used_nodes
from autoscout.simulate.hardware.device import hardware
from autoscout.space.attributes import device_counts
from autoscout.space.knob import Catalog, KnobEntry, RuleEntry
from autoscout.targets.megatron.newer import Flags, written
from kb.records import Configuration, Job

LAYOUT = "--pipeline-model-parallel-layout"
_SOURCE = "core/transformer/pipeline_parallel_layer_layout.py"


def fastest(kinds: Sequence[str]) -> str:
    """Returns the kind with the highest peak bf16 throughput; the first kind if peaks are equal or unknown."""

    def peak(kind: str) -> float:
        known = hardware(kind)
        return known.peak("bf16") if known else 0.0

    return max(kinds, key=peak)


def knob_of(kind: str) -> str:
    return f"{kind}_layers"


def slower(job: Job) -> list[str]:
    """Returns the kinds of device with a knob for layers per stage."""
    kinds = list(device_counts(job))
    return [kind for kind in kinds if kind != fastest(kinds)]


def with_depths(catalog: Catalog, job: Job) -> Catalog:
    """Returns the catalog, with knobs for layers per stage added if the job has several kinds of device."""
    kinds = slower(job)
    if not kinds or job.model.layers < 3:
        return catalog
    fast = fastest(list(device_counts(job)))
    unequal = " or ".join(f"{knob_of(kind)} > 0" for kind in kinds)
    given = " + ".join(f"{knob_of(kind)} * {kind} * pp // gpus" for kind in kinds)
    sharing = " + ".join([fast, *(f"({kind} if {knob_of(kind)} == 0 else 0)" for kind in kinds)])
    derived = {
        "unequal": f"({unequal})",
        "shared_layers": f"(layers - ({given}))",
        "sharing_stages": f"(({sharing}) * pp // gpus)",
        "by_layout": f"({catalog.derived['by_layout']} or unequal)",
        "layers_per_chunk": f"((shared_layers + sharing_stages - 1) // sharing_stages if unequal else "
        f"{catalog.derived['layers_per_chunk']})",
    }
    knobs = [_knob(kind, fast, job.model.layers) for kind in kinds]
    return msgspec.structs.replace(
        catalog,
        derived={**catalog.derived, **derived},
        knob=[*catalog.knob, *knobs],
        rule=[*catalog.rule, *_rules(kinds)],
    )


def _knob(kind: str, fast: str, layers: int) -> KnobEntry:
    whole = f"{kind} * pp % gpus == 0 and {fast} * pp % gpus == 0"
    return KnobEntry(
        name=knob_of(kind),
        kind="dense",
        layer="schedule",
        values=list(range((layers - 1) // 2 + 1)),
        default=0,
        off=0,
        when=f"pp > 1 and {kind} > 0 and {fast} > 0 and {whole}",
        unit="layers",
        meaning=f"layers of each pipeline stage on {kind}, fewer than on {fast} (0: as many as the other stages)",
        sets="pipeline_model_parallel_layout",
        since="0.13",
    )


def _rules(kinds: list[str]) -> list[RuleEntry]:
    deeper = " and ".join(f"{knob_of(kind)} * sharing_stages < shared_layers" for kind in kinds)
    return [
        RuleEntry(
            id="H3",
            holds="not unequal or (vpp == 1 and stage_split == 'even' and first_layers == 0 and last_layers == 0)",
            reason="with different depths per kind of device, no other setting may split the layers or stages",
            source="ours: a layout string sets all of this",
            checked="ours",
        ),
        RuleEntry(
            id="H4",
            holds=f"not unequal or (sharing_stages > 0 and shared_layers >= sharing_stages and {deeper})",
            reason="{shared_layers} layers are left for {sharing_stages} stages on the faster devices, so a stage on a "
            "slower device would not have fewer layers",
            source=f"ours; {_SOURCE}: every stage has a layer",
            checked="ours",
        ),
        RuleEntry(
            id="H5",
            holds="not unequal or ar != 'full' or ar_method != 'uniform' or ar_layers == 1",
            reason="uniform recomputation in groups of {ar_layers} layers does not divide stages of different depth",
            source="as R5: core/transformer/transformer_block.py:444",
            checked="nobody",
        ),
    ]


def stages(job: Job, configuration: Configuration) -> list[int]:
    """Returns the layers of each pipeline stage, if a knob sets their number for some kind of device; else []."""
    knobs = configuration.knobs
    own = {kind: int(knobs.get(knob_of(kind), 0)) for kind in device_counts(job)}
    if not any(own.values()):
        return []
    kinds = [node.device.replace("-", "_") for node in used_nodes(job, configuration) for _ in range(node.count)]
    pp = int(knobs["pp"])
    of = [kinds[stage * len(kinds) // pp] for stage in range(pp)]
    left = job.model.layers - sum(own[kind] for kind in of)
    whole, more = divmod(left, sum(not own[kind] for kind in of))
    found: list[int] = []
    for kind in of:
        found.append(own[kind] or whole + (more > 0))
        more -= not own[kind]
    return found


def flags(job: Job, configuration: Configuration) -> Flags:
    share = stages(job, configuration)
    return {LAYOUT: written(share)} if share else {}
