"""Output of `space` and `explain`, as text or as one JSON document."""

import itertools
from pathlib import Path
from typing import Any

import click
import msgspec

from autoscout.job.words import several
from autoscout.space.explain import Explanation
from autoscout.space.graph import Space
from kb.records import Job
from tui.printing.document import document
from tui.text import knob_value, table


def explanation_document(found: Explanation) -> dict[str, Any]:
    return {**msgspec.to_builtins(found), "valid": found.configuration is not None}


def explanation(found: Explanation, as_json: bool) -> None:
    if as_json:
        document(explanation_document(found))
        return
    if found.configuration is not None:
        click.echo(f"valid: {found.name}")
        click.echo("  " + " ".join(f"{k}={knob_value(v)}" for k, v in found.configuration.knobs.items()))
    else:
        click.echo(f"not valid: {found.name or 'the reference'}")
        for violation in found.violations:
            source = f"  ({violation.rule}, {violation.source})" if violation.source else ""
            click.echo(f"  ✗ {violation.sentence}{source}")
        if found.nearest is not None:
            changed = [
                f"{k}={knob_value(v)}"
                for k, v in found.nearest.knobs.items()
                if k in found.given and found.given[k] != v
            ]
            click.echo(f"nearest valid: {found.nearest_name}{'  changing ' + ' '.join(changed) if changed else ''}")
    for sentence in found.inactive:
        click.echo(f"  – {sentence}")


def space_document(job: Job, s: Space, names: list[str], graph: Path | None = None) -> dict[str, Any]:
    """The JSON document of `space`. `names`: of the listed configurations; `graph`: drawing of the dependencies."""
    return {
        "job": job.name,
        "configurations": s.count,
        "exact": s.count_is_exact,
        "structures": s.structure_count,
        "graph": str(graph or ""),
        "knobs": [
            {
                "name": k.name,
                "kind": k.kind,
                "layer": k.layer,
                "values": k.values,
                "unit": k.unit,
                "default": k.default,
                "when": k.when.text if k.when else "",
                "sets": k.sets,
                "meaning": k.meaning,
            }
            for k in s.knobs
        ],
        "edges": [{"from": a, "to": b, **d} for a, b, d in s.graph.edges(data=True)],
        "rules": [{"id": r.id, "holds": r.holds.text, "source": r.source} for r in s.rules],
        "list": names,
    }


def space(job: Job, s: Space, count: bool, listed: int | None, graph: Path | None, as_json: bool) -> None:
    names = [s.name(c) for c in itertools.islice(s.configurations(), listed or 0)]
    if as_json:
        document(space_document(job, s, names, graph))
        return
    if count:
        click.echo(s.count)
        return
    if listed is not None:
        click.echo("\n".join(names))
        return
    if graph is not None:
        click.echo(f"wrote a picture of the knobs of {job.name} to {graph}")
        return
    acts = s.active()
    acting = [k for k in s.knobs if acts[k.name] is not False]
    rows = [
        (k.name, k.kind, ", ".join(knob_value(v) for v in k.values), k.when.text if k.when else "always", k.meaning)
        for k in acting
    ]
    click.echo(table(rows, ("knob", "kind", "values", "acts when", "meaning")))
    never = [k.name for k in s.knobs if k not in acting]
    if never:
        click.echo(f"\nwithout effect in this job: {', '.join(never)}")
    about = "" if s.count_is_exact else "about "
    valid, structures = several(s.count, "valid configuration"), several(s.structure_count, "structure")
    click.echo(f"\n{about}{valid} in {structures}, {several(len(s.rules), 'rule')}")
