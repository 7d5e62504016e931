"""Where `kb push` and `kb pull` go: a folder, or a team's catalog in Postgres."""

from pathlib import Path

from kb import lake
from kb.lake import Moved
from kb.records import AutoscoutError


def push(kb: Path, target: str, data: Path | None = None) -> Moved:
    """`data`: with Postgres, the shared folder for the data files. Errors: AutoscoutError."""
    _refuse_object_stores(target)
    return lake.push(kb, Path(target))


def pull(kb: Path, target: str) -> Moved:
    _refuse_object_stores(target)
    return lake.pull(kb, Path(target))


def _refuse_object_stores(target: str) -> None:
    scheme, colon, _ = target.partition("://")
    if colon:
        raise AutoscoutError(
            f"{target}: {scheme} is not written directly; push to a folder and copy it there with the store's own tool "
            f"(such as `aws s3 sync`): its files never change, so copying is merging",
            2,
        )
