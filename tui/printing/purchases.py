"""Output of `autoscout predict --usd`: the cluster, each workload on it, and the gain from doubling one resource."""

import math

import click

from autoscout.tuning.buying import Calibration, Purchase, Workshare
from tui.text import number, table


def bought(found: Purchase) -> None:
    c, learned = found.cluster, found.calibration
    click.echo(f"{found.offers} clusters within the budget hold these jobs; {found.evidence}. The fastest:")
    click.echo(
        f"  {c['npus']} {c['device']} in islands of {c['npus_1']} ({c['bandwidth_1']} GB/s of each), "
        f"{c['bandwidth_2']} GB/s of each between them; {found.usd / 1e6:.1f} M$, {found.watts / 1e3:.0f} kW\n"
    )
    rows = [
        (_named(w), f"{w.weight:g}", f"{number(w.seconds)} s", _between(w), w.by, _laid(w)) for w in found.workloads
    ]
    click.echo(table(rows, ("workload", "weight", "predicted", "90 % interval", "by", "layout")))
    if found.today:
        faster = f"; the new cluster is {found.faster:.2f} × as fast" if found.faster else ""
        click.echo(f"today: {number(found.today)} s measured{faster}")
    if (s := found.simulator) is not None:
        click.echo(
            f"by the simulator of today's job ({s.name}), corrected by {s.rows} measured "
            f"configuration{'s'[: s.rows != 1]} of {s.jobs} job{'s'[: s.jobs != 1]}; inside an island it takes the "
            "links that the device has"
        )
    if any(w.by == "design model" for w in found.workloads):
        _designed(learned)
    click.echo("")
    before = sum(w.weight * w.seconds for w in found.workloads) / sum(w.weight for w in found.workloads)
    told = [
        (
            d.what,
            f"{number(before / d.gain)} s" if math.isfinite(d.seconds) else "does not fit",
            f"{d.gain:.2f} ×",
            "no price" if d.usd is None else f"{d.usd / 1e6:.1f} M$",
        )
        for d in found.doubled
    ]
    click.echo(table(told, ("twice the", "mean time", "as fast", "then costs")))


def _designed(learned: Calibration) -> None:
    """Prints the origin of the design model's interval."""
    if learned.today_rows:
        click.echo(f"corrected × {learned.factor:.2f}, what today's job took of what the design model says (median)")
    click.echo(f"interval of the design model from {learned.source}: logarithms are off by {learned.deviation:.2f}")
    if learned.left_out:
        click.echo(f"{learned.left_out} measured rows are left out: failed, or on what the design model does not know")


def _named(w: Workshare) -> str:
    return f"{w.kind}, {w.layers} × {w.hidden}"


def _between(w: Workshare) -> str:
    return f"{number(w.low)} to {number(w.high)}"


def _laid(w: Workshare) -> str:
    always = {"dp", "zero"}
    return " ".join(f"{n}={v}" for n, v in w.layout.items() if n in always or v not in (1, False))
