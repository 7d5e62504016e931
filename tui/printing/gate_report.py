"""What gates and bisections end on: text for people, JUnit XML and Markdown for pull requests."""

import xml.etree.ElementTree as xml

import click

from autoscout.tuning.bisection import Bisected
from kb.end_events import Gated
from kb.within_events import Part
from tui.printing.document import document
from tui.text import number, table

_MARKS = {"no worse": "✓", "worse": "✗", "undecided": "–"}


def show(found: Gated, as_json: bool) -> None:
    if as_json:
        document(found)
        return
    click.echo(f"{_MARKS[found.verdict]} {found.sentence}")
    if found.parts:
        click.echo(table(_rows(found.parts), header=["", "A", "B", "B against A", "95 % interval"]))
    click.echo(f"A is {found.a} ({found.a_session}); B is {found.b}")


def _rows(parts: list[Part]) -> list[list[str]]:
    return [[p.name, number(p.a), number(p.b), _change(p.ratio), _interval(p)] for p in parts]


def _change(ratio: float) -> str:
    return f"{100 * (ratio - 1):+.1f} %"


def _interval(part: Part) -> str:
    return f"{_change(part.low)} to {_change(part.high)}" if part.low and part.high else ""


def markdown(found: Gated) -> str:
    lines = [f"### {_MARKS[found.verdict]} {found.verdict}", "", found.sentence, ""]
    lines += [f"A is `{found.a}`, B is `{found.b}`.", ""]
    if found.parts:
        rows = [["", "A", "B", "B against A", "95 % interval"], ["---"] * 5, *_rows(found.parts)]
        lines += ["| " + " | ".join(row) + " |" for row in rows]
    return "\n".join(lines) + "\n"


def junit(found: Gated) -> str:
    failed, skipped = found.verdict == "worse", found.verdict == "undecided"
    counts = {"tests": "1", "failures": str(int(failed)), "skipped": str(int(skipped))}
    suite = xml.Element("testsuite", {"name": "autoscout gate", **counts})
    case = xml.SubElement(suite, "testcase", classname="autoscout.gate", name=f"{found.b} against {found.a}")
    if failed or skipped:
        xml.SubElement(case, "failure" if failed else "skipped", message=found.sentence)
    xml.SubElement(case, "system-out").text = markdown(found)
    return '<?xml version="1.0" encoding="utf-8"?>\n' + xml.tostring(suite, encoding="unicode") + "\n"


def show_bisected(found: Bisected, as_json: bool) -> None:
    if as_json:
        document(found)
        return
    click.echo(f"{'✓' if found.sure else '–'} {found.sentence}")
    for suspect in found.suspects[1:]:
        click.echo(f"  or, with probability {suspect.p:.2f}: {suspect.label}")
    for broken in found.broken:
        click.echo(f"  left out, since it does not run: {broken}")
