"""Job files made from a text, for tests of what a job may say."""

from pathlib import Path

from autoscout.targets.jobs import load_job
from kb.records import Job


def written(folder: Path, text: str, *changes: tuple[str, str]) -> Path:
    """A job file in `folder`: `text` after every change (what must be there, what comes in its place)."""
    for old, new in changes:
        assert old in text, old
        text = text.replace(old, new)
    path = folder / "job.toml"
    path.write_text(text)
    return path


def changed(folder: Path, text: str, *changes: tuple[str, str]) -> Job:
    return load_job(written(folder, text, *changes))
