"""Glyphs and styles for statuses and fidelities. Each has its own glyph, so that colour is never the only cue."""

GLYPHS = {
    "running": ("●", "*", "cyan"),
    "ok": ("✓", "+", "green"),
    "oom": ("✗", "x", "red"),
    "invalid": ("✗", "x", "red"),
    "error": ("✗", "x", "red"),
    "timeout": ("✗", "x", "red"),
    "wrong": ("!", "!", "magenta"),
    "killed": ("✗", "x", "red"),
    "infrastructure": ("↯", "^", "yellow"),
    "limit": ("≠", "/", "yellow"),
}


def glyph(status: str, ascii_only: bool) -> str:
    fancy, plain, _ = GLYPHS.get(status, ("?", "?", ""))
    return plain if ascii_only else fancy


def style(status: str) -> str:
    return GLYPHS.get(status, ("", "", ""))[2]


def fidelity_mark(kind: str, ascii_only: bool) -> str:
    """The mark for a fidelity, or for a measurement from the knowledge base ("known"). Marks differ in shape."""
    fancy = {"predicted": "○", "shadow": "◌", "one-device": "◔", "short": "◑", "measured": "●", "known": "◆"}
    plain = {"predicted": "o", "shadow": "~", "one-device": "1", "short": "%", "measured": "*", "known": "#"}
    return (plain if ascii_only else fancy)[kind]
