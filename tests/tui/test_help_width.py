"""The help of every verb on a terminal of 80 columns."""

import re
import shlex
from collections.abc import Iterator

import click
import pytest

from tui.cli import EXAMPLES, cli
from tui.verbs.kb import kb_


def _verbs(group: click.Group, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], click.Command]]:
    for name in group.list_commands(click.Context(group)):
        verb = group.commands[name]
        yield (*path, name), verb
        if isinstance(verb, click.Group):
            yield from _verbs(verb, (*path, name))


def _help(command: click.Command, path: tuple[str, ...]) -> str:
    root = click.Context(cli, info_name="autoscout", terminal_width=80)
    return click.Context(command, root, " ".join(path), terminal_width=80, max_content_width=80).get_help()


@pytest.mark.parametrize(("path", "verb"), [pytest.param(*each, id=" ".join(each[0])) for each in _verbs(cli)])
def test_each_help_fits_80_columns_with_whole_words_and_examples(path, verb):
    text = _help(verb, path)
    assert max(map(len, text.splitlines())) <= 80
    lines = [line.strip() for line in text.splitlines()]
    if len(path) == 1:
        assert f"Example: {EXAMPLES[path[0]]}" in lines
    texts = [verb.help or "", *(option.help or "" for option in verb.params if isinstance(option, click.Option))]
    assert set(re.findall(r"\w{9,}", " ".join(texts))) <= set(re.findall(r"\w{9,}", text))
    assert "..." not in text.replace("]...", "")


def test_descriptions_of_verbs_end_with_a_word():
    for group, path in ((cli, ()), (kb_, ("kb",))):
        assert isinstance(group, click.Group)
        for line in _help(group, path).splitlines():
            if found := re.match(r"  ([a-z]+) {2,}(\S.*)", line):
                verb = group.commands[found[1]]
                assert re.match(rf"{re.escape(found[2])}(\W|$)", re.sub(r"\s+", " ", verb.help or "").strip()), line


def test_examples_are_commands_that_their_verbs_take():
    for name, example in EXAMPLES.items():
        words = shlex.split(example.split(" | ")[0])[1:]
        assert words[0] == name
        cli.commands[name].make_context(name, [*words[1:]], resilient_parsing=True)
