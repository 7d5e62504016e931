"""Dark, light and colour-blind-safe themes. AUTOSCOUT_THEME sets the first one; NO_COLOR removes all colours."""

import os
from functools import partial
from typing import Any

from rich.terminal_theme import TerminalTheme
from textual.app import App
from textual.cache import LRUCache
from textual.css.stylesheet import Stylesheet
from textual.theme import Theme

from tui.session.remembered import remember, remembered

# Okabe and Ito's colours, which can be distinguished with every kind of colour blindness.
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
# RGB of the 16 ANSI colours in this theme. Each status is also shown by a word and a glyph.
_DIM = [(60, 60, 60), (213, 94, 0), (86, 180, 233), (230, 159, 0)]
_DIM += [(0, 114, 178), (204, 121, 167), (0, 158, 115), (220, 220, 220)]
_BRIGHT = [(120, 120, 120), (240, 130, 50), (130, 205, 245), (245, 190, 70)]
_BRIGHT += [(60, 150, 210), (225, 160, 195), (60, 190, 150), (255, 255, 255)]
_SAFE_ANSI = TerminalTheme((16, 20, 24), (230, 230, 230), _DIM, _BRIGHT)
THEMES = {"dark": "textual-dark", "light": "textual-light", "colour-blind-safe": _SAFE.name}
_FILE = "theme.json"
_SOURCES = 256  # largest number of cached style sheets per theme (Textual has one per widget class)


def add_themes(app: App[Any]) -> None:
    """Registers the themes and sets the initial one: AUTOSCOUT_THEME, else the one that was chosen last."""
    app.register_theme(_SAFE)
    usual = app.ansi_theme_dark
    app.watch(app, "theme", partial(_colours, app, usual), init=False)
    wanted = os.environ.get("AUTOSCOUT_THEME") or remembered(_FILE, "dark")
    app.theme = THEMES.get(wanted, wanted if wanted in app.available_themes else THEMES["dark"])


def _colours(app: App[Any], usual: TerminalTheme, theme: str) -> None:
    app.ansi_theme_dark = _SAFE_ANSI if theme == _SAFE.name else usual


class Sheets:
    """Caches the parsed style sheet of each theme, because parsing is slow."""

    def __init__(self, app: App[Any]) -> None:
        self._app = app
        self._parsed: dict[str, Any] = {}  # theme → source → rules

    def change(self) -> None:
        sheet = self._app.stylesheet
        self._fill(sheet, self._app.theme, self._app.get_css_variables())
        sheet.parse()

    def prepare(self) -> None:
        """Parses the style sheet of the next theme in advance."""
        name = THEMES[_next(self._app)]
        if name not in self._parsed:
            defaults = self._app.get_theme_variable_defaults()
            sheet = Stylesheet()
            sheet.source = dict(self._app.stylesheet.source)
            colours = self._app.available_themes[name].to_color_system().generate()
            self._fill(sheet, name, {**colours, **defaults})
            sheet.parse()

    def _fill(self, sheet: Stylesheet, theme: str, variables: dict[str, str]) -> None:
        sheet._parse_cache = LRUCache(_SOURCES)
        sheet.set_variables(variables)  # this empties the sheet's cache, so ours is only set afterwards
        sheet._parse_cache = self._parsed.setdefault(theme, LRUCache(_SOURCES))


def _next(app: App[Any]) -> str:
    names = list(THEMES)
    at = next((i for i, name in enumerate(names) if THEMES[name] == app.theme), 0)
    return names[(at + 1) % len(names)]


def next_theme(app: App[Any]) -> str:
    """Switches to the next theme and returns its name."""
    name = _next(app)
    app.theme = THEMES[name]
    remember(_FILE, name)
    return name
