"""Writes a session as one self-contained HTML file, without scripts or downloads. All text from the journal is escaped,
since names and log lines are untrusted."""

import time
from collections.abc import Iterable, Iterator, Sequence
from html import escape

from rich.text import Text

from autoscout.deploy.recommendation import changed_knobs, disturbance
from kb.records import DESIGNED
from tui.draw import beliefs, device_groups
from tui.draw.comparing import front as front_of
from tui.draw.winning_launch import command
from tui.hygiene import plain
from tui.session.by_device import by_host, by_kind, newest
from tui.session.fronts import front
from tui.session.headlines import verdict
from tui.session.standing import standing
from tui.session.state import BESIDE, State, best_so_far
from tui.text import clock, knob_value, metric, number, unit

_WIDE, _HIGH, _LEFT, _BOTTOM = 860, 260, 80, 30  # size and margins of the plot in pixels
_COLUMNS = 110  # width of text panels in characters
_MOST = 2000  # largest number of listed experiments
_STYLE = """
:root { color-scheme: light dark; --ink: #1b1f24; --soft: #57606a; --line: #d0d7de; --paper: #fff; --box: #f6f8fa }
@media (prefers-color-scheme: dark) { :root { --ink: #e6edf3; --soft: #9da7b3; --line: #30363d; --paper: #0d1117;
  --box: #161b22 } }
body { font: 15px/1.5 system-ui, sans-serif; color: var(--ink); background: var(--paper); max-width: 60rem;
  margin: 2rem auto; padding: 0 1rem }
h1 { font-size: 1.5rem } h2 { font-size: 1.1rem; margin-top: 2rem; border-bottom: 1px solid var(--line) }
pre { background: var(--box); padding: .8rem; overflow-x: auto; font: 13px/1.35 ui-monospace, monospace }
table { border-collapse: collapse; font-size: 13px; display: block; overflow-x: auto }
td, th { text-align: left; padding: .15rem .8rem .15rem 0; border-bottom: 1px solid var(--line); white-space: nowrap }
.number { text-align: right; font-variant-numeric: tabular-nums } .soft { color: var(--soft) }
svg text { fill: var(--soft); font-size: 12px } svg .axis { stroke: var(--line) }
svg .best { stroke: var(--ink); fill: none; stroke-width: 2 } svg .run { fill: #0072b2 } svg .failed { stroke: #d55e00 }
svg .default { stroke: var(--soft); stroke-dasharray: 5 5 }
"""


def page(state: State) -> str:
    """The HTML document. `state`: of a session that has started."""
    assert state.job is not None
    parts = [part for part in _parts(state) if part]
    title = _safe(f"{state.job.name}: {state.session}")
    head = f'<meta charset="utf-8"><meta name="viewport" content="width=device-width"><title>{title}</title>'
    return f"<!doctype html>\n<html lang=en><head>{head}<style>{_STYLE}</style></head>\n<body>\n" + "\n".join(
        [*parts, "</body></html>\n"]
    )


def _parts(state: State) -> Iterator[str]:
    job = state.job
    assert job is not None
    how = standing(state, None)
    yield f"<h1>{_safe(job.name)}</h1>"
    began = time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime(state.began))
    nodes = " + ".join(f"{n.count} × {n.device}" for n in job.cluster.nodes)
    facts = (state.session, f"{job.task} with {job.target} on {nodes}", began, f"strategy {state.strategy}")
    yield f"<p class=soft>{' · '.join(_safe(fact) for fact in facts)}</p>"
    if DESIGNED in state.environment.values():
        yield "<p><strong>Designed on models: nothing in this report was measured.</strong></p>"
    found = state.confirmed.name if state.confirmed else state.best.name if state.best else ""
    best = "" if state.best_value is None else f"{found}: {metric(job, state.best_value)}{_interval(state)}. "
    headline = verdict(state) or "Nothing ran correctly"
    yield f"<p><strong>{_safe(headline)}</strong></p><p>{_safe(best)}{_safe(how.words)}</p>"
    if busy := disturbance([run.measurement for run in state.runs if run.measurement is not None]):
        yield f"<p>{_safe(busy)}</p>"
    if how.advice:
        yield f"<pre>{_safe(how.advice)}</pre>"
    yield _section("Best so far", _curve(state))
    yield _section("What it changes", _changes(state))
    yield _section("Run it", f"<pre>{_safe(line)}</pre>" if (line := command(state)) else "")
    reasons = state.reasons
    if reasons.outlooks:
        yield _text("Is anything better left", beliefs.left(state, _COLUMNS, 6, False))
    if reasons.believed is not None:
        yield _text("Beliefs about each value", beliefs.belief(state, _COLUMNS, 200, False))
    if reasons.promises:
        yield _text("Expected and achieved gains", beliefs.promises(state, _COLUMNS, 20, False))
    yield _text("Results by fidelity", beliefs.ladder(state, _COLUMNS, 10, False))
    if job.objective.also:
        yield _text("Pareto front", front_of(state, front(state), _COLUMNS, 30, False))
    run = newest(state)
    if run is not None and run.measurement is not None and by_kind(run.measurement):
        yield _text("Kinds of device, newest run", device_groups.kinds(state, _COLUMNS, 20, False))
    if by_host(state):
        yield _text("Hosts", device_groups.hosts(state, _COLUMNS, 200, False))
    yield _section("Experiments", _experiments(state))
    rows = [(name, value) for name, value in state.environment.items()]
    yield _section("Measured with", _table(("", ""), rows))


