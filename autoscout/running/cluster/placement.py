"""Data structures for existing devices, and for the hosts of one experiment (in rank order)."""

import msgspec


class Device(msgspec.Struct, frozen=True):
    """A device of a host. `index`: the device's entry in CUDA_VISIBLE_DEVICES (an index, or the UUID of a GPU or MIG
    slice); for a CPU, the rank's number. `kind`: as in a job's nodes ("cpu", "a100-40g"), "" if unknown. `group`:
    devices of one host with the same group disturb each other's measurements."""

    index: str
    kind: str = ""
    memory_gib: float = 0.0  # 0: unknown
    group: str = ""


class Host(msgspec.Struct, frozen=True):
    """A host of a placement. `name`: as people and schedulers call the host; `address`: where other hosts reach it ("":
    `name`). Ranks are assigned to `devices` in order."""

    name: str
    devices: tuple[Device, ...]
    address: str = ""


class Placement(msgspec.Struct, frozen=True):
    """The hosts of one experiment. Each host lists only the experiment's devices, at least one. Global ranks count host
    by host in this order, and on each host in the order of its devices; a host's node rank is its position here."""

    hosts: tuple[Host, ...]

    @property
    def ranks(self) -> int:
        return sum(len(host.devices) for host in self.hosts)

    def first_rank(self, node: int) -> int:
        """The global rank of the first device of the host at this position."""
        return sum(len(host.devices) for host in self.hosts[:node])

    @property
    def spelled(self) -> str:
        """The placement as journals and people write it: "node1:0,1 node2:0"."""
        return " ".join(f"{h.name}:{','.join(d.index for d in h.devices)}" for h in self.hosts)
