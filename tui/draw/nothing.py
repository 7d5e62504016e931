"""The panel that is shown while no configuration is feasible: how close runs came to each constraint, and failures."""

import textwrap

from rich.text import Text

from tui.draw.look import glyph, style
from tui.session import shortfall
from tui.session.state import State
from tui.text import number


def nothing(state: State, width: int, height: int, ascii_only: bool) -> Text:
    text = Text(no_wrap=True, overflow="ellipsis")
    missed = shortfall.misses(state)
    wide = width > 64
    if missed:
        text.append(
            f"{'constraint':<24}{'nearest':>9}  missed by{'      configuration' if wide else ''}\n", style="dim"
        )
    for miss in missed:
        met = miss.factor <= 1
        share = "met" if met else f"{miss.factor - 1:.0%}" if miss.factor < 10 else f"{miss.factor:.3g} times"
        text.append(f"{miss.text:<24.24}{number(miss.value):>9}  ", style="" if met else "bold")
        text.append(f"{share:<9}", style="yellow")
        text.append(f"      {miss.run.name}\n" if wide else "\n", style="dim")
    near = shortfall.nearest(state)
    if near is not None:
        text.append(f"\nnearest to feasible: {near.name}\n", style="bold")
        text.append(
            "\n".join(textwrap.wrap(near.note, max(20, width - 2), initial_indent="  ", subsequent_indent="  "))
        )
        text.append("\n")
    elif missed:
        text.append("\n")
    for failed in shortfall.failures(state):
        if failed.status != "limit":
            text.append(f"{glyph(failed.status, ascii_only)} {failed.status} {failed.count}  ", style(failed.status))
            text.append(f"{failed.example.name}: {failed.example.note}\n", style="dim")
    return text
