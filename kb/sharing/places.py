"""`kb push` and `kb pull`, with a folder (lake.py) or a team's catalog in Postgres (ducklake.py)."""

from pathlib import Path

from kb import door
from kb.records import AutoscoutError
from kb.sharing import lake
from kb.sharing.lake import MovedRecords


def push(kb: Path, target: str, data: Path | None = None, key: Path | None = None) -> MovedRecords:
    """Adds all sessions that `target` lacks. `data`: for Postgres, the shared folder for data files; `key`: for a
    folder, the key that signs our files. Errors: AutoscoutError."""
    if catalog := _catalog(target):
        if key is not None:
            raise AutoscoutError(
                "only files in a folder are signed; in Postgres, accounts identify authors; omit --sign", 2
            )
        from kb.sharing import ducklake

        return ducklake.push(kb, catalog, data)
    return lake.push(kb, door.utf8(Path(target)), key)


def pull(kb: Path, target: str) -> MovedRecords:
    if catalog := _catalog(target):
        from kb.sharing import ducklake

        return ducklake.pull(kb, catalog)
    return lake.pull(kb, door.utf8(Path(target)))


def _catalog(target: str) -> str:
    """The connection string if the target is a catalog in Postgres; "" if it is a folder."""
    for prefix in ("ducklake:postgres:", "ducklake:"):
        if target.startswith(prefix):
            return target.removeprefix(prefix)
    scheme, colon, _ = target.partition("://")
    if not colon:
        return ""
    if scheme in ("postgres", "postgresql"):
        return target
    raise AutoscoutError(
        f"{target}: AutoScout cannot write to {scheme}; push to a local folder, and copy it with the store's own tool "
        f"(such as `aws s3 sync`). Pushed files never change, so copies can be merged",
        2,
    )
