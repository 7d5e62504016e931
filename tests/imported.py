"""The import of one tool's results, as tests read them."""

from collections.abc import Sequence
from pathlib import Path

from autoscout.importing.bring_in import ImportOptions, _sources, bring_in_all
from autoscout.importing.converting import Done
from autoscout.space.graph import Space
from autoscout.targets.found import RowSource
from kb.records import Job


def bring_in(
    kb: Path,
    path: Path,
    job: Job,
    maps: Sequence[str],
    sets: Sequence[str],
    units: Sequence[str],
    reader: str = "",
    dry_run: bool = False,
) -> Done:
    [done] = bring_in_all(kb, path, job, ImportOptions(maps, sets, units, reader, dry_run)).imports
    return done


def open_source(path: Path, job: Job, space: Space) -> RowSource:
    """The rows of a file, by the first reader that recognizes it."""
    return next(_sources(Path(), path, job, space, "", []))()
