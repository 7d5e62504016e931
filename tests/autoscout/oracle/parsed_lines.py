"""vLLM's own parser of `vllm serve`, in one process: a JSON list of lines (of words) on stdin, on stdout a list
of what each means: option → its value in words, or {"refused": why}."""

# pyright: reportMissingImports=false, reportAttributeAccessIssue=false

import contextlib
import dataclasses
import io
import json
import os
import sys
from typing import Any


def parser() -> Any:
    from vllm.utils.argparse_utils import FlexibleArgumentParser

    try:
        from vllm.entrypoints.launchers.cli_args import make_arg_parser
    except ImportError:  # before 0.32
        from vllm.entrypoints.openai.cli_args import make_arg_parser
    whole = FlexibleArgumentParser(prog="vllm")
    make_arg_parser(whole.add_subparsers(dest="verb").add_parser("serve"))
    return whole


def meaning(whole: Any, words: list[str]) -> dict[str, Any]:
    said = io.StringIO()
    try:
        with contextlib.redirect_stderr(said):
            found = vars(whole.parse_args(["serve", *words]))
    except SystemExit:
        return {"refused": said.getvalue().strip().splitlines()[-1]}
    except Exception as error:
        return {"refused": str(error)}
    return {name: plain(value) for name, value in found.items()}


def plain(value: Any) -> Any:
    """Fields by name, without the random id of a connector."""
    if dataclasses.is_dataclass(value):
        fields = {f.name: getattr(value, f.name) for f in dataclasses.fields(value)}
        return {name: plain(v) for name, v in fields.items() if name != "engine_id"}
    if isinstance(value, dict):
        return {str(name): plain(v) for name, v in value.items()}
    return [plain(v) for v in value] if isinstance(value, list | tuple) else str(value)


if __name__ == "__main__":
    os.environ |= {"HF_HUB_OFFLINE": "1", "VLLM_LOGGING_LEVEL": "ERROR"}
    output, sys.stdout = sys.stdout, sys.stderr
    one = parser()
    output.write(json.dumps([meaning(one, words) for words in json.load(sys.stdin)]))
