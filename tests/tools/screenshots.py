"""Creates the pictures of docs/tui.md from recorded sessions of real experiments, and from a simulated session with two
kinds of device, which is labelled as simulated.

PYTHONPATH=. python tests/tools/screenshots.py [NAME…]
"""

import asyncio
import json
import math
import os
import re
import shutil
import sys
import tempfile
import tomllib
from pathlib import Path
from typing import Any

import numpy as np
from textual.app import App
from textual.pilot import Pilot

import autoscout
from autoscout.job.toml_text import toml
from autoscout.targets.jobs import JobSpace, load_job
from autoscout.tuning.predict import predict
from kb import store
from kb.records import AutoscoutError
from tui.app import SessionApp
from tui.home import HomeApp
from tui.session.follow import Follower
from tui.widgets.panel import TextLine

RECORDED = Path("fixtures/recorded/tiny-moe-session.jsonl")  # with a proven gain
BELIEVING = Path("fixtures/recorded/tiny-llama-session.jsonl")  # of a search that recorded its belief
PICTURES = Path("docs/screens")
SIZE = (120, 40)
SCREENS = ("tune", "arms", "checks", "cluster", "experiments", "compare", "knowledge", "launch")
SIMULATED = "two-kinds-simulated"
_WAITS = re.compile("(comput|check|read)ing&#160;…")
FLOP = 2.0 * 4096**3  # of the test product that a rank times alone


def save(app: App[Any], name: str) -> None:
    (PICTURES / f"{name}.svg").write_text(app.export_screenshot(title=f"autoscout: {name}"))


async def settled(app: App[Any], pilot: Pilot[Any]) -> None:
    """Waits until no widget waits for another process ("computing …")."""
    await pilot.pause(2.0)
    while _WAITS.search(app.export_screenshot()):
        await pilot.pause(0.5)
    await pilot.pause(0.5)


async def drawn(app: SessionApp, pilot: Pilot[None], key: str) -> None:
    while not app.session.live.ended:
        await pilot.pause(0.05)
    await pilot.press(key)
    await settled(app, pilot)


async def picture(kb: Path, journal: Path, key: str, name: str, theme: str = "textual-dark") -> None:
    app = SessionApp(Follower(journal), kb)
    async with app.run_test(size=SIZE) as pilot:
        app.theme = theme
        await drawn(app, pilot, key)
        save(app, name)


async def home(kb: Path, folder: Path) -> None:
    """Pictures of Home with the recorded sessions, and of the form for a model's config.json."""
    app = HomeApp(kb, folder)
    async with app.run_test(size=SIZE) as pilot:
        await settled(app, pilot)
        app.query_one("#headline", TextLine).update(" AutoScout   knowledge base kb.duckdb")
        await pilot.pause(0.2)
        save(app, "home")
        await pilot.press("n")
        await pilot.pause(2.0)
        await pilot.press(*"my-llama")
        await settled(app, pilot)  # the check starts the job's interpreter, which takes time
        save(app, "new-job")


def model(folder: Path) -> None:
    (folder / "my-llama").mkdir()
    shape = {"num_hidden_layers": 4, "hidden_size": 256, "num_attention_heads": 4, "num_key_value_heads": 2}
    rest = {"intermediate_size": 688, "vocab_size": 2048, "max_position_embeddings": 256, "rms_norm_eps": 1e-5}
    (folder / "my-llama/config.json").write_text(json.dumps({**shape, **rest, "hidden_act": "silu"}))


def simulated(folder: Path) -> Path:
    """The journal of a session on 8 A100 and 4 A40 whose measurements are predictions with 1 % noise."""
    job = tomllib.loads(Path("fixtures/jobs/llama-3.2-3b.toml").read_text())
    job |= {"name": SIMULATED, "budget": {"profiles": 14}}
    file = folder / "job.toml"
    file.write_text(toml(job, []))
    rng = np.random.default_rng(0)
    kb = folder / "kb.duckdb"
    environment = {"device": "8 A100 and 4 A40, simulated"}
    space = JobSpace.of_job(load_job(file))
    with autoscout.Study(file, kb=kb, environment=environment, warm_start="off") as study:
        while study.wants_more():
            (asked,) = study.ask()
            try:
                told = predict(space, asked.knobs, None)
                peak = {"peak_memory_gib": told.memory.gib} if told.memory else {}
                metrics = {"step_time_s": told.value * math.exp(rng.normal(0, 0.01)), **peak}
                study.tell(asked, metrics, cost_s=20 * told.value)
            except AutoscoutError as error:
                study.tell(asked, failed="oom", evidence=f"simulated: {error}")
        journal = store.session_folder(kb, study.session) / "journal.jsonl"
    made = folder / f"{SIMULATED}.jsonl"
    made.write_text("".join(_with_ranks(json.loads(line), rng) for line in journal.read_text().splitlines()))
    return made


def _with_ranks(event: dict, rng: np.random.Generator) -> str:
    """Adds each rank's device, and its time for the test product by its kind's peak FLOP/s."""
    if event["type"] == "session_started":
        event |= {"session": SIMULATED, "host": "simulated"}
    m = event.get("measurement")
    if m is not None and m["status"] == "ok":
        knobs = m["configuration"]["knobs"]
        kinds = ["a100"] * int(knobs.get("a100", 8)) + ["a40"] * int(knobs.get("a40", 4))
        peak = {k: _peak(k) for k in ("a100", "a40")}
        alone = [FLOP / peak[k] * math.exp(rng.normal(0, 0.01)) for k in kinds]
        m["per_rank"] = {"alone_s": alone, "peak_memory_gib": [m["metrics"].get("peak_memory_gib", 0.0)] * len(kinds)}
        m["rank_devices"] = [f"node-{'1' if k == 'a100' else '2'}:{k}:{i}" for i, k in enumerate(kinds)]
    return json.dumps(event) + "\n"


def _peak(kind: str) -> float:
    return tomllib.loads(Path(f"fixtures/hardware/{kind}.toml").read_text())["peak_tflops"]["bf16"] * 1e12


def main(wanted: list[str]) -> None:
    PICTURES.mkdir(parents=True, exist_ok=True)

    def want(name: str) -> bool:
        return not wanted or name in wanted

    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        kb = folder / "kb.duckdb"
        os.environ["AUTOSCOUT_KB"] = str(kb)
        os.environ["XDG_STATE_HOME"] = temporary
        for journal in (RECORDED, BELIEVING):
            session = folder / "sessions" / journal.stem
            session.mkdir(parents=True)
            shutil.copy(journal, session / "journal.jsonl")
            store.ingest(kb, session / "journal.jsonl")
        for key, name in enumerate(SCREENS, start=1):
            if want(name):
                asyncio.run(picture(kb, RECORDED, str(key), name))
        if want("tune-colour-blind-safe"):
            asyncio.run(picture(kb, RECORDED, "1", "tune-colour-blind-safe", "colour-blind-safe"))
        if want("why"):
            asyncio.run(picture(kb, BELIEVING, "9", "why"))
        if want("home"):
            work = folder / "work"
            work.mkdir()
            model(work)
            asyncio.run(home(kb, work))
        if want("two-kinds"):
            (folder / "simulated").mkdir()
            asyncio.run(picture(kb, simulated(folder / "simulated"), "4", "two-kinds"))


if __name__ == "__main__":
    main(sys.argv[1:])
