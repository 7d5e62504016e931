"""The pictures of docs/tui.md, from the recorded session.

PYTHONPATH=. python tests/tools/screenshots.py
"""

import asyncio
import os
import tempfile
from pathlib import Path

from kb import store
from tui.app import SessionApp
from tui.session.follow import Follower

RECORDED = Path("fixtures/recorded/tiny-gpt-session.jsonl")
PICTURES = Path("docs/screens")
SIZE = (120, 40)


async def picture(kb: Path, key: str, name: str, light: bool) -> None:
    app = SessionApp(Follower(RECORDED), kb)
    async with app.run_test(size=SIZE) as pilot:
        app.theme = "textual-light" if light else "textual-dark"
        while not app.session.live.ended:
            await pilot.pause(0.05)
        await pilot.press(key)
        await pilot.pause(8.0 if key in "67" else 2.0)  # those two ask other processes
        (PICTURES / f"{name}.svg").write_text(app.export_screenshot(title=f"autoscout watch: {name}"))


def main() -> None:
    PICTURES.mkdir(parents=True, exist_ok=True)
    screens = ("tune", "arms", "checks", "cluster", "experiments", "compare", "knowledge", "launch")
    with tempfile.TemporaryDirectory() as folder:
        kb = Path(folder) / "kb.duckdb"
        os.environ["AUTOSCOUT_KB"] = str(kb)
        os.environ["XDG_STATE_HOME"] = folder
        store.ingest(kb, RECORDED)
        for key, name in enumerate(screens, start=1):
            asyncio.run(picture(kb, str(key), name, light=False))
        asyncio.run(picture(kb, "1", "tune-light", light=True))


if __name__ == "__main__":
    main()
