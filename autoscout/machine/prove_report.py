"""Writes the results of `autoscout doctor --prove` as JSON and Markdown."""

import time
from pathlib import Path

import msgspec

from autoscout.machine.prove import Proof, ProveRun
from autoscout.running import results

_SIGNS = {"passed": "✓", "failed": "✗", "not run": "–"}


def write(proof: Proof, folder: Path) -> list[Path]:
    """Writes gpu-check.json and gpu-check.md to the folder. Errors: AutoscoutError if it cannot be written."""
    paths = [folder / "gpu-check.json", folder / "gpu-check.md"]
    with results.writing(folder):
        folder.mkdir(parents=True, exist_ok=True)
        paths[0].write_bytes(msgspec.json.format(msgspec.json.encode(proof)))
        paths[1].write_text(markdown(proof))
    return paths


def markdown(proof: Proof) -> str:
    when = time.strftime("%Y-%m-%d", time.gmtime(proof.at))
    facts = {key: value for key, value in proof.machine.items() if key != "host" and value}
    lines = [
        f"{when}, on {facts.pop('device', 'an unknown machine')}: "
        + ", ".join(f"{key} {value}" for key, value in sorted(facts.items())),
        "",
        "| step | came | what was found | s |",
        "|---|---|---|---|",
    ]
    lines += [
        f"| {step.name} | {_SIGNS[step.came]} {step.came} | {_cell(step.found)} | {step.took_s:.0f} |"
        for step in proof.steps
    ]
    if proof.experiments:
        lines += ["", "| experiment | ranks | status | s a step | predicted | GiB/rank | tensors | shadow | agrees |"]
        lines += ["|---|---|---|---|---|---|---|---|---|"]
        lines += [_row(e) for e in proof.experiments]
    for came, title in (("passed", "Confirmed"), ("failed", "Not true here"), ("not run", "Not asked")):
        claims = [step.claim for step in proof.steps if step.came == came]
        if claims:
            lines += ["", f"{title}: {'; '.join(claims)}."]
    return "\n".join(lines) + "\n"


def _row(e: ProveRun) -> str:
    numbers = (e.measured_s, e.predicted_s, e.peak_memory_gib, e.allocated_gib, e.shadow_gib)
    shown = " | ".join(map(_number, numbers))
    return f"| {e.name} | {e.ranks} | {e.status} | {shown} | {_cell(e.verdict) or 'yes'} |"


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:.4g}"


def _cell(text: str) -> str:
    line = " ".join(text.replace("|", "/").split())
    line = line.split(" (log")[0]
    return line if len(line) <= 240 else line[:239] + "…"
