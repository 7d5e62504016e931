"""Shows an experiment as a row of a table, or with all details."""

from collections.abc import Mapping
from typing import Any

from rich.text import Text

from kb.records import Configuration
from tui.draw.iteration_bars import has_phases, of_iteration
from tui.draw.look import glyph, style
from tui.draw.plot import sparkline
from tui.draw.rank_table import rank_rows
from tui.draw.winning_launch import command_of
from tui.session.state import SEARCH_PURPOSES, Run, State
from tui.text import changes, knob_value, label, label_width, number


def experiment_row(state: State, index: int, ascii_only: bool, often: Mapping[tuple[str, Any], int] = {}) -> list[str]:
    """One row of the table of experiments. `often`: as in `text.changes`, so that rare settings are not truncated."""
    run = state.runs[index]
    value = number(run.value) if run.value is not None else ""
    memory = run.measurement.metrics.get("peak_memory_gib") if run.measurement else None
    cost = number(run.ended - run.began) if run.ended and run.began else ""
    kind = run.purpose if run.purpose not in SEARCH_PURPOSES else run.arm or run.purpose
    return [
        str(run.number or ""),
        f"{glyph(run.status, ascii_only)} {run.status}",
        value,
        "" if memory is None else number(memory),
        cost,
        kind,
        called(state, run.configuration, run.name, often),
    ]


def called(state: State, configuration: Configuration, name: str, often: Mapping[tuple[str, Any], int] = {}) -> str:
    """A configuration as its differences from the reference, or its name before the reference is known."""
    return changes(state.default.knobs, configuration.knobs, often) if state.default else name


def describe(state: State, run: Run, tail: list[str], ascii_only: bool, width: int = 120) -> Text:
    """All details of an experiment: status and reason, prediction and measurement, metrics, knobs (in bold if they
    differ from the default), the command that runs it outside AutoScout, environment, log."""
    text = Text()
    text.append(f"{glyph(run.status, ascii_only)} {run.status}  ", style=style(run.status))
    text.append(f"{run.name}\n", style="bold")
    if run.note:
        text.append(f"{run.note}\n")
    text.append(f"{run.purpose} {run.arm}  {run.why}\n", style="dim")
    if run.predicted is not None:
        text.append(f"\npredicted {number(run.predicted)}")
        text.append(
            f", {state.seen} {number(run.value)}: {run.predicted / run.value - 1:+.1%}\n"
            if run.value
            else f", not {state.seen} yet\n"
            if run.status == "running"
            else f", but {run.status}\n"
        )
    _metrics(text, run, state.seen, ascii_only, width)
    _knobs(text, state, run)
    if run.measurement is not None and run.measurement.environment:
        _title(text, "environment")
        wide = label_width(run.measurement.environment)
        for name, value in run.measurement.environment.items():
            text.append(f"{label(name, wide)}{value}\n")
    if state.job is not None:
        _title(text, "command")
        text.append(f"{command_of(state.job, run.configuration, run.name, run.status)}\n")
    if run.folder:
        _title(text, f"log, in {run.folder}")
        for line in tail:
            text.append(f"{line}\n", style="dim")
        if not tail:
            text.append("no log here\n", style="dim")
    return text


def _metrics(text: Text, run: Run, seen: str, ascii_only: bool, width: int) -> None:
    m = run.measurement
    if m is None:
        return
    if has_phases(m.metrics):
        _title(text, "phases of an iteration")
        text.append(of_iteration({"": m.metrics}, ascii_only))
    _title(text, seen)
    wide = label_width(m.metrics)
    for name, value in m.metrics.items():
        text.append(f"{label(name, wide)}{number(value)}\n")
    if m.iterations_s:
        text.append(f"{'iterations s':<18}{' '.join(number(x) for x in m.iterations_s)}")
        text.append(f"  {sparkline(m.iterations_s, 20, ascii_only)}\n", style="dim")
    if m.per_rank:
        _title(text, "ranks")
        text.append(rank_rows(m, width, 10_000, ascii_only)).append("\n")
    elif m.rank_memory_gib:
        text.append(f"{'GiB by rank':<18}{' '.join(number(x) for x in m.rank_memory_gib)}\n")
    if m.losses:
        called = "rewards, losses" if has_phases(m.metrics) else "losses"
        text.append(f"{called:<18}{' '.join(f'{x:.4g}' for x in m.losses[:8])}\n")
    if m.grad_norms:
        text.append(f"{'gradient norms':<18}{' '.join(f'{x:.4g}' for x in m.grad_norms[:8])}\n")
    text.append(f"{'cost':<18}{number(m.cost_s)} s, {number(m.device_s)} device seconds\n")
    if m.conditions:
        _title(text, "conditions")
        wide = label_width(m.conditions)
        for name, value in m.conditions.items():
            text.append(f"{label(name, wide)}{number(value)}\n")


def _knobs(text: Text, state: State, run: Run) -> None:
    usual = state.default.knobs if state.default else {}
    _title(text, "configuration")
    wide = label_width(run.configuration.knobs)
    for name, value in run.configuration.knobs.items():
        other = name in usual and usual[name] != value
        text.append(f"{label(name, wide)}{knob_value(value)}", style="bold" if other else "")
        text.append(f"  default {knob_value(usual[name])}\n" if other else "\n", style="dim")


def _title(text: Text, title: str) -> None:
    text.append(f"\n{title}\n", style="bold underline")
