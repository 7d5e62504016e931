"""The findings of `autoscout check` as text."""

from typing import Any

from rich.text import Text

from tui.text import mark


def findings(found: list[dict[str, Any]], ascii_only: bool) -> Text:
    text = Text()
    for f in found:
        style = "yellow" if f["ok"] is False else ""
        style = "bold red" if style and f["needed"] else style
        text.append(f"{mark(f['ok'], ascii_only)} {f['subject']:<11}", style=style)
        text.append(f"{f['found']}\n")
        if f["remedy"]:
            text.append(f"{'':<13}{f['remedy']}\n", style="dim")
    text.right_crop(1)
    return text
