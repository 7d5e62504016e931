"""Removes secrets that an older version of AutoScout stored because it did not recognise them."""

from pathlib import Path

import msgspec

from kb import claims, store
from kb.connect import reader, rewrite, writer
from kb.stored_secrets import clean, in_rows


class Removed(msgspec.Struct, frozen=True):
    files: list[str]  # files from which secrets were removed
    sessions: list[str]  # sessions whose rows were rebuilt from their journals
    left: list[str]  # one sentence for each place where a secret remains


def remove(kb: Path) -> Removed:
    """Removes all secrets that kb/stored_secrets.py finds in the knowledge base and in its sessions' files."""
    folder = store.sessions_folder(kb)
    running = {path.name for path in folder.glob("*") if store.is_running(path)}
    cleaned = [file for path in sorted(folder.glob("*")) if path.name not in running for file in clean(path)]
    with reader(kb) as con:
        rows = in_rows(con)
    ours = [name for name in rows if (folder / name / "journal.jsonl").is_file() and name not in running]
    if ours:
        with writer(kb) as con:
            con.execute("BEGIN")
            claims.remove(con, ours)
            con.execute("COMMIT")
    _, left = store.ingest_all(kb)  # also restores the rows of a session that an earlier, killed call has removed
    rewrite(kb)
    left += [f"session {name} is running; stop it, then run this command again" for name in sorted(running)]
    left += [
        f"{count} texts of {name} still contain secrets, since the journal of {name} is not here; "
        f"`autoscout kb forget {name}` removes the session"
        for name, count in rows.items()
        if name not in ours and name not in running
    ]
    copies = [*kb.parent.glob(f"{kb.name}.bak-*"), *kb.parent.glob(f"{kb.name}.replaced-*")] if ours else []
    left += [
        f"{path} is an older copy of the knowledge base; delete it if it must not contain secrets either"
        for path in sorted(copies)
    ]
    return Removed([str(path) for path in cleaned], ours, left)
