"""Removes the secrets that were stored before AutoScout knew them as such (kb/stored_secrets.py finds them)."""

from pathlib import Path

import msgspec

from kb import access, claims, seals, store
from kb.connect import reader, rewrite, writer
from kb.stored_secrets import clean, in_rows


class Removed(msgspec.Struct, frozen=True):
    files: list[str]  # that hold none any more
    sessions: list[str]  # whose rows were made anew from their journals
    left: list[str]  # a sentence each


def remove(kb: Path) -> Removed:
    """Removes every secret that it finds beside and in the knowledge base."""
    folder = store.sessions_folder(kb)
    running = {path.name for path in folder.glob("*") if store.is_running(path)}
    cleaned = []
    for path in sorted(folder.glob("*")):
        journal = path / "journal.jsonl"
        if path.name in running:
            continue
        whole = journal.is_file() and not seals.check(journal).broken
        cleaned += (files := clean(path))
        if whole and journal in files:  # what was changed before keeps showing
            new = journal.with_name(".journal.sealed")
            new.write_bytes(seals.anew(journal.read_bytes().splitlines()))
            access.put(new, journal)
    with reader(kb) as con:
        rows = in_rows(con)
    ours = [name for name in rows if (folder / name / "journal.jsonl").is_file() and name not in running]
    if ours:
        with writer(kb) as con:
            con.execute("BEGIN")
            claims.remove(con, ours)
            con.execute("COMMIT")
        for name in ours:
            store.ingest(kb, folder / name / "journal.jsonl")
        rewrite(kb)
    left = [f"session {name} is running; end it, and run this again" for name in sorted(running)]
    left += [
        f"{count} texts of {name}, which has no journal here; `autoscout kb forget` removes all of it"
        for name, count in rows.items()
        if name not in ours and name not in running
    ]
    copies = [*kb.parent.glob(f"{kb.name}.bak-*"), *kb.parent.glob(f"{kb.name}.replaced-*")] if ours else []
    left += [f"{path} is an older copy: remove it if it holds them" for path in sorted(copies)]
    return Removed([str(path) for path in cleaned], ours, left)
