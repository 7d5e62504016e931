"""Links between the nodes of a job's cluster. Plain data."""

import msgspec


class Links(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """Network bandwidth of each node, in Gb/s for all of its devices together. `between_nodes_gbps`: to other nodes (0:
    the value in the device records); `between_kinds_gbps`: to nodes with a different kind of device (0: the same as
    `between_nodes_gbps`)."""

    between_nodes_gbps: float = 0.0
    between_kinds_gbps: float = 0.0
