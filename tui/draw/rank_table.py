"""Tables of the machine's state in the journal: metrics of each rank, and conditions of the devices in each run."""

from rich.text import Text

from autoscout.running.ranks import kind, slowed, slowest
from kb.records import Measurement
from tui.draw.plot import sparkline
from tui.session.by_device import newest
from tui.session.state import State
from tui.text import number

COLUMNS = {  # name in per_rank → heading
    "step_time_s": "s/iter",
    "alone_s": "alone ms",
    "cpu_s": "CPU s",
    "peak_memory_gib": "peak GiB",
    "reserved_memory_gib": "reserved",
    "allocated_memory_gib": "allocated",
    "power_w": "W",
    "clock_mhz": "MHz",
    "temperature_c": "°C",
}
_WIDE = 10  # width of a column
_CONDITIONS = {  # condition of a run → (title, unit)
    "cpu_share": ("CPU busy", "%"),
    "foreign_cpu_share": ("by others", "%"),
    "steal_share": ("stolen", "%"),
    "cpu_pressure": ("waiting", "%"),
    "power_w": ("power", " W"),
    "clock_mhz": ("least clock", " MHz"),
    "temperature_c": ("temperature", " °C"),
    "throttled": ("throttled", ""),
}


def ranks(state: State, width: int, height: int, ascii_only: bool) -> Text:
    run = newest(state)
    if run is None or run.measurement is None:
        return Text(
            "ranks of the newest run: not recorded" if state.ended else "no run has reported its ranks yet", style="dim"
        )
    text = Text(no_wrap=True, overflow="ellipsis")
    text.append(f"#{run.number or '–'} {run.name}\n", style="dim")
    return text.append(rank_rows(run.measurement, width, height - 1, ascii_only))


def rank_rows(m: Measurement, width: int, height: int, ascii_only: bool) -> Text:
    """One line per rank, with the slowest marked; if there are too many, only the slowest and the first ones."""
    count = max((len(values) for values in m.per_rank.values()), default=0)
    found = slowest(m)
    names = [name for name in COLUMNS if len(m.per_rank.get(name, [])) == count]
    devices = [device.split(":", 1) for device in m.rank_devices] if len(m.rank_devices) == count else []
    several = len({host for host, _ in devices}) > 1
    where = [f"{host}:{rest}" if several or not host else rest for host, rest in devices] or [""] * count
    wide = min(24, max([6, *map(len, where)]))
    names = names[: max(1, (width - wide - 8) // _WIDE)]
    text = Text(no_wrap=True, overflow="ellipsis")
    if found is not None:
        text.append(f"{found.sentence}\n", style="bold" if slowed(m) else "")
    text.append(f"  rank {'device':<{wide}} " + "".join(f"{COLUMNS[n]:>{_WIDE}}" for n in names) + "\n", style="dim")
    room = max(1, height - 2)
    chosen = list(range(count)) if count <= room else list(range(max(0, room - 2)))
    if found is not None and found.rank not in chosen:
        chosen = [found.rank, *chosen]
    for rank in chosen:
        slow = found is not None and rank == found.rank
        mark = (">" if ascii_only else "▸") if slow else " "
        cells = "".join(f"{cell(name, m.per_rank[name][rank]):>{_WIDE}}" for name in names)
        text.append(f"{mark} {rank:<4} {where[rank]:<{wide}.{wide}} {cells}\n", style="bold" if slow else "")
    if count > len(chosen):
        text.append(f"  {count - len(chosen)} more; 5 shows all of a run\n", style="dim")
    text.right_crop(1)
    return text


def recorded(state: State, width: int, height: int, ascii_only: bool) -> Text:
    """The machine's conditions from run to run, from the journal."""
    measured = [run.measurement for run in state.runs if run.measurement and run.measurement.conditions]
    text = Text(no_wrap=True, overflow="ellipsis")
    where = state.host or "an unknown machine"
    kinds = sorted({kind(d) for m in measured for d in m.rank_devices} or {state.environment.get("device", "")})
    text.append(f"as recorded on {where}: {', '.join(k for k in kinds if k)}\n", style="bold")
    if not measured:
        return text.append("conditions of the machine: not recorded", style="dim")
    for name, (title, unit) in _CONDITIONS.items():
        values = [m.conditions[name] for m in measured if name in m.conditions]
        if values and text.plain.count("\n") < height:
            scale = 100 if unit == "%" else 1
            now = f"{values[-1] * scale:.0f}{unit}"
            text.append(f"  {title:<12}{now:>9}  ")
            text.append(f"{sparkline(values, max(4, min(120, width - 26)), ascii_only)}\n", style="dim")
    text.right_crop(1)
    return text


def cell(name: str, value: float) -> str:
    """A value of a metric in the unit of its heading."""
    return number(value * 1000 if name == "alone_s" else value)
