"""Links between the nodes of a job's cluster. Plain data."""

import msgspec


class Links(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """Bandwidth that all devices of a node share towards other nodes, in Gb/s (0: as the hardware files assume);
    `between_kinds_gbps`: where it crosses from one kind of device to another (0: as between nodes)."""

    between_nodes_gbps: float = 0.0
    between_kinds_gbps: float = 0.0
