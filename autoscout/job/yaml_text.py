"""Reads and edits YAML files of users: manifests, compose files, and settings files of servers and trainers."""

import json
import re
from collections.abc import Mapping, Sequence
from itertools import islice
from typing import Any

import yaml

_PLAIN = re.compile(r"[A-Za-z0-9][\w./-]*")
_ANCHOR = re.compile(r"(?:!\S*\s+)?(&[^\s,\[\]{}]+)")
_NOTHING = "tag:yaml.org,2002:null"


_FASTEST: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)  # libyaml, if PyYAML was built with it


class _Loader(_FASTEST):
    """A YAML loader that accepts unknown tags, such as !ENV, which only the file's own program can interpret."""


def _tagged(loader: Any, node: yaml.Node) -> Any:
    if isinstance(node, yaml.MappingNode):
        return loader.construct_mapping(node, deep=True)
    if isinstance(node, yaml.SequenceNode):
        return loader.construct_sequence(node, deep=True)
    return f"{node.tag} {node.value}"


_Loader.add_constructor(None, _tagged)


def emitted(value: Any) -> str:
    """Converts a value to one line of YAML. The line is JSON, unless JSON would need surrogate pairs, which YAML does
    not support."""
    text = json.dumps(value)
    if not re.search(r"\\ud[89ab]", text):
        return text
    style = '"' if isinstance(value, str) else None
    return yaml.safe_dump(
        value, default_flow_style=True, default_style=style, allow_unicode=True, width=10**9, sort_keys=False
    ).rstrip("\n")


def documents(text: str, loader: Any = yaml.SafeLoader) -> list[Any]:
    """Parses all YAML documents of a text. Errors: ValueError."""
    try:
        return list(yaml.load_all(text, Loader=loader))
    except yaml.YAMLError as error:
        mark, first = getattr(error, "problem_mark", None), str(error).splitlines()[0]
        why = f"{getattr(error, 'problem', '')} in line {mark.line + 1}" if mark else first
        raise ValueError(f"it is not YAML: {why}") from error


def settings(text: str) -> dict[Any, Any]:
    """Returns the first document that is a mapping. Errors: ValueError."""
    return next((page for page in _pages(text) if isinstance(page, dict)), {})


def alike(one: str, other: str) -> bool:
    """Whether two names denote the same key. GPT-NeoX accepts a-b for a_b; no file uses these as two different keys."""
    return one.replace("-", "_") == other.replace("-", "_")


def put(text: str, values: Mapping[str, Any]) -> str:
    """Returns the text with values set at paths of keys (a.b.c), in block or flow style ({a: 1}). All other text is
    unchanged.

    Errors: ValueError if the text is not YAML, if a path leads through a value that is not a mapping, or if the value
    is an anchor that other keys share."""
    wanted = _pages(text) or [None]
    for path, value in values.items():
        keys = path.split(".")
        at = _page_of(wanted, keys[0])
        wanted[at] = {} if wanted[at] is None else wanted[at]
        if _set(wanted[at], keys, value):
            text = _put(text, at, keys, value)
    try:
        kept = (_pages(text) or [None]) == wanted
    except ValueError:
        kept = False
    if not kept:
        raise ValueError(
            f"the YAML value {' or '.join(values)} is shared by several places (an anchor, &name); write it out "
            "at each place"
        )
    return text


def _pages(text: str) -> list[Any]:
    try:
        return [_written_out(page) for page in documents(text, _Loader)]
    except RecursionError as error:
        raise ValueError("it is nested too deeply") from error


def _page_of(pages: Sequence[Any], key: str) -> int:
    """Returns the index of the document with this key, else of the first mapping, else of the first empty document."""
    having = [at for at, page in enumerate(pages) if isinstance(page, dict)]
    saying = [at for at in having if any(alike(str(name), key) for name in pages[at])]
    could = [at for at, page in enumerate(pages) if page is None]
    found = [*saying, *having, *could]
    if not found:
        raise ValueError("its top level is a list or a single value, but must have keys")
    return found[0]


def _written_out(tree: Any) -> Any:
    """Returns a copy of the tree in which each YAML alias is a separate copy of its value."""
    if isinstance(tree, list):
        return [_written_out(each) for each in tree]
    return {name: _written_out(value) for name, value in tree.items()} if isinstance(tree, dict) else tree


