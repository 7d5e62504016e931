"""The phases of an RL iteration as bars."""

from collections.abc import Mapping

from rich.text import Text

from autoscout.targets.command.worker.iterations.phase_clock import PHASES
from tui.draw.plot import bar
from tui.text import number

_MEANING = {
    "rollout": "answers are generated",
    "reward": "answers are scored",
    "logprobs": "old and reference ones",
    "weights": "engines get new weights",
    "wait": "idle: for other ranks",
    "other": "prompts and answers are packed",
    "update": "passes and optimizer",
}


def has_phases(metrics: Mapping[str, float]) -> bool:
    return all(f"{phase}_s" in metrics for phase in PHASES) and metrics.get("step_time_s", 0.0) > 0


def of_iteration(runs: Mapping[str, Mapping[str, float]], ascii_only: bool) -> Text:
    """`runs`: metrics by what a run is called, each with all phases. A line a phase: the seconds and the share of an
    iteration of each run."""
    text = Text(f"{'':<10}" + "".join(f"{name:<25}" for name in runs) + "\n", style="dim", no_wrap=True)
    for phase in PHASES:
        seconds = [(metrics[f"{phase}_s"], metrics["step_time_s"]) for metrics in runs.values()]
        if not any(own for own, _ in seconds):
            continue
        text.append(f"{phase:<10}", style="bold")
        for own, whole in seconds:
            text.append(f"{bar(own / whole, 8, ascii_only)} {own / whole:>4.0%} {number(own):>8} s ")
        text.append(f"{_MEANING[phase]}\n", style="dim")
    text.append(f"{'iteration':<10}", style="bold")
    return text.append("".join(f"{number(metrics['step_time_s']):>22} s " for metrics in runs.values()) + "\n")
