"""Lists of lines to choose from."""

from textual.widgets import OptionList


class Options(OptionList):
    """Textual's list turns no page before its lines are known, which they are not where it has no room."""

    def action_page_up(self) -> None:
        if self.scrollable_content_region:
            super().action_page_up()

    def action_page_down(self) -> None:
        if self.scrollable_content_region:
            super().action_page_down()