def _set(tree: dict[Any, Any], keys: Sequence[str], value: Any) -> bool:
    """Sets a value in a parsed tree; returns whether this changed it."""
    for depth, key in enumerate(keys):
        key = key if key in tree else next((name for name in tree if alike(str(name), key)), key)
        if depth == len(keys) - 1:
            before = key in tree and type(tree[key]) is type(value) and tree[key] == value
            tree[key] = value
            return not before
        if tree.get(key) is None:
            tree[key] = {}
        if not isinstance(tree[key], dict):
            raise ValueError(
                f"{'.'.join(keys)} cannot be set, because {'.'.join(keys[: depth + 1])} is a value without keys"
            )
        tree = tree[key]
    return False


def _put(text: str, page: int, keys: Sequence[str], value: Any) -> str:
    try:
        node = next(islice(yaml.compose_all(text, Loader=_Loader), page, None), None)
    except yaml.YAMLError as error:
        problem = str(error).splitlines()[0]
        raise ValueError(
            f"{'.'.join(keys)} cannot be set, because the YAML at this key cannot be parsed ({problem})"
        ) from error
    if not isinstance(node, yaml.MappingNode):
        return f"{text.rstrip()}\n{_block(keys, value, '')}\n".lstrip("\n")
    for depth, key in enumerate(keys):
        assert isinstance(node, yaml.MappingNode)  # `_set` has checked the parsed tree
        same = [pair for pair in node.value if pair[0].value == key]
        same = same or [pair for pair in node.value if alike(str(pair[0].value), key)][:1]
        if not same:
            return _with_key(text, node, keys[depth:], value)
        name, inner = same[-1]  # if a key is repeated, its last occurrence counts
        # The value is an alias: it is written in a different place, and several keys may use it.
        if inner.start_mark.index < name.end_mark.index:
            raise ValueError(f"{'.'.join(keys[: depth + 1])} is a YAML alias (*name); replace it with the value")
        if depth == len(keys) - 1:
            return _with_value(text, name, inner, json.dumps(value) if node.flow_style else _scalar(value))
        if inner.tag == _NOTHING:  # a key without a value becomes a mapping
            return _with_value(text, name, inner, _flow(keys[depth + 1 :], value))
        node = inner
    return text


def _with_value(text: str, name: yaml.Node, node: yaml.Node, new: str) -> str:
    begin, end = node.start_mark.index, _end(text, node)
    if isinstance(node, yaml.CollectionNode) and not node.flow_style:  # a block value begins on the next line
        begin = text.index(":", name.end_mark.index) + 1
    pad = " " if text[begin - 1] == ":" else ""
    anchor = _ANCHOR.match(text, node.start_mark.index)
    return f"{text[:begin]}{pad}{anchor[1] + ' ' if anchor else ''}{new}{text[end:]}"


def _with_key(text: str, node: yaml.MappingNode, keys: Sequence[str], value: Any) -> str:
    if node.flow_style:
        after = text.index("{", node.start_mark.index) + 1 if not node.value else _end(text, node.value[-1][1])
        comma = ", " if node.value else ""
        return f"{text[:after]}{comma}{json.dumps(keys[0])}: {_flow(keys[1:], value)}{text[after:]}"
    pad = " " * node.value[0][0].start_mark.column
    line = text.find("\n", _end(text, node))
    line = len(text) if line < 0 else line
    return f"{text[:line]}\n{_block(keys, value, pad)}{text[line:] or chr(10)}"


def _end(text: str, node: yaml.Node) -> int:
    """Returns the index of the end of a node's text. (For a block, PyYAML's end mark is after the comments that
    follow.)"""
    while isinstance(node, yaml.CollectionNode) and not node.flow_style and node.value:
        last = node.value[-1]
        name, node = last if isinstance(last, tuple) else (last, last)
        if node.start_mark.index < name.start_mark.index:  # an alias to an earlier node
            line = text.find("\n", name.end_mark.index)
            return len(text) if line < 0 else line
    empty = node.start_mark.index == node.end_mark.index
    return node.end_mark.index if empty else len(text[: node.end_mark.index].rstrip())


def _flow(keys: Sequence[str], value: Any) -> str:
    inner = json.dumps(value)
    for key in reversed(keys):
        inner = f"{{{json.dumps(key)}: {inner}}}"
    return inner


def _block(keys: Sequence[str], value: Any, pad: str) -> str:
    lines = [f"{pad}{'  ' * i}{key}:" for i, key in enumerate(keys)]
    return "\n".join([*lines[:-1], f"{lines[-1]} {_scalar(value)}"])


def _scalar(value: Any) -> str:
    """Returns a scalar as YAML, plain words without quotes."""
    return (
        value
        if isinstance(value, str) and _PLAIN.fullmatch(value) and documents(value) == [value]
        else json.dumps(value)
    )
