"""Failure texts of public threads (fixtures/failures): what each path takes them for.

Nine batches of twenty, each collected and classed by hand before the classifier read it; how many it told right at
first sight is in docs/lab/gpu-check.md. Here they have to stay right, and what is the machine's must be final nowhere.
"""

import json
import tomllib
from pathlib import Path
from typing import Any

import pytest

from autoscout.running import outcome, symptoms
from autoscout.running.outcome import RunOutcome
from autoscout.running.supervised import Ended
from autoscout.targets.command import failures as command
from autoscout.targets.vllm import failures as vllm
from kb.records import Status

BATCHES = sorted(Path("fixtures/failures").glob("*.toml"))
TEXTS = [text for path in BATCHES for text in tomllib.loads(path.read_text())["text"]]
FINAL = {"invalid", "oom", "wrong"}


def named(text: dict[str, Any]) -> str:
    return text["source"].removeprefix("https://github.com/")


def by_command(folder: Path, said: str, code: int, stepped: bool) -> tuple[Status, str]:
    log = folder / "output.log"
    log.write_text(f"starting\n{said}\n")
    ended = Ended(code=code, seconds=9.0, first_output_s=1.0)
    return command.classify(ended, log, [], 60.0, 0, "no metric", stepped)


def by_ranks(folder: Path, text: dict[str, Any]) -> tuple[Status, str]:
    module, rank = (outcome, 1) if text["engine"] == "megatron" else (vllm, 0)
    if "kind" not in text:
        (folder / "rank-0.log").write_text("torch 2.13\n")
        (folder / f"rank-{rank}.log").write_text(text["text"])
        return module.classify(RunOutcome(codes={rank: text.get("exit", 1)}), folder, 60.0, 0)
    frames = text.get("frames", "")
    error = {
        "type": text["kind"],
        "message": text["text"],
        "traceback": f"Traceback (most recent call last):\n{frames}{text['kind']}: {text['text']}\n",
        "in_megatron": "/megatron/core/" in frames,
        "phase": text.get("phase", "train" if rank else "build"),
        "steps": text.get("steps", 0),
        "time": 1.0,
    }
    (folder / f"rank-{rank}.error.json").write_text(json.dumps(error))
    return module.classify(RunOutcome(codes={rank: 1}), folder, 60.0, 0)


@pytest.mark.parametrize("text", TEXTS, ids=named)
def test_a_text_is_told_for_what_it_is(tmp_path: Path, text: dict[str, Any]) -> None:
    if text["engine"] == "command":
        status, evidence = by_command(tmp_path, text["text"], text.get("exit", 1), "steps" in text)
    else:
        status, evidence = by_ranks(tmp_path, text)
    assert status == text["should_be"], evidence
    if status == "infrastructure":
        assert symptoms.named(evidence), "what is to be mended is said, and a session stops after two"


@pytest.mark.parametrize("text", [t for t in TEXTS if t["should_be"] == "infrastructure"], ids=named)
def test_a_machine_is_no_fact_about_a_configuration_whoever_launched_it(tmp_path: Path, text: dict[str, Any]) -> None:
    """The same in the log of a person's own command, where nothing but the log is known."""
    said = f"{text['kind']}: {text['text']}" if "kind" in text else text["text"]
    status, evidence = by_command(tmp_path, f"{text.get('frames', '')}{said}", text.get("exit", 1), "steps" in text)
    assert status not in FINAL, evidence


def test_there_are_nine_batches_of_twenty() -> None:
    assert [len(tomllib.loads(path.read_text())["text"]) for path in BATCHES] == [20] * 9
    assert len({named(text) for text in TEXTS}) == len(TEXTS)
