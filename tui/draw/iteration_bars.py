"""Draws the times of the phases of an RL iteration as bars."""

from collections.abc import Mapping

from rich.text import Text

from tui.draw.plot import bar
from tui.text import number

_MEANING = {  # names of phases in the metrics of TRL or verl → descriptions
    "rollout": "answers are generated",
    "reward": "answers are scored",
    "logprobs": "old and reference policy's",
    "reference": "the reference policy's, if timed apart",
    "weights": "engines get new weights",
    "wait": "idle: for other ranks",
    "update": "forward, backward and optimizer",
    "other": "the rest",
}


def has_phases(metrics: Mapping[str, float]) -> bool:
    return "rollout_s" in metrics and "update_s" in metrics and metrics.get("step_time_s", 0.0) > 0


def of_iteration(runs: Mapping[str, Mapping[str, float]], ascii_only: bool) -> Text:
    """One line per phase with seconds and share of the iteration for each run. `runs`: label of a run → metrics."""
    text = Text(f"{'':<10}" + "".join(f"{name:<25}" for name in runs) + "\n", style="dim", no_wrap=True)
    spent = [_phases(metrics) for metrics in runs.values()]
    wholes = [metrics["step_time_s"] for metrics in runs.values()]
    for phase, meaning in _MEANING.items():
        if not any(each[phase] > 0 for each in spent):
            continue
        text.append(f"{phase:<10}", style="bold")
        for each, whole in zip(spent, wholes, strict=True):
            share = each[phase] / whole
            text.append(f"{bar(share, 8, ascii_only)} {share:>4.0%} {number(each[phase]):>8} s ")
        text.append(f"{meaning}\n", style="dim")
    text.append(f"{'iteration':<10}", style="bold")
    return text.append("".join(f"{number(metrics['step_time_s']):>22} s " for metrics in runs.values()) + "\n")


def _phases(metrics: Mapping[str, float]) -> dict[str, float]:
    """Phase → seconds; the remaining time is "other"."""
    found = {phase: metrics.get(f"{phase}_s", 0.0) for phase in _MEANING}
    return {**found, "other": max(0.0, found["other"] + metrics["step_time_s"] - sum(found.values()))}
