"""Themes: dark, light, and one that people who confuse red and green can read. AUTOSCOUT_THEME names the first one;
NO_COLOR takes colours away from each."""

import os
from functools import partial
from typing import Any

from rich.terminal_theme import TerminalTheme
from textual.app import App
from textual.theme import Theme

from tui.session.remembered import remember, remembered

# Okabe and Ito's colours: told apart with each kind of colour blindness.
_SAFE = Theme(
    name="colour-blind-safe",
    primary="#0072B2",
    secondary="#56B4E9",
    accent="#CC79A7",
    warning="#E69F00",
    error="#D55E00",
    success="#009E73",
    foreground="#E6E6E6",
    background="#101418",
    surface="#181C22",
    panel="#262C34",
    dark=True,
)
# What the words red, green … of a drawing become under it: state is told by a word and a glyph, too.
_DIM = [(60, 60, 60), (213, 94, 0), (86, 180, 233), (230, 159, 0)]
_DIM += [(0, 114, 178), (204, 121, 167), (0, 158, 115), (220, 220, 220)]
_BRIGHT = [(120, 120, 120), (240, 130, 50), (130, 205, 245), (245, 190, 70)]
_BRIGHT += [(60, 150, 210), (225, 160, 195), (60, 190, 150), (255, 255, 255)]
_SAFE_ANSI = TerminalTheme((16, 20, 24), (230, 230, 230), _DIM, _BRIGHT)
THEMES = {"dark": "textual-dark", "light": "textual-light", "colour-blind-safe": _SAFE.name}
_FILE = "theme.json"


def add_themes(app: App[Any]) -> None:
    """Makes them known, and takes the one that is wanted: AUTOSCOUT_THEME, else the last one that was chosen."""
    app.register_theme(_SAFE)
    usual = app.ansi_theme_dark
    app.watch(app, "theme", partial(_colours, app, usual), init=False)
    wanted = os.environ.get("AUTOSCOUT_THEME") or remembered(_FILE, "dark")
    app.theme = THEMES.get(wanted, wanted if wanted in app.available_themes else THEMES["dark"])


def _colours(app: App[Any], usual: TerminalTheme, theme: str) -> None:
    app.ansi_theme_dark = _SAFE_ANSI if theme == _SAFE.name else usual


def next_theme(app: App[Any]) -> str:
    """Goes on to the next one; its name."""
    names = list(THEMES)
    at = next((i for i, name in enumerate(names) if THEMES[name] == app.theme), 0)
    name = names[(at + 1) % len(names)]
    app.theme = THEMES[name]
    remember(_FILE, name)
    return name
