"""Draws the times of the phases of an RL iteration as bars."""

from collections.abc import Iterable, Mapping

from rich.text import Text

from autoscout.job.objective import cost
from kb.records import Configuration, Measurement, Objective
from tui.draw.plot import bar
from tui.text import number

# Names of phases in the metrics of TRL or verl → descriptions, which fit next to the bars of two runs in 80 columns.
_MEANING = {
    "rollout": "answers generated",
    "reward": "answers scored",
    "logprobs": "log-probabilities",
    "reference": "the reference's",
    "weights": "to the engines",
    "wait": "idle: other ranks",
    "update": "passes, optimizer",
    "other": "the rest",
}


def has_phases(metrics: Mapping[str, float]) -> bool:
    return "rollout_s" in metrics and "update_s" in metrics and metrics.get("step_time_s", 0.0) > 0


def reference_and_best(
    objective: Objective, rows: Iterable[Measurement], reference: Configuration, winner: Configuration | None
) -> dict[str, Mapping[str, float]]:
    """The metrics of an RL job's reference and best configuration, each from its median run; {} for other jobs.
    `winner`: the confirmed configuration; None: the one with the fastest run is the best."""
    ran = [m for m in rows if m.counts and m.status == "ok" and has_phases(m.metrics)]
    costs = sorted(((c, m) for m in ran if (c := cost(objective, m)) is not None), key=lambda each: each[0])
    if not costs:
        return {}
    best = winner or costs[0][1].configuration
    found = {}
    for called, of in {"reference": reference, "best": best}.items():
        of_one = [m.metrics for _, m in costs if m.configuration == of]
        if of_one and (called == "reference" or of != reference):
            found[called] = of_one[len(of_one) // 2]
    return found


def of_iteration(runs: Mapping[str, Mapping[str, float]], ascii_only: bool) -> Text:
    """One line per phase with seconds and share of the iteration for each run. `runs`: label of a run → metrics."""
    text = Text(f"{'':<10}" + "".join(f"{name:<24}" for name in runs) + "\n", style="dim", no_wrap=True)
    spent = [_phases(metrics) for metrics in runs.values()]
    wholes = [metrics["step_time_s"] for metrics in runs.values()]
    for phase, meaning in _MEANING.items():
        if not any(each[phase] > 0 for each in spent):
            continue
        text.append(f"{phase:<10}", style="bold yellow" if phase == "wait" else "bold")
        for each, whole in zip(spent, wholes, strict=True):
            share = each[phase] / whole
            text.append(f"{bar(share, 7, ascii_only)} {share:>4.0%} {number(each[phase]):>8} s ")
        text.append(f"{meaning}\n", style="dim")
    text.append(f"{'iteration':<10}", style="bold")
    return text.append("".join(f"{number(metrics['step_time_s']):>21} s " for metrics in runs.values()) + "\n")


def _phases(metrics: Mapping[str, float]) -> dict[str, float]:
    """Phase → seconds; the remaining time is "other"."""
    found = {phase: metrics.get(f"{phase}_s", 0.0) for phase in _MEANING}
    return {**found, "other": max(0.0, found["other"] + metrics["step_time_s"] - sum(found.values()))}
