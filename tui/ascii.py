"""Detects terminals and locales that can only show ASCII, and replaces other characters."""

import os
import unicodedata
from collections.abc import Mapping

_TERMS = (
    "linux",
    "screen",
    "ansi",
    "cons25",
    "vt100",
    "vt102",
    "vt220",
)  # values of TERM for ASCII-only terminals, compared as whole words: screen-256color can show Unicode
_INSTEAD = {
    "×": "x", "·": ".", "–": "-", "—": "-", "−": "-", "…": "~", "’": "'", "‘": "'", "“": '"', "”": '"', "≤": "<",
    "≥": ">", "≠": "/", "±": "~", "²": "2",
    "³": "3", "°": "d", "µ": "u", "Δ": "D", "ε": "e", "σ": "s",
    "τ": "t", "λ": "l",
    "→": ">", "←": "<", "↑": "^", "↓": "v", "▸": ">", "▶": ">", "▼": "v", "▾": "v", "●": "*", "○": "o", "◌": "~",
    "◔": "1", "◑": "%", "◆": "#", "✓": "+", "✗": "x", "■": "#", "‖": "=", "↯": "^", "⭘": "o", "░": ".",
    "▒": ":", "ß": "s",
}  # fmt: skip


def needed(environment: Mapping[str, str] = os.environ) -> bool:
    """Whether this terminal or locale shows only ASCII."""
    if environment.get("TERM", "") in _TERMS:
        return True
    locale = next((environment[n] for n in ("LC_ALL", "LC_CTYPE", "LANG") if environment.get(n)), "")
    return "utf" not in locale.lower().replace("-", "")


def plain_cell(character: str) -> str:
    """The ASCII character to show in place of `character`."""
    if character.isascii():
        return character
    if found := _INSTEAD.get(character):
        return found
    if "\u2500" <= character <= "\u257f":  # box-drawing lines
        name = unicodedata.name(character)
        across, along = (
            any(w in name for w in ("HORIZONTAL", "LEFT", "RIGHT")),
            any(w in name for w in ("VERTICAL", "UP", "DOWN")),
        )
        return "+" if across and along else "-" if across else "|"
    if "\u2580" <= character <= "\u259f":  # blocks
        return "#"
    if "\u2800" <= character <= "\u28ff":
        return " " if character == "\u2800" else ":"
    base = unicodedata.normalize("NFKD", character)[:1]
    return base if base and base.isascii() and base.isprintable() else "?"
