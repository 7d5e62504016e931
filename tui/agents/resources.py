"""Texts that agents can read: job files of the folder, documentation, and the output of the latest sessions."""

from pathlib import Path

from autoscout.job import shipped
from kb import secrets, store
from kb.records import AutoscoutError
from tui.agents.allowance import AgentLimits
from tui.agents.bounded import MOST
from tui.agents.tools import Call, OfWatching, watch
from tui.hygiene import plain

_SESSIONS = 10
GUIDE = "guide://agents"


def pages() -> dict[str, Path]:
    """The user pages by name, from the installed package or the repository."""
    folder = shipped.folder()
    found = folder / "docs" if (folder / "docs").is_dir() else folder.parent / "docs"
    return {path.stem: path for path in sorted(found.glob("*.md"))}


def guide() -> Path:
    return shipped.folder() / "agents" / "AGENTS.md"


def listed(limits: AgentLimits) -> list[tuple[str, str]]:
    """(address, description) of everything that can be read."""
    folder = store.sessions_folder(limits.kb)
    found = sorted(folder.glob("*/journal.jsonl"), key=lambda path: path.stat().st_mtime, reverse=True)
    return [
        (GUIDE, "how to tune with AutoScout, in 600 words"),
        *((f"job://{name}", "a job file") for name in limits.jobs()),
        *((f"docs://{name}", "a page of the documentation") for name in pages()),
        *((f"session://{path.parent.name}", "the output of a session") for path in found[:_SESSIONS]),
    ]


def text(limits: AgentLimits, address: str) -> str:
    """The text at an address of `listed`. Errors: AutoscoutError (exit 2) for another address."""
    kind, _, name = address.partition("://")
    if address == GUIDE:
        found = guide().read_text(encoding="utf-8")
    elif kind == "job" and name in limits.jobs():
        found = limits.inside(name).read_text(encoding="utf-8", errors="replace")
    elif kind == "docs" and name in pages():
        found = pages()[name].read_text(encoding="utf-8")
    elif kind == "session":
        found = "\n".join(watch(Call(limits=limits, client=""), OfWatching(session=name))["lines"])
    else:
        raise AutoscoutError(f"{address[:100]!r}: there is no such resource; resources/list lists all resources", 2)
    found = plain(secrets.redacted(found))
    return found if len(found) <= MOST else f"{found[:MOST]}\n… {len(found) - MOST:,} characters more"
