"""Links between the nodes of a job's cluster. Plain data."""

import msgspec


class Links(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """Bandwidth from one node to the others, in Gb/s for all of its devices together (0: as the device records assume).
    `between_kinds_gbps`: between nodes with different kinds of device (0: the same)."""

    between_nodes_gbps: float = 0.0
    between_kinds_gbps: float = 0.0
