"""Groups per-rank metrics of measurements in the journal by kind of device, pipeline stage and host."""

import statistics
from collections.abc import Iterable

import msgspec

from autoscout.running.ranks import kind
from kb.records import Measurement
from tui.session.state import Run, State

SHOWN = ("step_time_s", "alone_s", "cpu_s", "peak_memory_gib", "power_w", "clock_mhz", "temperature_c")


class RankGroup(msgspec.Struct, frozen=True, kw_only=True):
    """A group of ranks. `values`: metric → median over the ranks that reported it."""

    name: str
    ranks: list[int]
    kinds: list[str]
    values: dict[str, float]


def newest(state: State) -> Run | None:
    return next((run for run in reversed(state.runs) if run.measurement and run.measurement.per_rank), None)


def by_kind(m: Measurement) -> list[RankGroup]:
    """Groups by kind of device; [] if the ranks' devices were not recorded."""
    where = _where(m)
    return [_group(m, k, [r for r, d in enumerate(where) if kind(d) == k]) for k in dict.fromkeys(map(kind, where))]


def by_stage(run: Run) -> list[RankGroup]:
    """Groups by pipeline stage, whose ranks are consecutive in Megatron; [] without pipeline parallelism."""
    m, stages = run.measurement, run.configuration.knobs.get("pp", 1)
    if m is None or isinstance(stages, bool) or not isinstance(stages, int) or stages < 2:
        return []
    count = max((len(values) for values in m.per_rank.values()), default=0)
    if not count or count % stages:
        return []
    each = count // stages
    return [_group(m, f"stage {s}", list(range(s * each, (s + 1) * each))) for s in range(stages)]


class HostSeen(msgspec.Struct, kw_only=True):
    """A host in a session's measurements. `runs`: number of runs with ranks on it; `incidents`: number of these that
    the infrastructure spoiled; `alone_s`: median time of its ranks for the same arithmetic (None: not reported)."""

    name: str
    devices: list[str]
    runs: int
    incidents: int
    alone_s: float | None


def by_host(state: State) -> list[HostSeen]:
    """The hosts of all runs of this session, without results taken from other sessions."""
    devices: dict[str, set[str]] = {}
    alone: dict[str, list[float]] = {}
    counted: dict[str, list[int]] = {}
    for run in state.runs:
        m = run.measurement
        if m is None or run.purpose == "answered":
            continue
        told = m.per_rank.get("alone_s", [])
        for rank, device in enumerate(_where(m)):
            host = device.partition(":")[0]
            devices.setdefault(host, set()).add(device.partition(":")[2])
            if len(told) > rank:
                alone.setdefault(host, []).append(told[rank])
        for host in {device.partition(":")[0] for device in _where(m)}:
            row = counted.setdefault(host, [0, 0])
            row[0] += 1
            row[1] += m.status == "infrastructure"
    return [
        HostSeen(
            name=host,
            devices=sorted(found),
            runs=counted[host][0],
            incidents=counted[host][1],
            alone_s=statistics.median(alone[host]) if host in alone else None,
        )
        for host, found in devices.items()
    ]


def _where(m: Measurement) -> list[str]:
    count = max((len(values) for values in m.per_rank.values()), default=len(m.rank_devices))
    return m.rank_devices if len(m.rank_devices) == count else []


def _group(m: Measurement, name: str, ranks: Iterable[int]) -> RankGroup:
    ranks = list(ranks)
    where = _where(m)
    values = {
        metric: statistics.median(told[r] for r in ranks)
        for metric in SHOWN
        if len(told := m.per_rank.get(metric, [])) > max(ranks)
    }
    return RankGroup(
        name=name, ranks=ranks, kinds=sorted({kind(where[r]) for r in ranks}) if where else [], values=values
    )
