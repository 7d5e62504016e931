"""Modal screens: help, a question, a one-line input, a choice, details of one experiment."""

from collections.abc import Iterable, Mapping

from rich.console import Group
from rich.table import Table
from rich.text import Text
from textual.app import ComposeResult
from textual.binding import Binding
from textual.containers import Vertical, VerticalScroll
from textual.screen import ModalScreen
from textual.widgets import Input, OptionList, Static

from kb.order_words import MEANING


class Options(OptionList):
    """A list whose page keys do nothing while it has no height; Textual's list has no layout then."""

    def action_page_up(self) -> None:
        if self.scrollable_content_region:
            super().action_page_up()

    def action_page_down(self) -> None:
        if self.scrollable_content_region:
            super().action_page_down()


def _explained(words: Iterable[tuple[str, str]]) -> Table:
    """A table of words and their meanings, in which meanings of several lines are aligned."""
    table = Table.grid(padding=(0, 1))
    table.add_column(no_wrap=True, min_width=8, style="bold")
    table.add_column()
    for word, meaning in words:
        table.add_row(Text(word), Text(meaning))
    return table


class Help(ModalScreen[None]):
    BINDINGS = [Binding("escape,question_mark,q", "dismiss", "back")]

    def __init__(self, panels: Mapping[str, str], keys: list[tuple[str, str]]) -> None:
        """`panels`: name of a panel → what it shows; `keys`: (keys, their effect)."""
        super().__init__()
        self.panels, self.keys = panels, keys

    def compose(self) -> ComposeResult:
        keys = [*self.keys, ("ctrl+p", "the palette: all actions by name")]
        with VerticalScroll(classes="box"):
            yield Static(Group(_explained(self.panels.items()), "", _explained(keys)))


class Sure(ModalScreen[bool]):
    BINDINGS = [Binding("y", "dismiss(True)", "yes"), Binding("n,escape,q", "dismiss(False)", "no")]

    def __init__(self, question: str) -> None:
        super().__init__()
        self.question = question

    def compose(self) -> ComposeResult:
        with Vertical(classes="box"):
            yield Static(f"{self.question}\n\ny yes   n no", markup=False)


class Prompt(ModalScreen[str]):
    """A one-line input."""

    BINDINGS = [Binding("escape", "dismiss", "back")]

    def __init__(self, example: str, below: str | Table = "", value: str = "") -> None:
        super().__init__()
        self.example, self.below, self.value = example, below, value

    @classmethod
    def order(cls) -> "Prompt":
        return cls("try tp=2 mbs=4", _explained(MEANING.items()))

    def compose(self) -> ComposeResult:
        with Vertical(classes="box"):
            box = Input(self.value, placeholder=self.example, id="order", compact=True)
            box.cursor_blink = False
            yield box
            yield Static(self.below, markup=False)

    def on_input_submitted(self, submitted: Input.Submitted) -> None:
        self.dismiss(submitted.value)


class Choose(ModalScreen[str]):
    """Lets the user choose one of several lines, with the keys j, k and enter."""

    BINDINGS = [
        Binding("escape,q", "dismiss", "back"),
        Binding("j", "move(1)", show=False),
        Binding("k", "move(-1)", show=False),
    ]

    def __init__(self, question: str, options: list[str]) -> None:
        super().__init__()
        self.question, self.options = question, options

    def compose(self) -> ComposeResult:
        with Vertical(classes="box"):
            yield Static(self.question, markup=False)
            yield Options(*self.options)

    def action_move(self, by: int) -> None:
        options = self.query_one(OptionList)
        (options.action_cursor_down if by > 0 else options.action_cursor_up)()

    def on_option_list_option_selected(self, selected: OptionList.OptionSelected) -> None:
        self.dismiss(self.options[selected.option_index])


class Full(ModalScreen[None]):
    """A long, scrollable text."""

    BINDINGS = [
        Binding("escape,enter,q", "dismiss", "back"),
        Binding("j", "scroll(1)", show=False),
        Binding("k", "scroll(-1)", show=False),
        Binding("G", "end", show=False),
        Binding("g", "start", show=False),
    ]

    def __init__(self, title: str, text: Text) -> None:
        super().__init__()
        self.heading, self.text = title, text

    def compose(self) -> ComposeResult:
        with VerticalScroll(classes="full") as box:
            box.border_title = self.heading
            box.border_subtitle = "j k scroll  q back"
            yield Static(self.text, markup=False)

    def on_mount(self) -> None:
        self.query_one(VerticalScroll).focus()

    def action_scroll(self, lines: int) -> None:
        self.query_one(VerticalScroll).scroll_relative(y=lines, animate=False)

    def action_end(self) -> None:
        self.query_one(VerticalScroll).scroll_end(animate=False)

    def action_start(self) -> None:
        self.query_one(VerticalScroll).scroll_home(animate=False)
