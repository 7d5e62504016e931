"""Output of `autoscout shadow` for a serving job: latencies, the KV cache, the queue."""

import math

import click

from autoscout.simulate.learned.weighing import SPAN
from autoscout.simulate.shadow.served import EngineShare, ServingShadow
from tui.printing.predictions import stacked
from tui.text import number, table

_LATENCIES = {
    "ttft": "time to first token, ms",
    "tpot": "time per output token, ms",
    "itl": "between two tokens, ms",
    "e2el": "whole answer, ms",
}
_COLUMNS = ("mean", "p50", "p90", "p99")
_ROLES = {"both": "", "reads": ", reads", "answers": ", answers"}
_OF_ENGINES = (
    "engine", "requests", "TTFT p99, ms", "TPOT, ms", "steps", "most at once", "preemptions", "cached", "computing",
)  # fmt: skip


def served(found: ServingShadow) -> None:
    engines = f"{found.engines} engines" if found.engines > 1 else "one engine"
    click.echo(f"{found.name} on {found.world} devices, {engines}: {found.sentence}")
    versions = ", ".join(f"{package} {version}" for package, version in found.versions.items())
    known = "; stored by an earlier run" if found.cached else ""
    click.echo(f"  {versions}; {found.cpu_s:.1f} s of CPU{known}")
    if found.verdict != "starts":
        return
    if found.phases:
        click.echo("\nphases of an iteration, predicted\n" + stacked(found.phases, "s"))
    rows = [
        (what, *(number(found.metrics[f"{name}_{column}_ms"]) for column in _COLUMNS))
        for name, what in _LATENCIES.items()
    ]
    click.echo("\n" + table(rows, ("predicted", *_COLUMNS)))
    rates = ("output_tokens_per_s", "total_tokens_per_s", "requests_per_s", "goodput_rps", "max_rate_rps")
    click.echo("  " + ", ".join(f"{name} {number(found.metrics[name])}" for name in rates if name in found.metrics))
    click.echo(
        f"  steps are predicted within {_percent(found.error)} (90 %), the time to the first token within "
        f"{_percent(found.ttft_error)}"
    )
    click.echo(f"\nthe last load: {found.requests} requests{f', {found.failed} failed' if found.failed else ''}")
    click.echo(f"  in the queue {number(found.waited_mean_ms)} ms on average, {number(found.waited_p99_ms)} at p99")
    click.echo("\n" + table([_engine(share) for share in found.each], _OF_ENGINES))
    if found.starved:
        click.echo(f"  {found.starved}")
    if found.engines > 1:
        click.echo(f"  the slowest is engine {found.slowest}; requests are assigned by {found.router}")
    click.echo(f"  KV cache: {found.kv_blocks:,} blocks of {found.block_size} tokens")
    used = {"weights": found.weights_gib, "KV cache": found.kv_gib}
    click.echo("\nmemory of a device, predicted")
    click.echo(stacked(used, "GiB", found.device_gib))
    click.echo("\nreplaced by stand-ins: " + "; ".join(found.stood_in))


def _engine(share: EngineShare) -> tuple[str, ...]:
    counts = share.counts
    return (
        f"{share.number}{_ROLES[counts.role]}{', lost' if counts.lost else ''}",
        f"{share.requests:,}",
        number(share.ttft_p99_ms),
        number(share.tpot_mean_ms),
        f"{counts.steps:,}",
        str(counts.most_running),
        str(counts.preemptions),
        f"{counts.hit_share:.1%}",
        f"{counts.busy:.0%}",
    )


def _percent(error: float) -> str:
    return f"{math.expm1(SPAN * error):.0%}"
