"""Output of `autoscout shadow` for a serving job: latencies, the KV cache, the queue."""

import math

import click

from autoscout.simulate.learned.weighing import SPAN
from autoscout.simulate.shadow.served import ServingShadow
from tui.printing.predictions import stacked
from tui.text import number, table

_LATENCIES = {
    "ttft": "to the first token, ms",
    "tpot": "each after it, ms",
    "itl": "between two, ms",
    "e2el": "whole answer, ms",
}
_COLUMNS = ("mean", "p50", "p90", "p99")


def served(found: ServingShadow) -> None:
    engines = f"{found.engines} engines" if found.engines > 1 else "one engine"
    click.echo(f"{found.name} on {found.world} devices, {engines}: {found.sentence}")
    versions = ", ".join(f"{package} {version}" for package, version in found.versions.items())
    known = "; it was known" if found.cached else ""
    click.echo(f"  {versions}; {found.cpu_s:.1f} s of CPU{known}")
    if found.verdict != "starts":
        return
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
    click.echo(
        f"\none engine's last load: {found.requests} requests, {found.steps:,} steps, at most {found.most_running} "
        f"requests together; the device computes {found.busy:.0%} of the time"
    )
    click.echo(
        f"  in the queue {number(found.waited_mean_ms)} ms in the mean, {number(found.waited_p99_ms)} at p99; "
        f"{found.preemptions} preemptions; the prefix cache had {found.hit_share:.1%} of the prompts' tokens"
    )
    click.echo(f"  KV cache: {found.kv_blocks:,} blocks of {found.block_size} tokens")
    used = {"weights": found.weights_gib, "KV cache": found.kv_gib}
    click.echo("\nmemory of a device, predicted")
    click.echo(stacked(used, "GiB", found.device_gib))
    click.echo("\nstood in for: " + "; ".join(found.stood_in))


def _percent(error: float) -> str:
    return f"{math.expm1(SPAN * error):.0%}"
