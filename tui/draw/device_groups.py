"""Panels that compare kinds of device, pipeline stages and hosts, from measurements in the journal."""

from rich.text import Text

from tui.draw.plot import bar
from tui.draw.rank_table import COLUMNS, cell
from tui.session.by_device import SHOWN, RankGroup, by_host, by_kind, by_stage, newest
from tui.session.state import State
from tui.text import number

_NOT = "not recorded"
_COLUMN = 14


def kinds(state: State, width: int, height: int, ascii_only: bool) -> Text:
    """One column per kind of device, with the median of each metric over the ranks on it in the newest run."""
    run = newest(state)
    groups = by_kind(run.measurement) if run is not None and run.measurement is not None else []
    if run is None or not groups:
        return Text(f"which device each rank had: {_NOT}", style="dim")
    groups = groups[: max(1, (width - 10) // _COLUMN)]
    text = Text(no_wrap=True, overflow="ellipsis")
    text.append(f"{'':<10}" + "".join(f"{g.name or 'device':>{_COLUMN}.{_COLUMN - 1}}" for g in groups) + "\n", "bold")
    text.append(f"{'ranks':<10}" + "".join(f"{len(g.ranks):>{_COLUMN}}" for g in groups) + "\n")
    for metric in SHOWN:
        if metric == "step_time_s" and len(groups) > 1:
            continue  # ranks wait for each other, so this metric does not depend on the rank's kind of device
        cells = [_cell(metric, g) for g in groups]
        if set(cells) != {_NOT}:
            text.append(f"{COLUMNS[metric]:<10}" + "".join(f"{c:>{_COLUMN}}" for c in cells) + "\n")
    if len(groups) > 1 and (relation := _slowest_to_fastest(groups)):
        text.append(relation, style="dim")
    return text


def _slowest_to_fastest(groups: list[RankGroup]) -> str:
    times = sorted((g.values["alone_s"], g.name) for g in groups if "alone_s" in g.values)
    if len(times) < 2:
        return ""
    (fast, quick), (slow, late) = times[0], times[-1]
    return f"{late} takes {slow / fast:.2f} times as long as {quick} for the same arithmetic"


def stages(state: State, width: int, height: int, ascii_only: bool) -> Text:
    """One line per pipeline stage; the slowest stage, for which the other stages wait, is marked."""
    run = newest(state)
    if run is None:
        return Text(_NOT, style="dim")
    groups = by_stage(run)
    if not groups:
        pipelined = run.configuration.knobs.get("pp", 1) != 1
        return Text(f"ranks of the newest run: {_NOT}" if pipelined else "the newest run has no pipeline", style="dim")
    slowest = max((g.values.get("alone_s", 0.0) for g in groups), default=0.0)
    size = max(4, min(12, width - 44))
    text = Text(no_wrap=True, overflow="ellipsis")
    text.append(f"{'':<9}{'ranks':<8}{'alone ms':>9} {'':<{size}} {'peak GiB':>9}  kind\n", style="dim")
    for g in groups[: height - 1]:
        alone = g.values.get("alone_s")
        waits = alone is not None and alone == slowest and len(groups) > 1
        text.append(f"{g.name:<9}{_ranks(g.ranks):<8}{_cell('alone_s', g):>9.9} ", style="bold" if waits else "")
        text.append(f"{bar(alone / slowest if alone and slowest else 0.0, size, ascii_only)} ", style="dim")
        text.append(f"{_cell('peak_memory_gib', g):>9.9}  {' '.join(g.kinds)}\n")
    return text


def hosts(state: State, width: int, height: int, ascii_only: bool) -> Text:
    found = by_host(state)
    if not found:
        return Text(f"which hosts ran what: {_NOT}", style="dim")
    text = Text(no_wrap=True, overflow="ellipsis")
    wide = min(16, 1 + max(len("host"), *(len(h.name) for h in found)))
    text.append(f"{'host':<{wide}}{'runs':>5}{'spoiled':>8}{'alone ms':>10}  devices\n", style="dim")
    for h in found[: height - 1]:
        alone = number(h.alone_s * 1000) if h.alone_s is not None else _NOT
        text.append(f"{h.name:<{wide}.{wide - 1}}{h.runs:>5}{h.incidents:>8}{alone:>10.10}  {', '.join(h.devices)}\n")
    return text


def _cell(metric: str, group: RankGroup) -> str:
    value = group.values.get(metric)
    return _NOT if value is None else cell(metric, value)


def _ranks(ranks: list[int]) -> str:
    return str(ranks[0]) if len(ranks) == 1 else f"{ranks[0]}-{ranks[-1]}"
