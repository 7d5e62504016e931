"""The verb bench: compares strategies on a landscape."""

import os
import sys
from pathlib import Path
from typing import Any

import click

from tui.options import PATH, NumberRange, common, load_job, note

_TABLE_ONLY = ("metric", "goal", "knobs", "sparse", "dense", "where", "group_by", "status", "cost", "dummies")
_STRATEGIES = "autoscout,paper,gp-ei,udo,cherrypick,deepspeed,metis,genetic,ants,bayes,walker,grid,random,optuna-tpe"


@click.command()
@click.option("--table", metavar="FILE", type=PATH, help="Measured rows: .csv, .csv.gz, .parquet.")
@click.option("--job", metavar="JOB.toml", type=PATH, help="The analytic model of that job.")
@click.option("--paper", is_flag=True, help="The evaluation of the AutoScout paper, ours beside theirs.")
@click.option("--figures", metavar="4,8", help="With --paper: only these figures.")
@click.option("--metric", metavar="COLUMN", help="What is optimized (with --table).")
@click.option("--goal", type=click.Choice(["min", "max"]), help="Less or more of it is better (with --table).")
@click.option("--knobs", metavar="A,B", help="Columns that are knobs. Default: those that look set, not measured.")
@click.option(
    "--sparse", metavar="A,B", help="Knobs that are choices. Default: names, switches, numbers of two values."
)
@click.option("--dense", metavar="A,B", help="Knobs that are ordered numbers. Default: the others.")
@click.option("--where", metavar="SQL", help="Only rows for which this predicate holds.")
@click.option("--group-by", metavar="A,B", help="One landscape for each value of these columns.")
@click.option("--status", metavar="COLUMN", help="Rows where it is not `ok` are failures, which cost an evaluation.")
@click.option("--cost", metavar="COLUMN", help="What one experiment costs, e.g. GPU seconds.")
@click.option(
    "--simulator",
    "simulators",
    metavar="COLUMN",
    multiple=True,
    help="A free prediction of every row. With --job: good, biased, linear; good+80 with noise.",
)
@click.option("--noise", type=NumberRange(0, 2), default=0.0, show_default=True, help="Lognormal, on what is told.")
@click.option("--strategies", metavar="A,B", help=f"Default: {_STRATEGIES}. NAME:KEY=VALUE changes a hyper-parameter.")
@click.option("--seeds", type=click.IntRange(1), default=20, show_default=True)
@click.option(
    "--budget", type=click.IntRange(1, 10**6), default=200, show_default=True, help="Evaluations of each run."
)
@click.option("--target", type=NumberRange(0), default=0.01, show_default=True, help="Regret that is solved.")
@click.option("--transfer", is_flag=True, help="Tune the groups one after another, each with what was measured before.")
@click.option(
    "--shuffled",
    is_flag=True,
    help="Beside each landscape one with its outcomes dealt out anew: what is found there is not learned.",
)
@click.option(
    "--dummies",
    type=click.IntRange(0, 10),
    default=0,
    metavar="N",
    help="With --table: so many switches more, in both positions, that do nothing.",
)
@click.option("--as-sessions", is_flag=True, help="Runs end as sessions do: settled, or nothing better for long.")
@click.option("--out", "--resume", "folder", metavar="FOLDER", type=PATH, help="Keep finished runs.")
@click.option("--svg", metavar="FILE", type=PATH, help="Write the anytime curves as a picture.")
@click.option("--markdown", is_flag=True, help="Tables as Markdown.")
@common
def bench(table: Path | None, job: Path | None, paper: bool, kb: Path | None, as_json: bool, **options: Any) -> None:
    """Compare strategies on a landscape whose every outcome is known, by the experiments that they need."""
    if sum(x is not None and x is not False for x in (table, job, paper)) != 1:
        raise click.UsageError("give one of --table FILE, --job JOB.toml and --paper")
    if paper:
        _paper(options, as_json)
        return
    if options["transfer"] and not options["group_by"]:
        raise click.UsageError("--transfer goes from group to group: it needs --group-by")
    if table is not None:
        landscapes, notes = _of_table(table, options)
    else:
        assert job is not None
        landscapes, notes = _of_job(job, options)
    if options["shuffled"]:
        if options["transfer"]:
            raise click.UsageError("--shuffled does not go with --transfer")
        landscapes = [each for land in landscapes for each in (land, land.shuffled())]
    _compare(landscapes, notes, options, as_json)


