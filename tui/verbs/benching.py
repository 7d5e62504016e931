"""The verb bench: compares strategies on a landscape (a space whose costs are known)."""

import importlib
import os
import sys
from pathlib import Path
from typing import Any

import click

from tui import text
from tui.options import PATH, NumberRange, common, load_job, note

_TABLE_ONLY = ("metric", "goal", "knobs", "sparse", "dense", "where", "group_by", "status", "cost", "dummies")
_STRATEGIES = "autoscout,paper,gp-ei,udo,cherrypick,deepspeed,metis,genetic,ants,bayes,walker,grid,random,optuna-tpe"


@click.command()
@click.option("--table", metavar="FILE", type=PATH, help="Take costs from measured rows: .csv, .csv.gz or .parquet.")
@click.option("--job", metavar="JOB.toml", type=PATH, help="Take costs from the analytic model of this job.")
@click.option(
    "--paper", is_flag=True, help="Repeat the evaluation of the AutoScout paper, and print both results side by side."
)
@click.option("--figures", metavar="4,8", help="With --paper: repeat only these figures.")
@click.option("--metric", metavar="COLUMN", help="With --table: the column to optimize.")
@click.option("--goal", type=click.Choice(["min", "max"]), help="With --table: whether lower or higher is better.")
@click.option("--knobs", metavar="A,B", help="Knob columns. Default: those that look like settings, not results.")
@click.option(
    "--sparse", metavar="A,B", help="Knobs that are choices. Default: names, switches, and numbers with two values."
)
@click.option("--dense", metavar="A,B", help="Knobs that are ordered numbers. Default: all knobs that are not choices.")
@click.option("--where", metavar="SQL", help="Use only rows for which this predicate holds.")
@click.option("--group-by", metavar="A,B", help="One landscape for each value of these columns.")
@click.option(
    "--status", metavar="COLUMN", help="Column with the status: all but `ok` are failures, which cost an evaluation."
)
@click.option("--cost", metavar="COLUMN", help="Column with the cost of one experiment, such as GPU seconds.")
@click.option(
    "--simulator",
    "simulators",
    metavar="COLUMN",
    multiple=True,
    help="Column with a simulator's prediction. With --job: good, biased or linear; good+80 adds noise.",
)
@click.option("--noise", type=NumberRange(0, 2), default=0.0, show_default=True, help="Lognormal noise on each result.")
@click.option(
    "--strategies",
    metavar="A,B",
    help=f"Default: {_STRATEGIES.replace(',', ', ')}. NAME:KEY=VALUE changes a hyper-parameter.",
)
@click.option("--seeds", type=click.IntRange(1), default=20, show_default=True)
@click.option(
    "--budget", type=click.IntRange(1, 10**6), default=200, show_default=True, help="Evaluations of each run."
)
@click.option("--target", type=NumberRange(0), default=0.01, show_default=True, help="Regret that counts as solved.")
@click.option("--transfer", is_flag=True, help="Tune the groups one after another, each with earlier groups' results.")
@click.option(
    "--shuffled",
    is_flag=True,
    help="Also run each landscape with shuffled outcomes, on which nothing can be learned.",
)
@click.option(
    "--dummies",
    type=click.IntRange(0, 10),
    default=0,
    metavar="N",
    help="With --table: add this many switches without effect.",
)
@click.option("--as-sessions", is_flag=True, help="End a run when a session would end.")
@click.option("--out", "--resume", "folder", metavar="FOLDER", type=PATH, help="Keep and reuse finished runs here.")
@click.option("--markdown", is_flag=True, help="Print tables as Markdown.")
@common
def bench(table: Path | None, job: Path | None, paper: bool, kb: Path | None, as_json: bool, **options: Any) -> None:
    """Compare strategies on a landscape with known outcomes, by the experiments that they need."""
    if sum(x is not None and x is not False for x in (table, job, paper)) != 1:
        raise click.UsageError("give exactly one of --table FILE, --job JOB.toml and --paper")
    asked = importlib.import_module("autoscout.studies.bench.asked")  # nothing else may import studies
    if paper:
        for name in (*_TABLE_ONLY, "simulators", "strategies", "transfer", "shuffled", "as_sessions"):
            if options[name]:
                raise click.UsageError(f"{_option(name)} does not go with --paper, which fixes what is run")
        click.echo(asked.paper(options, as_json, progress))
        return
    if options["transfer"] and not options["group_by"]:
        raise click.UsageError("--transfer needs --group-by, since it goes from group to group")
    if options["transfer"] and options["shuffled"]:
        raise click.UsageError("--shuffled does not work with --transfer; omit one of them")
    if table is not None:
        if lacking := [f"--{name}" for name in ("metric", "goal") if options[name] is None]:
            raise click.UsageError(f"--table needs {' and '.join(lacking)}")
        found = asked.of_table(table, options)
    else:
        assert job is not None
        if given := [name for name in _TABLE_ONLY if options[name]]:
            raise click.UsageError(f"{_option(given[0])} names a column, so it needs --table")
        found = asked.of_job(load_job(job), options)
    click.echo(asked.compared(*found, _STRATEGIES, options, as_json, note, progress, text.table))


def _option(name: str) -> str:
    return f"--{name.replace('_', '-')}"


def progress(done: int, total: int) -> None:
    if sys.stderr.isatty():
        os.write(sys.stderr.fileno(), f"\r{done} of {total} runs{chr(10) if done == total else ''}".encode())
