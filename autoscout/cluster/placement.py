"""What there is to run on, and where one experiment runs: hosts in the order of their ranks. Plain data."""

import msgspec


class Device(msgspec.Struct, frozen=True):
    """`index`: what its ranks are told (CUDA_VISIBLE_DEVICES): an index, or the uuid of a GPU or of a slice of one; for
    a CPU the number of the rank. `kind`: as of a job's nodes ("cpu", "a100-40g"), "" unknown. `group`: devices of one
    host that disturb each other's measurements share it."""

    index: str
    kind: str = ""
    memory_gib: float = 0.0  # 0: not known
    group: str = ""


class Host(msgspec.Struct, frozen=True):
    """`name`: what people and schedulers call it; `address`: where others reach it ("" by its name). Devices are in the
    order in which they get ranks."""

    name: str
    devices: tuple[Device, ...]
    address: str = ""


class Placement(msgspec.Struct, frozen=True):
    """Each host has only the devices that are this experiment's, at least one. Global ranks are counted host by host in
    this order, on each in the order of its devices; a host's node rank is its position here."""

    hosts: tuple[Host, ...]

    @property
    def ranks(self) -> int:
        return sum(len(host.devices) for host in self.hosts)

    def first_rank(self, node: int) -> int:
        """The global rank of the first device of the host at this position."""
        return sum(len(host.devices) for host in self.hosts[:node])

    @property
    def spelled(self) -> str:
        """ "node1:0,1 node2:0": as journals and people have it."""
        return " ".join(f"{h.name}:{','.join(d.index for d in h.devices)}" for h in self.hosts)
