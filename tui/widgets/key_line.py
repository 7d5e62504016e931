"""The bottom line, which shows the active keys; each can be clicked.

It is a single widget, because Textual's footer has one widget per key and recreates all of them at each change of
focus, which is slow.
"""

from rich.cells import cell_len
from rich.segment import Segment
from textual import events
from textual.screen import Screen
from textual.strip import Strip
from textual.widget import Widget


class KeyLine(Widget):
    COMPONENT_CLASSES = {"key-line--key"}
    DEFAULT_CSS = """
    KeyLine {
        dock: bottom; height: 1; background: $footer-background; color: $footer-description-foreground;
        .key-line--key { color: $footer-key-foreground; background: $footer-background; text-style: bold; }
    }
    """

    _said: tuple[tuple[str, str, str], ...] = ()  # (name of the key, its display form, description) of each shown key

    def on_mount(self) -> None:
        self.screen.bindings_updated_signal.subscribe(self, self._changed)
        self._changed(self.screen)

    def _changed(self, screen: Screen[object]) -> None:
        if not self.is_attached or screen is not self.screen:
            return
        active = [binding for _, binding, _, _ in screen.active_bindings.values() if binding.show]
        by_action = {binding.action: binding for binding in reversed(active)}  # an action's first key
        found = [b for b in active if by_action[b.action] is b]
        keys = tuple((b.key, self.app.get_key_display(b), b.description) for b in found)
        if keys != self._said:
            self._said = keys
            self.refresh()

    def render_line(self, y: int) -> Strip:
        plain, bold = self.rich_style, self.get_component_rich_style("key-line--key")
        segments: list[Segment] = []
        for _, shown, says in self._said:
            segments += [Segment(shown, bold), Segment(f" {says} ", plain)]
        return Strip(segments).adjust_cell_length(self.size.width, plain)

    def on_click(self, click: events.Click) -> None:
        at = 0
        for key, shown, says in self._said:
            at += cell_len(shown) + cell_len(says) + 2
            if click.x < at:
                self.app.simulate_key(key)
                return
