"""Prints a verb's answer as one JSON document, for `--json`."""

import json
from typing import Any

import click


def document(value: Any) -> None:
    """`value`: structs and plain data."""
    import msgspec

    click.echo(json.dumps(msgspec.to_builtins(value), indent=2, ensure_ascii=False))
