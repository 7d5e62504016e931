"""The verbs, options, arguments and make targets that the pages show are there."""

import re
from collections.abc import Iterator
from pathlib import Path

import click
import pytest
import verbs

from tui.cli import cli

ANSWERED = re.compile(r"^\$ autoscout ((?:explain|predict) fixtures/.*)\n((?:.+\n)+?)(?:\n|(?=```|…|\$))", re.MULTILINE)
PAGES = [Path("README.md"), Path("CONTRIBUTING.md"), *sorted(Path("docs").rglob("*.md"))]
CODE = re.compile(r"^ *```\w*\n(.*?)^ *```$|(?<!`)`([^`]+)`(?!`)|^    (autoscout .*)$", re.DOTALL | re.MULTILINE)
SHOWN = re.compile(r"(?:^|\$ |[|&,] |\()(?:\S*/)?autoscout (?!is )([a-z]+\b.*)$", re.MULTILINE)


def commands(text: str) -> Iterator[list[str]]:
    """The words of each `autoscout VERB …`, up to a pipe, a comment, or what `--` hands to somebody else."""
    for code in CODE.finditer(text):
        fenced, inline, indented = code.groups()
        for line in SHOWN.findall(fenced or indented or inline.replace("\n", " ")):
            line = re.split(r" [|>&#…]| -- |, autoscout|\\\||\s{3,}", re.sub('"[^"]*"', "TEXT", line))[0]
            yield line.split()


def verb_of(words: list[str]) -> tuple[click.Command, list[str]]:
    command: click.Command = cli
    while words and isinstance(command, click.Group):
        assert words[0] in command.commands, " ".join(words)
        command, words = command.commands[words[0]], words[1:]
    return command, words


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_commands_of_a_page_are_those_that_there_are(page: Path):
    for words in commands(page.read_text()):
        command, rest = verb_of(words)
        known = {option for p in command.params if isinstance(p, click.Option) for option in p.opts + p.secondary_opts}
        assert {w.split("=")[0] for w in rest if re.match(r"--?[a-z]", w)} <= known | {"--help"}, words


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_what_a_page_makes_can_be_made(page: Path):
    rules = set(re.findall(r"^([a-z-]+):", Path("Makefile").read_text(), re.MULTILINE))
    assert set(re.findall(r"(?:^|`)make ([a-z-]+)", page.read_text(), re.MULTILINE)) <= rules


def answered(verb: str) -> list[tuple[str, str]]:
    found = {each for page in PAGES for each in ANSWERED.findall(page.read_text())}
    return sorted((command, shown) for command, shown in found if command.startswith(verb) and "--" not in command)


@pytest.mark.parametrize(("command", "shown"), answered("explain"))
def test_explanations_that_pages_show(command: str, shown: str, tmp_path: Path):
    assert verbs.run(*command.split(), AUTOSCOUT_KB=str(tmp_path / "kb.duckdb")).stdout == shown


@pytest.mark.thorough
@pytest.mark.parametrize(("command", "shown"), answered("predict"))
def test_predictions_that_pages_show(command: str, shown: str, tmp_path: Path):
    said = verbs.run(*command.split(), AUTOSCOUT_KB=str(tmp_path / "kb.duckdb")).stdout
    assert said.splitlines()[:2] == shown.splitlines()[:2]