def _of_table(path: Path, options: dict[str, Any]) -> tuple[list[Any], list[str]]:
    from autoscout.bench.table_landscape import TableSource, landscapes_of_table

    if lacking := [f"--{name}" for name in ("metric", "goal") if options[name] is None]:
        raise click.UsageError(f"--table needs {' and '.join(lacking)}")
    source = TableSource(
        path=path,
        metric=options["metric"],
        goal=options["goal"],
        knobs=_names(options["knobs"]),
        sparse=_names(options["sparse"]),
        dense=_names(options["dense"]),
        where=options["where"] or "",
        group_by=_names(options["group_by"]) or [],
        status=options["status"],
        cost=options["cost"],
        simulators=list(options["simulators"]),
        dummies=options["dummies"],
    )
    return landscapes_of_table(source)


def _of_job(path: Path, options: dict[str, Any]) -> tuple[list[Any], list[str]]:
    from autoscout.bench.job_landscape import landscape

    for name in _TABLE_ONLY:
        if options[name]:
            raise click.UsageError(f"--{name.replace('_', '-')} is about the columns of a --table")
    return [landscape(load_job(path), options["simulators"])], []


def _compare(landscapes: list[Any], notes: list[str], options: dict[str, Any], as_json: bool) -> None:
    from autoscout.bench.every import run_all
    from autoscout.bench.run import Settings
    from autoscout.bench.summary import summarize
    from autoscout.bench.variants import usable
    from tui.printing import benches

    names = _names(options["strategies"])
    chosen, left_out = usable(names or _STRATEGIES.split(","), landscapes)
    notes = [*notes, *left_out.values()]
    if not as_json:
        for remark in notes:
            note(remark)
    settings = Settings(
        budget=options["budget"],
        target=options["target"],
        noise=options["noise"],
        transfer=options["transfer"],
        as_sessions=options["as_sessions"],
    )
    runs = run_all(landscapes, chosen, options["seeds"], settings, options["folder"], progress=progress)
    summary = summarize(runs, settings.budget, settings.target)
    if options["svg"] is not None:
        from autoscout.bench.curves import svg

        options["svg"].write_text(svg(runs, settings.budget))
    if as_json:
        click.echo(benches.document(landscapes, runs, summary, settings, options["seeds"], notes, left_out))
    else:
        click.echo(benches.tables(landscapes, runs, summary, settings, options["markdown"]))


def _paper(options: dict[str, Any], as_json: bool) -> None:
    from autoscout.bench.paper_evaluation import evaluate
    from autoscout.bench.paper_report import markdown
    from autoscout.bench.run import Settings
    from tui.printing import benches

    for name in (*_TABLE_ONLY, "simulators", "strategies", "svg", "transfer", "shuffled", "as_sessions"):
        if options[name]:
            raise click.UsageError(
                f"--{name.replace('_', '-')} does not go with --paper, which says itself what is run"
            )
    settings = Settings(budget=options["budget"], target=options["target"], noise=options["noise"])
    figures = _names(options["figures"]) or []
    _check_figures(figures)
    results = evaluate(options["seeds"], settings, options["folder"], figures, progress)
    chosen = f" --figures {options['figures']}" if figures else ""
    command = f"autoscout bench --paper{chosen} --seeds {options['seeds']} --budget {settings.budget}"
    report = markdown(results, f"{command} --noise {settings.noise:g}")
    click.echo(benches.paper_document(results, report) if as_json else report)


def _check_figures(names: list[str]) -> None:
    from autoscout.bench.paper_evaluation import FIGURES

    for name in names:
        if name not in FIGURES:
            raise click.UsageError(f"--figures {name}: the paper's evaluation has figures {', '.join(FIGURES)}")


def _names(text: str | None) -> list[str] | None:
    return None if text is None else [name.strip() for name in text.split(",") if name.strip()]


def progress(done: int, total: int) -> None:
    """A progress counter on stderr, if it is a terminal."""
    if sys.stderr.isatty():
        os.write(sys.stderr.fileno(), f"\r{done} of {total} runs{chr(10) if done == total else ''}".encode())
