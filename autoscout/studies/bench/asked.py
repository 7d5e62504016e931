"""Implements the command `bench`: builds the landscapes (spaces with known outcomes) of a table, a job or the paper,
runs strategies on them, and formats the result."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from autoscout.studies.bench import paper_report, printed
from autoscout.studies.bench.every import Progress, run_all
from autoscout.studies.bench.job_landscape import landscape
from autoscout.studies.bench.landscape import Landscape
from autoscout.studies.bench.paper_evaluation import FIGURES, evaluate
from autoscout.studies.bench.run import BenchSettings
from autoscout.studies.bench.summary import summarize
from autoscout.studies.bench.table_landscape import TableSource, landscapes_of_table
from autoscout.studies.bench.variants import usable
from kb.records import AutoscoutError, Job

Options = Mapping[str, Any]  # the command's options, by name


def of_table(path: Any, options: Options) -> tuple[list[Landscape], list[str]]:
    """Returns (landscapes of the table, remarks to print). Errors: AutoscoutError (exit 2)."""
    names = {name: _names(options[name]) for name in ("knobs", "sparse", "dense", "group_by")}
    return landscapes_of_table(
        TableSource(
            path=path,
            metric=options["metric"],
            goal=options["goal"],
            where=options["where"] or "",
            status=options["status"],
            cost=options["cost"],
            simulators=list(options["simulators"]),
            dummies=options["dummies"],
            **{**names, "group_by": names["group_by"] or []},
        )
    )


def of_job(job: Job, options: Options) -> tuple[list[Landscape], list[str]]:
    """Returns ([landscape of the job's analytic model], no remarks). Errors: AutoscoutError."""
    return [landscape(job, options["simulators"])], []


def compared(
    landscapes: Sequence[Landscape],
    notes: Sequence[str],
    strategies: str,
    options: Options,
    as_json: bool,
    note: Callable[[str], None],
    progress: Progress,
    table: printed.Laid,
) -> str:
    """Runs every strategy on every landscape and formats the comparison. `table`: formats rows under a header."""
    if options["shuffled"]:
        landscapes = [each for land in landscapes for each in (land, land.shuffled())]
    chosen, left_out = usable(_names(options["strategies"]) or strategies.split(","), landscapes)
    remarks = [*notes, *left_out.values()]
    if not as_json:
        for remark in remarks:
            note(remark)
    settings = BenchSettings(
        **{name: options[name] for name in ("budget", "target", "noise", "transfer", "as_sessions")},
    )
    runs = run_all(landscapes, chosen, options["seeds"], settings, options["folder"], progress=progress)
    summary = summarize(runs, settings.budget, settings.target)
    if as_json:
        return printed.document(landscapes, runs, summary, settings, options["seeds"], remarks, left_out)
    return printed.tables(landscapes, runs, summary, settings, table, options["markdown"])


def paper(options: Options, as_json: bool, progress: Progress) -> str:
    """Runs the paper's evaluation and returns the report. Errors: AutoscoutError (exit 2) for an unknown figure."""
    settings = BenchSettings(**{name: options[name] for name in ("budget", "target", "noise")})
    figures = _names(options["figures"]) or []
    for name in figures:
        if name not in FIGURES:
            raise AutoscoutError(f"--figures {name}: the paper's evaluation has figures {', '.join(FIGURES)}", 2)
    results = evaluate(options["seeds"], settings, options["folder"], figures, progress)
    chosen = f" --figures {options['figures']}" if figures else ""
    command = f"autoscout bench --paper{chosen} --seeds {options['seeds']} --budget {settings.budget}"
    report = paper_report.markdown(results, f"{command} --noise {settings.noise:g}")
    return printed.paper_document(results, report) if as_json else report


def _names(text: str | None) -> list[str] | None:
    return None if text is None else [name.strip() for name in text.split(",") if name.strip()]
