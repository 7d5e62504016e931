"""Reports of gates and bisections as text, as JUnit XML, and as Markdown for pull requests."""

import xml.etree.ElementTree as xml

import click

from autoscout.tuning.bisection import Bisected
from kb.end_events import Gated
from tui.draw.gates import MARKS, PART_HEADER, part_rows
from tui.printing.document import document
from tui.text import table


def show(found: Gated, as_json: bool) -> None:
    if as_json:
        document(found)
        return
    click.echo(f"{MARKS[found.verdict]} {found.sentence}")
    if found.parts:
        click.echo(table(part_rows(found.parts), header=[*PART_HEADER]))
    click.echo(f"A is {found.a} ({found.a_session}); B is {found.b}")


def markdown(found: Gated) -> str:
    lines = [f"### {MARKS[found.verdict]} {found.verdict}", "", found.sentence, ""]
    lines += [f"A is `{found.a}`, B is `{found.b}`.", ""]
    if found.parts:
        rows = [PART_HEADER, ["---"] * 5, *part_rows(found.parts)]
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
        click.echo(f"  skipped, because it does not run: {broken}")
