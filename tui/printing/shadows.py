"""Output of `autoscout shadow`: verdict, memory by kind and over time, kernels, collectives."""

from collections import Counter

import click

from autoscout.simulate.shadow.traced import GIB, KINDS, OUT_OF_BALANCE, Rank, Shadow, Timed
from autoscout.simulate.shadow.verdict import peak
from tui.printing.predictions import stacked
from tui.text import number, table

_MOST = 10
_HEIGHT, _WIDTH = 10, 72
_LETTERS = dict(zip(KINDS, "wgoabt", strict=True))


def shadow(found: Shadow) -> None:
    click.echo(f"{found.name} on {found.world} ranks: {found.sentence}")
    traced = ", ".join(f"{package} {version}" for package, version in found.versions.items())
    known = f"; {found.cached} of {len(found.ranks)} ranks were traced before" if found.cached else ""
    click.echo(f"  {traced}; {found.cpu_s:.1f} s of CPU{known}")
    if found.verdict != "starts":
        return
    click.echo(f"  90 % interval {number(found.low)} to {number(found.high)} GiB allocated; reserved {_gib(found)}")
    if found.imbalanced is not None:
        click.echo(
            f"  if its experts get {OUT_OF_BALANCE:g} times the mean number of tokens: {number(found.imbalanced)} GiB"
        )
    if found.timed:
        click.echo("\nranks run alone on one device")
        click.echo(table([_timed_row(timed) for timed in found.timed], _TIMED))
    if found.step_s is not None:
        how = "measured kernels and predicted collectives" if found.timed else "predicted kernels and collectives"
        click.echo(f"\n{how}: {number(found.step_s)} s a step")
        click.echo(stacked(found.parts, "s"))
    fullest = found.ranks[0]
    click.echo("")
    rows = [
        (
            rank.rank,
            f"{rank.imbalance:g}" if rank.imbalance != 1 else "",
            number(peak(rank) / GIB),
            *(number(rank.at_peak[kind] / GIB) for kind in KINDS),
            number(rank.steps[-1].left / GIB),
        )
        for rank in found.ranks
    ]
    click.echo(table(rows, ("rank", "tokens ×", "peak GiB", *KINDS, "left")))
    click.echo(f"\nmemory of rank {fullest.rank} at its peak")
    click.echo(stacked({kind: fullest.at_peak[kind] / GIB for kind in KINDS}, "GiB", found.device_gib))
    if not fullest.timeline:  # not traced, but composed of other ranks' traces
        click.echo("\nreplaced by stand-ins: " + "; ".join(found.stood_in))
        return
    click.echo(f"\nover the step ({fullest.micro_batches_traced} of {fullest.micro_batches} micro batches)")
    click.echo(timeline(fullest))
    click.echo("\nlargest tensors at the peak")
    click.echo(table([(tag, kind, number(_int(size) / GIB)) for tag, kind, size in fullest.largest[:_MOST]], _LARGEST))
    click.echo(f"\ncollectives of rank {fullest.rank}")
    sent = sorted(fullest.collectives, key=lambda c: -c[0] * c[4])[: 2 * _MOST]
    click.echo(table([(c[1], c[2], c[3], c[5], c[0], number(c[4] / 2**20)) for c in sent], _COLLECTIVES))
    click.echo(f"\noperators ({fullest.operators:,} dispatched)")
    counts: Counter[tuple[str, str]] = Counter()
    for count, name, phase, *_ in fullest.kernels:
        counts[(name, phase)] += count
    click.echo(table([(n, p, c) for (n, p), c in counts.most_common(_MOST)], ("operator", "phase", "count")))
    click.echo("\nreplaced by stand-ins: " + "; ".join(found.stood_in))


_TIMED = (
    "rank",
    "ms a micro batch",
    "ms once",
    "ms optimizer",
    "between repeats",
    "GiB allocated",
    "reserved",
    "device",
)
_LARGEST = ("made by", "kind", "GiB")
_COLLECTIVES = ("collective", "group", "ranks", "phase", "count", "MiB each")


def _timed_row(timed: Timed) -> tuple[object, ...]:
    seconds = (timed.micro_batch_s, timed.once_s, timed.optimizer_s)
    memory = (timed.allocated, timed.reserved)
    return (
        timed.rank,
        *(number(1e3 * s) for s in seconds),
        f"{timed.spread:.1%}",
        *(number(m / GIB) if m else "–" for m in memory),
        timed.device,
    )


def timeline(rank: Rank) -> str:
    """Memory over time as stacked letters, with one column per interval of the step: w weights, g gradients, o
    optimizer state, a activations, b buffers, t temporary tensors."""
    if not rank.timeline:
        return ""
    width = min(_WIDTH, len(rank.timeline))
    groups = [
        rank.timeline[i * len(rank.timeline) // width :][: max(1, len(rank.timeline) // width)] for i in range(width)
    ]
    columns = [max(group, key=lambda row: sum(row[1:]))[1:] for group in groups]
    top = max(sum(column) for column in columns)
    drawn = []
    for column in columns:
        text, reached = "", 0
        for kind, size in zip(KINDS, column, strict=True):
            reached += size
            text += _LETTERS[kind] * (round(reached / top * _HEIGHT) - len(text))
        drawn.append(text.ljust(_HEIGHT))
    lines = ["  " + "".join(text[row] for text in drawn) for row in reversed(range(_HEIGHT))]
    lines[0] += f"  {top / GIB:.1f} GiB"
    legend = ", ".join(f"{letter} {kind}" for kind, letter in _LETTERS.items())
    return "\n".join([*(line.rstrip() for line in lines), f"  {legend}"])


def _gib(found: Shadow) -> str:
    beside = f", and {number(found.beside)} outside torch" if found.beside else ""
    return f"{number(found.reserved)}{beside}"


def _int(value: object) -> float:
    return float(value) if isinstance(value, int | float) else 0.0
