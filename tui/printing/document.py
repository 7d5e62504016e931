"""Prints a verb's result as one JSON document (option --json)."""

import json
from typing import Any

import click


def document(value: Any) -> None:
    import msgspec

    click.echo(json.dumps(msgspec.to_builtins(value), indent=2, ensure_ascii=False))
