"""YAML that people have: manifests, compose files, settings of a server."""

from typing import Any


def documents(text: str) -> list[Any]:
    """Errors: ValueError, also without PyYAML."""
    try:
        import yaml
    except ImportError as error:
        raise ValueError("reading YAML needs the package pyyaml: pip install pyyaml") from error
    try:
        return list(yaml.safe_load_all(text))
    except yaml.YAMLError as error:
        raise ValueError(f"it is no YAML: {str(error).splitlines()[0]}") from error