def _interval(state: State) -> str:
    """The gain and its 95 % interval as text, even if the gain is not proven."""
    c = state.confirmed
    if c is None or c.gain is None or c.low is None or c.high is None or c.name == c.default_name:
        return ""
    low, gain, high = (f"{100 * (ratio - 1):+.0f} %" for ratio in (c.low, c.gain, c.high))
    return f"; {gain} over the reference, 95 % interval {low} to {high}"


def _changes(state: State) -> str:
    """A table of the knobs of the best configuration that differ from the reference's, with descriptions."""
    assert state.job is not None
    if state.winner is None or state.default is None:
        return ""
    changed = changed_knobs(state.job, state.default, state.winner)
    rows = [(each.knob, knob_value(each.default), knob_value(each.best), each.meaning) for each in changed]
    return _table(("knob", "reference", "best", "what it does"), rows) if rows else "<p>nothing</p>"


def _curve(state: State) -> str:
    """A plot with every experiment as a point, the best so far as a staircase, and the default as a dashed line."""
    steps = best_so_far(state)
    values = [p.value for p in state.curve if p.value is not None and p.kind != "predicted"]
    if not steps or not values:
        return "<p class=soft>no measurement</p>"
    ordered = sorted(values)
    low, high = min(steps[-1][1], ordered[0]), max(ordered[(len(ordered) - 1) * 9 // 10], steps[0][1])
    last = max(2, len(state.curve))

    def x(at: float) -> float:
        return _LEFT + (at - 1) / (last - 1) * (_WIDE - _LEFT - 10)

    def y(value: float) -> float:
        share = (min(max(value, low), high) - low) / ((high - low) or 1.0)
        return 10 + (1 - share) * (_HIGH - _BOTTOM - 20)

    drawn = [
        f'<line class=axis stroke="#d0d7de" x1="{_LEFT}" y1="{_HIGH - _BOTTOM}" x2="{_WIDE}" y2="{_HIGH - _BOTTOM}"/>'
    ]
    for value in (low, high):
        drawn.append(f'<text x="{_LEFT - 8}" y="{y(value) + 4:.1f}" text-anchor="end">{escape(number(value))}</text>')
    if state.default_value is not None:
        at = y(state.default_value)
        drawn.append(
            f'<line class=default stroke="#57606a" stroke-dasharray="5 5" '
            f'x1="{_LEFT}" y1="{at:.1f}" x2="{_WIDE}" y2="{at:.1f}"/>'
        )
        drawn.append(f'<text x="{_WIDE}" y="{at - 5:.1f}" text-anchor="end">default</text>')
    for p in state.curve:
        if p.value is None:
            cross, edge = x(p.at), _HIGH - _BOTTOM - 5
            drawn.append(
                f'<path class=failed fill="none" stroke="#d55e00" d="M{cross - 3:.1f} {edge - 3}l6 6m0 -6l-6 6"/>'
            )
        elif p.kind != "predicted":
            drawn.append(f'<circle class=run fill="#0072b2" cx="{x(p.at):.1f}" cy="{y(p.value):.1f}" r="3"/>')
    path = f"M{x(steps[0][0]):.1f} {y(steps[0][1]):.1f}"
    path += "".join(f"H{x(at):.1f}V{y(value):.1f}" for at, value in steps[1:])
    drawn.append(f'<path class=best fill="none" stroke="#57606a" stroke-width="2" d="{path}H{x(last):.1f}"/>')
    axis = escape(unit(state.job.objective.metric)) if state.job else ""
    drawn.append(f'<text x="{_LEFT}" y="{_HIGH - 8}">experiment 1; the axis is in {axis}</text>')
    drawn.append(f'<text x="{_WIDE}" y="{_HIGH - 8}" text-anchor="end">{last}</text>')
    return f'<svg viewBox="0 0 {_WIDE} {_HIGH}" width="100%" role="img">{"".join(drawn)}</svg>'


def _experiments(state: State) -> str:
    rows = [
        (
            run.number or "–",
            run.purpose if run.purpose in BESIDE else run.arm or run.purpose,
            run.status,
            "–" if run.value is None else number(run.value),
            clock(run.ended - run.began) if run.ended and run.began else "–",
            run.name,
            run.note,
        )
        for run in state.runs[:_MOST]
    ]
    more = f"<p class=soft>{len(state.runs) - _MOST:,} more are in the journal</p>" if len(state.runs) > _MOST else ""
    assert state.job is not None
    heading = ("#", "for", "status", state.job.objective.metric, "took", "configuration", "note")
    return _table(heading, rows) + more


def _table(heading: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    head = "".join(f"<th>{_safe(cell)}</th>" for cell in heading)
    body = "".join("<tr>" + "".join(f"<td>{_safe(cell)}</td>" for cell in row) + "</tr>\n" for row in rows)
    return f"<table><tr>{head}</tr>\n{body}</table>"


def _text(title: str, text: Text) -> str:
    return _section(title, f"<pre>{_safe(text.plain)}</pre>" if text.plain.strip() else "")


def _section(title: str, content: str) -> str:
    return f"<h2>{escape(title)}</h2>\n{content}" if content else ""


def _safe(value: object) -> str:
    return escape(plain(str(value)))
