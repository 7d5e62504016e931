"""Files that ship with AutoScout: device records, jobs and recordings. Jobs and recordings can be named without a
path."""

from pathlib import Path

from kb.records import AutoscoutError


def folder() -> Path:
    """Returns the folder of shipped files, in the installed package or in the repository."""
    installed = Path(__file__).parents[1] / "shipped"
    return installed if installed.is_dir() else Path(__file__).parents[2] / "fixtures"


def jobs() -> list[str]:
    return sorted(path.stem for path in (folder() / "jobs").glob("*.toml"))


def job_file(given: str | Path) -> Path:
    """Returns the path if it exists, else the path of the shipped job with this name.

    Errors: AutoscoutError (exit 2) for a name without a folder that is neither a file nor a shipped job."""
    given = Path(given)
    if given.exists() or given.suffix == ".toml" or given.parent != Path():
        return given
    if given.name in jobs():
        return folder() / "jobs" / f"{given}.toml"
    raise AutoscoutError(
        f"{given} is neither a file nor a job that comes with AutoScout; the shipped jobs are {', '.join(jobs())}", 2
    )
