"""What `autoscout check` found, as text."""

from typing import Any

from rich.text import Text


def findings(found: list[dict[str, Any]], ascii_only: bool) -> Text:
    text = Text()
    for f in found:
        mark = ("+" if ascii_only else "✓") if f["ok"] else ("x" if ascii_only else "✗")
        style = "" if f["ok"] else "bold red" if f["needed"] else "yellow"
        text.append(f"{mark} {f['subject']:<11}", style=style)
        text.append(f"{f['found']}\n")
        if f["remedy"]:
            text.append(f"{'':<13}{f['remedy']}\n", style="dim")
    text.right_crop(1)
    return text
