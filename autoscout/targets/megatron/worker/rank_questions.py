"""Answers questions about ranks one after the other, each in a fork of a process that has done all imports.

A question is FOLDER/question-N.json, and its answer FOLDER/answer-N.json."""

import json
import os
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import leash


def of(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(path.read_text()) for path in _paths(folder)]


def answer_all(folder: Path, answer: Callable[[dict[str, Any]], dict[str, Any]]) -> int:
    """Answers all questions of a folder; returns 1 if a fork ended without an answer, else 0."""
    parent = os.getpid()
    for path, question in zip(_paths(folder), of(folder), strict=True):
        child = os.fork()  # process groups, Megatron's settings, and a device's context exist once per process
        if child == 0:
            code = 1
            leash.die_with(parent)
            try:
                _write(path.with_name(path.name.replace("question", "answer")), answer(question))
                code = 0
            finally:
                sys.stdout.flush()
                sys.stderr.flush()
                os._exit(code)
        status = os.waitpid(child, 0)[1]
        if status:
            return 1
    return 0


def refusal(error: BaseException, phase: str) -> dict[str, Any]:
    """Returns the answer for an exception: its type and message, and the line of Megatron that raised it."""
    frames = traceback.extract_tb(error.__traceback__)
    there = [f for f in frames if "/megatron/" in f.filename and "/worker/" not in f.filename] or frames
    return {
        "verdict": "refused",
        "type": type(error).__name__,
        "message": str(error)[:2000],
        "where": f"{there[-1].filename.rpartition('site-packages/')[2]}:{there[-1].lineno} {there[-1].name}",
        "traceback": "".join(traceback.format_exception(error))[-3000:],
        "phase": phase,
    }


def _paths(folder: Path) -> list[Path]:
    return sorted(folder.glob("question-*.json"), key=lambda path: int(path.stem.rpartition("-")[2]))


def _write(path: Path, content: dict[str, Any]) -> None:
    part = path.with_name(path.name + ".part")
    part.write_text(json.dumps(content))
    os.replace(part, path)
