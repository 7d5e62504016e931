"""Job files made from a text, for tests of what a job may say."""

from pathlib import Path

from autoscout.targets.jobs import load_job
from kb.records import Job


def changed(folder: Path, text: str, *changes: tuple[str, str]) -> Job:
    """The job of `text` after every change (what must be there, what comes in its place), from a file in `folder`."""
    for old, new in changes:
        assert old in text
        text = text.replace(old, new)
    (folder / "job.toml").write_text(text)
    return load_job(folder / "job.toml")
