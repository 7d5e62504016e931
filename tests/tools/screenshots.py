"""The pictures of docs/tui.md, from the recorded session.

PYTHONPATH=. python tests/tools/screenshots.py
"""

import asyncio
import os
from pathlib import Path

from tui.app import SessionApp
from tui.follow import Follower

RECORDED = Path("fixtures/recorded/tiny-gpt-session.jsonl")
PICTURES = Path("docs/screens")
SIZE = (120, 40)


async def picture(key: str, name: str, light: bool) -> None:
    app = SessionApp(Follower(RECORDED), Path(os.environ.get("AUTOSCOUT_KB", "kb.duckdb")))
    async with app.run_test(size=SIZE) as pilot:
        app.theme = "textual-light" if light else "textual-dark"
        while not app.live.ended:
            await pilot.pause(0.05)
        await pilot.press(key)
        await pilot.pause(2.0)
        (PICTURES / f"{name}.svg").write_text(app.export_screenshot(title=f"autoscout watch: {name}"))


def main() -> None:
    PICTURES.mkdir(parents=True, exist_ok=True)
    screens = ("tune", "arms", "checks", "cluster", "experiments", "compare", "knowledge", "launch")
    for key, name in enumerate(screens, start=1):
        asyncio.run(picture(str(key), name, light=False))
    asyncio.run(picture("1", "tune-light", light=True))


if __name__ == "__main__":
    main()
