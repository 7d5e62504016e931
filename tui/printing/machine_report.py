"""Output of `doctor`, `check` and `targets`, as text or as one JSON document."""

import click

from autoscout.machine.doctor import Finding
from autoscout.targets.target import Target
from tui.printing.document import document
from tui.text import mark, with_job


def doctor(findings: list[Finding], as_json: bool, job: str = "JOB.toml") -> None:
    """Prints the findings. `job`: the job file to insert into the commands that they suggest."""
    if as_json:
        document(findings)
    else:
        for f in findings:
            click.echo(f"{mark(f.ok)} {f.subject:<16} {with_job(f.found, job)}")
            if f.remedy:
                click.echo(f"  {'':<16} → {with_job(f.remedy, job)}")
    if any(f.needed and not f.ok for f in findings):
        raise SystemExit(1)


def targets(found: list[Target], as_json: bool) -> None:
    documents = [
        {
            "target": t.name,
            "about": t.about,
            "tasks": list(t.tasks),
            "installed": t.installed(),
            "missing": [package for package in t.packages if package not in t.installed()],
            "how": t.how,
            "proven": t.proven,
            "scripts": {name: {"about": about, "proven": proven} for name, (about, proven) in t.presets().items()},
        }
        for t in found
    ]
    if as_json:
        document(documents)
        return
    for d in documents:
        here = ", ".join(f"{name} {version}" for name, version in d["installed"].items())
        click.echo(f"{d['target']:<10} {d['about']} ({', '.join(d['tasks'])})")
        click.echo(f"           {'here: ' + here if here else 'not installed in this interpreter'}")
        if d["missing"]:
            click.echo(f"           missing: {', '.join(d['missing'])}; {d['how']}")
        click.echo(f"           {'run against ' + d['proven'] if d['proven'] else 'unproven: never tested'}")
        for name, known in d["scripts"].items():
            standing = f"run against {known['proven']}" if known["proven"] else "unproven: never tested"
            click.echo(f"           script = '{name}': {known['about']}; {standing}")
