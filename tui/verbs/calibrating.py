"""Verbs that measure this machine: calibrate."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from tui.options import common, note

if TYPE_CHECKING:
    from autoscout.machine.calibrate import Calibration


@click.command()
@click.option("--quick", is_flag=True, help="Measure fewer shapes and repeats: tens of seconds instead of minutes.")
@click.option("--python", "interpreter", default="", help="Interpreter with the target's torch (default: AutoScout's).")
@click.option("--name", default="", help="Name of this device in jobs (default: cpu, or the GPU's name).")
@common
def calibrate(quick: bool, interpreter: str, name: str, kb: Path | None, as_json: bool) -> None:
    """Measure this machine with micro-benchmarks, for the simulators.

    The result is a device record next to the knowledge base; from then on predictions for that device use it.
    """
    import re
    import shlex
    import sys

    from autoscout.job.device_records import own_folder
    from autoscout.machine.calibrate import calibrate, write

    if name and not re.fullmatch(r"[A-Za-z0-9][\w.-]*", name):
        raise click.UsageError(f"--name '{name}' becomes a file name; use letters, digits, '.', '_' and '-' only")
    python = shlex.split(interpreter) or [sys.executable]
    found = calibrate(python, name, quick, note)
    folder = kb.parent / "hardware" if kb else own_folder()
    _report(found, write(found, folder), as_json)


def _report(found: "Calibration", path: Path, as_json: bool) -> None:
    import json

    from tui.text import number, table

    hw = found.record
    if as_json:
        click.echo(json.dumps({"device": found.device, "file": str(path), **_plain(found)}, indent=2))
        return
    rows = [
        *(
            [f"{dtype} products", number(rate), "TFLOP/s"]
            for dtype, rate in hw["peak_tflops"].items()
            if dtype != "fp16"
        ),
        ["memory", number(hw["memory_gb_s"]), "GB/s"],
    ]
    for i, ranks in enumerate(hw["island"]["ranks"]):
        curve = hw["island"]["all_reduce"]
        rows.append([f"all-reduce, {ranks} ranks", number(curve["bus_gb_s"][i]), "GB/s"])
        rows.append([f"all-reduce, {ranks} ranks, latency", number(curve["latency_us"][i]), "µs"])
    click.echo(f"{hw['name']} as '{found.device}', measured in {found.took_s:.0f} s")
    click.echo(table(rows, ["", "measured", "unit"]))
    errors = ", ".join(f"{name} {error:.0%}" for name, error in found.errors.items())
    click.echo(f"mean error of the fits: {errors}")
    click.echo(f"written to {path}; predictions for '{found.device}' use it from now on")


def _plain(found: "Calibration") -> dict[str, Any]:
    return {"took_s": found.took_s, "errors": found.errors, "record": found.record}
